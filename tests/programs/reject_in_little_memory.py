"""Compiles an unsupported shape without enough memory for buffers of its size."""

import resource

import pytest

import onedsl
from onedsl.operators.base import kernel_info

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
op = onedsl.BatchNormTrainingBackward(1e-5)
spec = onedsl.TensorSpec((1, 2**33))
with pytest.raises(onedsl.UnsupportedError, match=r"2\^31"):
    op.graph(spec).repaired().compile()
assert kernel_info(op, spec)["threads"] >= 1
