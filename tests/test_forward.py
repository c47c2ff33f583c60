"""Forward passes on special values: masks at their thresholds, statistics that are not finite.

The laws have random values.
"""

import itertools
import types

import helpers
import numpy as np
import pytest
from helpers import EPSILON, formats

import onedsl
from onedsl import testing

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # of NaN and infinities

MOMENTUM = 0.9
SHAPES = [
    *((4, 16, (5, 5)), (7, 40, (3,)), (300, 20, ())),
    *((2, 24, (30, 31)), (3, 5, (2, 3, 4)), (1, 3, (17,))),
]
clips = pytest.mark.parametrize("clip", [None, 1.0], ids=["relu", "clip"])


def inputs_of(shape, dtype="f32", stats="f32", data_format="NXC", seed=0):
    """Return inputs of the forward pass and of its gradient."""
    shape = helpers.shape_of(data_format, *shape)
    problem = testing.random_problem(shape, dtype, stats, data_format=data_format, seed=seed)
    return types.SimpleNamespace(**helpers.values_of(problem))


def forward_of(inputs):
    return inputs.src, inputs.mean, inputs.variance, inputs.gamma, inputs.beta


def next_to_thresholds(inputs, clip, op):
    """Choose beta so that one element of each channel is next to zero or the clip, unrounded."""
    linear = op(inputs.src, inputs.mean, inputs.variance, inputs.gamma, 0 * inputs.beta).dst
    channels = inputs.beta.size
    values = np.moveaxis(linear, -1 if op.data_format == "NXC" else 1, 0).reshape(channels, -1)
    values = values[np.arange(channels), np.arange(channels) % values.shape[1]]
    threshold = np.arange(channels) % 2 * (clip or 0)
    inputs.beta = (threshold - values.astype(np.float32)).astype(inputs.beta.dtype)


def with_tiny_dst(inputs, clip, op):
    """Some of dst are subnormal numbers, and some are rounded to zero."""
    size = np.float32([1e-7, 1e-38])[np.arange(inputs.gamma.size) % 2]
    inputs.gamma = (inputs.gamma * size).astype(inputs.gamma.dtype)
    inputs.beta = 0 * inputs.beta


def with_nan_and_inf(inputs, clip, op):
    inputs.src.reshape(-1)[[1, -1]] = np.nan, np.inf


# The float64 reference of bf16 statistics is not rounded as the kernel is.
CHANGES = [None, with_tiny_dst, with_nan_and_inf, next_to_thresholds]
CHANGED_TYPES = [
    (*row, change)
    for row, change in itertools.product(helpers.TYPES, CHANGES)
    if (row, change) != (("bf16", "bf16"), next_to_thresholds)
]


@pytest.mark.parametrize(("dtype", "stats", "change"), CHANGED_TYPES)
@formats
@clips
def test_mask_from_src(change, clip, data_format, dtype, stats):
    """Bitwise as from dst. dst of bf16 statistics is computed before they are rounded."""
    attributes = {"data_format": data_format, "clip": clip, "activation": "relu"}
    op = onedsl.BatchNormActForwardTraining(EPSILON, MOMENTUM, **attributes)
    linear = onedsl.BatchNormForwardTraining(EPSILON, MOMENTUM, data_format)
    gradient = onedsl.BatchNormActTrainingBackward(EPSILON, **attributes)
    for seed, shape in enumerate(SHAPES):
        inputs = inputs_of(shape, dtype, stats, data_format, seed)
        if change:
            change(inputs, clip, linear)
        forward = op(*forward_of(inputs))
        statistics = forward.batch_mean, forward.batch_variance
        dst = forward.dst
        if stats == "bf16":
            affine = {"gamma": inputs.gamma, "beta": inputs.beta, "epsilon": EPSILON}
            mean, variance = (a.astype(np.float64) for a in statistics)
            dst = testing.batch_norm(
                inputs.src, mean=mean, variance=variance, data_format=data_format, **affine
            ).astype(inputs.src.dtype)
        arguments = inputs.src, inputs.diff_dst, *statistics, inputs.gamma, inputs.beta
        for a, b in zip(gradient(*arguments)[:3], gradient(*arguments, dst=dst)[:3], strict=True):
            assert a.tobytes() == b.tobytes()


@helpers.types
@formats
@clips
def test_mask_of_any_dst(clip, data_format, dtype, stats):
    """The results are bitwise the gradient without ReLU of the masked diff_dst."""
    special = [0, -0.0, 1, 0.999, 0.5, 2.0**-24, -(2.0**-24), 1e-45, np.inf, -np.inf, np.nan]
    gradient = onedsl.BatchNormActTrainingBackward(
        EPSILON, data_format, clip=clip, activation="relu"
    )
    without_relu = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    for seed, shape in enumerate(SHAPES):
        src, diff_dst, *statistics = testing.random_problem(
            helpers.shape_of(data_format, *shape), dtype, stats, data_format=data_format
        )
        dst = np.random.default_rng(seed).choice(special, src.shape).astype(src.dtype)
        is_closed = (dst <= 0) | (dst >= (clip or np.nan))
        masked = np.where(is_closed, 0 * diff_dst, diff_dst)
        got = gradient(src, diff_dst, *statistics, dst=dst, diff_residual=True)
        expected = (*without_relu(src, masked, *statistics), masked)
        for a, b in zip(got, expected, strict=True):
            assert np.array_equal(a, b)


# The types of 16 bits round some of these to 0 or to infinity.
CLIPS = [None, 6, 0.1, 1, 1e-3, 65504, 65519, 65520, 1e6, 3e38, 1e-7, 2.9e-8, 1e-9, 1e-40, 1e-45]


@helpers.dtypes
@formats
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.filterwarnings("ignore:overflow")
def test_relu_next_to_its_thresholds(clip, dtype, data_format):
    """With gamma = 0, dst is beta: f32 numbers next to those where its rounding changes."""
    narrow = helpers.NUMPY[dtype].type
    bound = narrow(np.float32(clip or np.inf))
    least, below = np.nextafter(narrow(0), narrow(1)), np.nextafter(bound, narrow(0))
    below, bound, least = (np.float32(value) for value in (below, bound, least))
    to_infinity = 65520, 2.0**128 - 2.0**119  # the least numbers that f16 and bf16 round so
    middles = [0, -0.0, least / 2, least, below, below + (bound - below) / 2, bound, *to_infinity]
    middles = np.float32(middles)
    beta = np.concatenate([middles, *np.nextafter(middles, np.float32([[-np.inf], [np.inf]]))])
    shape = helpers.shape_of(data_format, 3, beta.size, (5,))
    src, diff_dst, mean, variance, gamma = testing.random_problem(
        shape, dtype, data_format=data_format
    )
    dst = beta.astype(narrow).astype(np.float32)
    attributes = {"data_format": data_format, "clip": clip, "activation": "relu"}
    forward = onedsl.BatchNormActForwardTraining(EPSILON, **attributes)
    got = forward(src, mean, variance, 0 * gamma, beta).dst.astype(np.float32)
    kept = onedsl.DataFormat(data_format).broadcast_shape(shape)
    assert (got == dst.clip(0, bound).reshape(kept)).all()
    assert not np.signbit(got).any()
    is_open = (dst > 0) & ~(dst >= (bound if clip else np.nan))
    sums = diff_dst.astype(np.float64).sum((0, 1) if data_format == "NXC" else (0, 2))
    gradient = onedsl.BatchNormActTrainingBackward(EPSILON, **attributes)
    got = gradient(src, diff_dst, mean, variance, 0 * gamma, beta)
    assert np.array_equal(got.diff_beta != 0, is_open)
    assert testing.relative_l2(got.diff_beta, np.where(is_open, sums, 0)) < 1e-6


# Columns and planes of short and long channels.
SHAPES_OF_STATISTICS = [(3, 5, (7,)), (50, 3, (300,)), (3000, 5, ()), (999, 64, ()), (64, 2, (3,))]


def tensors_of(fill, dtype="f4"):
    """Yield tensors in each format, made from the number of channels and of their elements."""
    for data_format in helpers.FORMATS:
        for batch, channels, spatial in SHAPES_OF_STATISTICS:
            values = fill(channels, batch * int(np.prod(spatial)))
            values = values.reshape(channels, batch, *spatial)
            axis = onedsl.DataFormat(data_format).channel_axis
            yield data_format, np.moveaxis(values, 0, axis).astype(dtype, order="C")


def statistics_of(data_format, src):
    """Return the results, and the exact mean and variance."""
    ones = np.ones(src.shape[onedsl.DataFormat(data_format).channel_axis], np.float32)
    got = onedsl.BatchNormForwardTraining(EPSILON, data_format=data_format)(src, ones, ones)
    axes = onedsl.DataFormat(data_format).summed_axes(src.ndim)
    return got, src.mean(axes, dtype="f8"), src.astype("f8").var(axes)


def check_statistics(data_format, src):
    """The mean is rounded to f32; the error of its sum is relative to the standard deviation."""
    got, mean, variance = statistics_of(data_format, src)
    error_of_mean = np.abs(got.batch_mean - mean)
    assert (error_of_mean <= 2.0**-23.9 * np.abs(mean) + 1e-6 * np.sqrt(variance)).all()
    assert (np.abs(got.batch_variance - variance) <= 1e-6 * variance).all()


@pytest.mark.parametrize("mean", [1e2, -1e4, 1e6])
def test_statistics_with_a_large_mean(mean):
    """E[x^2] - E[x]^2 in f32 has no correct digit here."""
    rng = np.random.default_rng(0)

    def fill(channels, count):
        return mean * np.arange(1, channels + 1)[:, None] + rng.uniform(-1, 1, (channels, count))

    for data_format, src in tensors_of(fill):
        check_statistics(data_format, src)
    check_statistics("NXC", fill(2, 1_000_000).T.astype("f4"))


@formats
def test_documented_range(data_format):
    """Squares are below 1e36, and all sums of them."""
    src = np.random.default_rng(0).choice(np.float32([-9e17, 9e17]), (64, 40, 40))
    zeros = np.zeros(40, np.float32)
    got = onedsl.BatchNormForwardTraining(EPSILON, data_format=data_format)(src, zeros, zeros)
    axes = (0, 1) if data_format == "NXC" else (0, 2)
    assert testing.relative_l2(got.batch_variance, src.astype("f8").var(axes)) < 1e-6


@pytest.mark.parametrize("period", [2, 7, 16, None, "samples"])
def test_statistics_with_outliers(period):
    """The pivot is the mean of eight samples: of outliers, or of all elements but these."""
    rng = np.random.default_rng(0)

    def fill(channels, count):
        values = 3 + 1e-3 * rng.uniform(-1, 1, (channels, count))
        step = {None: count, 16: count // 16 + 1}.get(period, period)
        if period == "samples":
            values[:, (2 * np.arange(8) + 1) * count // 16] += 1e3
        else:
            values[:, rng.integers(step) :: step] = 1e4
        return values

    for data_format, src in tensors_of(fill):
        check_statistics(data_format, src)


@helpers.dtypes
def test_the_variance_of_a_constant_is_zero(dtype):
    def fill(channels, count):
        return np.repeat(0.1 + np.arange(channels), count)

    for data_format, src in tensors_of(fill, helpers.NUMPY[dtype]):
        got, mean, _ = statistics_of(data_format, src)
        assert not got.batch_variance.any()
        assert np.array_equal(got.batch_mean, mean)
        assert not got.dst.any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_statistics_that_are_not_finite(value):
    """Infinities and NaN affect only their channels, and there the results are the formulas'."""
    rng = np.random.default_rng(0)

    def fill(channels, count):
        values = rng.uniform(-1, 1, (channels, count))
        values[rng.integers(channels), rng.integers(count)] = value
        if np.isnan(value):
            values[rng.integers(channels)] = value
        return values

    for data_format, src in tensors_of(fill):
        got, mean, variance = statistics_of(data_format, src)
        np.testing.assert_allclose(got.batch_mean, mean, rtol=0, atol=1e-6)
        np.testing.assert_allclose(got.batch_variance, variance, rtol=0, atol=1e-6)
        kept = onedsl.DataFormat(data_format).broadcast_shape(src.shape)
        finite = np.broadcast_to(np.isfinite(mean).reshape(kept), src.shape)
        assert np.array_equal(np.isfinite(got.dst), finite)


def test_inputs_that_belong_together():
    """The law of rejections has invalid combinations, too."""
    inputs = inputs_of((4, 16, (5, 5)))
    src, mean, variance, gamma, beta = forward_of(inputs)
    gradient = onedsl.BatchNormActTrainingBackward(EPSILON, activation="relu")
    arguments = src, inputs.diff_dst, mean, variance
    with pytest.raises(TypeError, match="gamma and beta must be given together, gamma is missing"):
        gradient(*arguments, beta=beta)
    gradient(*arguments, beta=beta, dst=src)  # which is not read
    with pytest.raises(TypeError, match="diff_residual must be True or False, got ndarray"):
        gradient(*arguments, gamma, beta, src, diff_residual=src)
    with pytest.raises(onedsl.UnsupportedError, match="dst must be given: oneDNN's ReLUBackward"):
        gradient(*arguments, gamma, beta, backend="onednn")
    assert gradient(*arguments, gamma, beta, src).diff_residual is not None
    assert gradient(*arguments, gamma, beta, src, diff_residual=False).diff_residual is None
    assert gradient(*arguments, gamma, beta, dst=src).diff_residual is None
    op = onedsl.BatchNormActForwardTraining(EPSILON, MOMENTUM, activation="relu")
    for backend in helpers.BACKENDS:
        out = onedsl.BatchNormForward(inputs.residual, *np.empty((4, 16), np.float32))
        with pytest.raises(ValueError, match=r"out\.dst must not overlap residual. It may be src"):
            op(*forward_of(inputs), inputs.residual, out=out, backend=backend)


@pytest.mark.parametrize("backend", ["native", "onednn"])
def test_the_largest_and_smallest_attributes(backend):
    """Regression: oneDNN's graph refused 3.4028235e38, the shortest text of float32's maximum."""
    src = np.arange(128, dtype=np.float32).reshape(2, 4, 4, 4)
    mean, variance = np.zeros(4, np.float32), np.ones(4, np.float32)
    for epsilon, clip in (3.4028235e38, 3.4028235e38), (1e-45, 1e-45):
        op = onedsl.BatchNormActForwardTraining(epsilon, 0.5, clip=clip, activation="relu")
        result = op(src, mean, variance, backend=backend)
        assert np.all((result.dst >= 0) & (result.dst <= np.float32(clip)))
