"""Tensors without elements: empty diff_src, zeros for the sums, nothing read or written besides."""

from __future__ import annotations

import helpers
import numpy as np
import pytest
from helpers import EPSILON, FORMATS

import onedsl

# Where the zero is: batch, a spatial axis, channels, everywhere.
SHAPES = {
    "NXC": [(0, 3), (4, 0), (0, 0), (0, 5, 3), (2, 0, 3), (2, 5, 0), (2, 0, 4, 5, 3), (0, 0, 0, 0)],
    "NCX": [(0, 3), (4, 0), (0, 0), (0, 3, 5), (2, 3, 0), (2, 0, 5), (2, 3, 4, 0, 5), (0, 0, 0, 0)],
}
CASES = [
    pytest.param(data_format, shape, id=f"{data_format}-{'x'.join(map(str, shape))}")
    for data_format in FORMATS
    for shape in SHAPES[data_format]
]
PAIRS = [
    (dtype, stats, backend)
    for dtype, stats in helpers.TYPES
    for backend in helpers.BACKENDS
    if helpers.runs(backend, dtype)  # test_matrix checks that the others are refused
]
each = pytest.mark.parametrize(("dtype", "stats", "backend"), PAIRS)


def problem_of(data_format, shape, dtype, stats):
    channels = shape[-1 if data_format == "NXC" else 1]
    tensor = np.empty(shape, helpers.NUMPY[dtype])
    # Nothing may be made of these: with no element there is nothing to normalize.
    statistics = np.full(channels, np.nan, helpers.NUMPY[stats])
    return tensor, tensor.copy(), statistics, statistics, statistics


@each
@pytest.mark.parametrize(("data_format", "shape"), CASES)
@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "compiled"])
def test_all_outputs(dtype, stats, backend, data_format, shape, compiled):
    inputs = problem_of(data_format, shape, dtype, stats)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    guarded = helpers.Guarded(inputs[0], inputs[2], inputs[2])
    if compiled:
        spec = onedsl.TensorSpec.of(inputs[0])
        plan = op.compile(spec, stats_dtype=stats, backend=backend)
        results = [plan(*inputs), plan(*inputs, out=guarded.out)]
    else:
        results = [op(*inputs, backend=backend), op(*inputs, backend=backend, out=guarded.out)]
    guarded.check_walls()
    for got in results:
        assert got.diff_src.shape == shape
        assert got.diff_src.dtype == helpers.NUMPY[dtype]
        for member in got[1:]:
            assert member.shape == inputs[2].shape
            assert member.dtype == helpers.NUMPY[stats]
            assert not member.view(np.uint8).any()


@each
@pytest.mark.parametrize(("data_format", "shape"), CASES)
def test_diff_src_alone(dtype, stats, backend, data_format, shape):
    inputs = problem_of(data_format, shape, dtype, stats)[:4]
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    got = op(*inputs, outputs="diff_src", backend=backend)
    assert got.diff_src.shape == shape
    assert got[1:] == (None, None)


@pytest.mark.parametrize(("data_format", "shape"), CASES)
def test_checks_are_no_looser(data_format, shape):
    """What is refused for a tensor with elements is refused for one without."""
    src, diff_dst, mean, variance, gamma = problem_of(data_format, shape, "f32", "f32")
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    with pytest.raises(ValueError, match="mean must have shape"):
        op(src, diff_dst, np.append(mean, mean.dtype.type(1)), variance, gamma)
    with pytest.raises(TypeError, match="diff_dst must be f32"):
        op(src, diff_dst.astype("f2"), mean, variance, gamma)
    with pytest.raises(ValueError, match="diff_dst must have src's shape"):
        op(src, diff_dst[None], mean, variance, gamma)
    frozen = np.empty_like(src)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"out\.diff_src is read-only"):
        op(src, diff_dst, mean, variance, out=(frozen, mean.copy(), mean.copy()))


@pytest.mark.parametrize("backend", helpers.BACKENDS)
def test_more_channels_than_memory(backend):
    """Regression: a bad_alloc of oneDNN's ones, which an empty tensor does not need."""
    spec = onedsl.TensorSpec((0, 2**40))
    compiled = onedsl.BatchNormTrainingBackward(EPSILON).compile(spec, backend=backend)
    assert compiled.stats_shape == (2**40,)
    frozen = onedsl.BatchNormalizationGrad(EPSILON).compile(spec, (1, 2**40), backend=backend)
    assert frozen.stats_shape == (1, 2**40)


def test_slices_and_strides_of_nothing():
    memory = np.ones((6, 8), np.float32)
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    for src in (
        memory[3:3],
        memory[::-2][:0],
        memory[:, ::2][4:4],
        np.broadcast_to(memory[:1], (0, 8)),
    ):
        stats = np.ones(src.shape[1], np.float32)
        got = op(src, src, stats, stats)
        assert got.diff_src.shape == src.shape
        assert not got.diff_beta.any()


@pytest.mark.parametrize("backend", helpers.BACKENDS)
def test_nothing_at_an_odd_address(backend):
    """Regression, found by the fuzzer: NumPy has it aligned, and the core had not."""
    odd = np.zeros(5, np.uint8)[1:].view(np.float32)[:0]
    src, stats = odd.reshape(0, 3), np.ones(3, np.float32)
    out = (src.copy(), stats.copy(), stats.copy())
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    assert not op(src, src, stats, stats, out=out, backend=backend).diff_beta.any()
    none = odd.reshape(3, 0)
    assert op(none, none, odd, odd, odd, out=(none, odd, odd), backend=backend).diff_gamma is odd


def test_reference_of_nothing():
    for data_format in FORMATS:
        for shape in SHAPES[data_format]:
            problem = onedsl.testing.random_problem(shape, data_format=data_format)
            got = onedsl.testing.batch_norm_backward(
                *problem, epsilon=EPSILON, data_format=data_format
            )
            assert got.diff_src.shape == shape
            assert not got.diff_gamma.any()
            assert not got.diff_beta.any()
