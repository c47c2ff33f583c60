"""Empty tensors: an empty diff_src, sums of zero, and nothing else read or written."""

from __future__ import annotations

import helpers
import numpy as np
import pytest
from helpers import EPSILON, FORMATS

import onedsl
from onedsl import testing
from onedsl.operators.kernel_info import kernel_info

# The zero is the size of the batch, of a spatial axis, of the channels, or of all axes.
SHAPES = {
    "NXC": [(0, 3), (4, 0), (0, 0), (0, 5, 3), (2, 0, 3), (2, 5, 0), (2, 0, 4, 5, 3), (0, 0, 0, 0)],
    "NCX": [(0, 3), (4, 0), (0, 0), (0, 3, 5), (2, 3, 0), (2, 0, 5), (2, 3, 4, 0, 5), (0, 0, 0, 0)],
}
CASES = [(data_format, shape) for data_format in FORMATS for shape in SHAPES[data_format]]


def problem_of(data_format, shape, dtype, stats):
    channels = shape[-1 if data_format == "NXC" else 1]
    tensor = np.empty(shape, helpers.NUMPY[dtype])
    # NaN must not propagate: there is no element to normalize.
    statistics = np.full(channels, np.nan, helpers.NUMPY[stats])
    return tensor, tensor.copy(), statistics, statistics, statistics


@helpers.cells
def test_results(dtype, stats, backend):
    for data_format, shape in CASES:
        inputs = problem_of(data_format, shape, dtype, stats)
        op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
        guarded = helpers.Guarded(inputs[0], inputs[2], inputs[2])
        results = [op(*inputs, backend=backend), op(*inputs, out=guarded.out, backend=backend)]
        guarded.check_walls()
        for got in results:
            assert got.diff_src.shape == shape
            assert got.diff_src.dtype == helpers.NUMPY[dtype]
            for member in got[1:]:
                assert member.shape == inputs[2].shape
                assert member.dtype == helpers.NUMPY[stats]
                assert not member.view(np.uint8).any()
        reference = testing.batch_norm_backward(*inputs, epsilon=EPSILON, data_format=data_format)
        testing.assert_close(results[0], reference)
        alone = op(*inputs[:4], outputs="diff_src", backend=backend)
        assert alone.diff_src.shape == shape
        assert alone[1:] == (None, None)


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
