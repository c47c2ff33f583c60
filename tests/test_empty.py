"""Empty tensors of unusual sizes and addresses. test_matrix.py has calls of the others."""

from __future__ import annotations

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl.operators.base import kernel_info


def test_more_channels_than_memory():
    """Regression: bad_alloc for a buffer of the channels, which an empty tensor does not need."""
    spec = onedsl.TensorSpec((0, 2**40))
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    assert kernel_info(op, spec)["geometry"] == (0, 2**40, 1)
    with pytest.raises(onedsl.UnsupportedError):
        op.graph(spec).repaired().compile()


@pytest.mark.parametrize("backend", helpers.BACKENDS)
def test_unaligned_address(backend):
    """Regression: NumPy treats an empty array at an odd address as aligned, the core did not."""
    odd = np.zeros(5, np.uint8)[1:].view(np.float32)[:0]
    src, stats = odd.reshape(0, 3), np.ones(3, np.float32)
    out = (src.copy(), stats.copy(), stats.copy())
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    assert not op(src, src, stats, stats, out=out, backend=backend).diff_beta.any()
    none = odd.reshape(3, 0)
    assert op(none, none, odd, odd, odd, out=(none, odd, odd), backend=backend).diff_gamma is odd


def test_spec():
    """Strides are those of NumPy, which counts a size of 0 as 1."""
    spec = onedsl.TensorSpec((4, 0, 3))
    assert spec.strides == (3, 3, 1)
    assert spec == onedsl.TensorSpec.of(np.empty((4, 0, 3), np.float32))
    assert eval(repr(spec)) == spec
