"""Arrays of several libraries in one ``out``."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import EPSILON

import onedsl

torch = pytest.importorskip("torch")

SHAPES = [(6, 4), (4,), (4,)]
OP = onedsl.BatchNormTrainingBackward(EPSILON)


@pytest.mark.parametrize("kind", ["direct", "compiled", "strided"])
@pytest.mark.parametrize("tensors", list(itertools.product([False, True], repeat=3)), ids=str)
def test_every_tensor_of_out_is_marked_as_written(tensors, kind):
    """Regression: only the first member was checked, and autograd used overwritten values."""
    src = np.ones((6, 8) if kind == "strided" else (6, 4), np.float32)[:, :4]
    ones = np.ones(4, np.float32)
    out = tuple(
        torch.zeros(shape) if tensor else np.zeros(shape, np.float32)
        for shape, tensor in zip(SHAPES, tensors, strict=True)
    )
    versions = [
        member._version if tensor else 0 for member, tensor in zip(out, tensors, strict=True)
    ]
    call = OP.compile(onedsl.TensorSpec.of(src)) if kind == "compiled" else OP
    result = call(src, src, ones, ones, ones, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    for member, tensor, version in zip(out, tensors, versions, strict=True):
        if tensor:
            assert member._version == version + 1
    np.testing.assert_array_equal(np.asarray(out[2]), np.full(4, 6, np.float32))


def test_autograd_detects_overwritten_tensors():
    weight = torch.ones(4, requires_grad=True)
    diff_beta = torch.ones(4)
    loss = (weight * diff_beta).sum()  # saves diff_beta
    x, ones = np.ones((6, 4), np.float32), np.ones(4, np.float32)
    OP(x, x, ones, ones, out=(np.empty_like(x), np.empty_like(ones), diff_beta))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_diff_src_only():
    x, ones = torch.ones(6, 4), torch.ones(4)
    out = torch.zeros(6, 4)
    before = out._version
    OP(x, x, ones, ones, outputs="diff_src", out=(out, None, None))
    assert out._version == before + 1
