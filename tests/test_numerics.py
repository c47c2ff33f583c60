"""Numerically difficult inputs: cancellation, large means, long sums, NaN, extreme attributes.

The laws have random values of moderate size.
"""

import helpers
import numpy as np
import pytest
from helpers import EPSILON, formats, usable

import onedsl
from onedsl import testing


def run(problem, epsilon, data_format, backend="native"):
    op = onedsl.BatchNormTrainingBackward(epsilon, data_format)
    return op(*problem, backend=backend)


def reference(problem, epsilon, data_format):
    return testing.batch_norm_backward(*problem, epsilon=epsilon, data_format=data_format)


@usable()
@formats
@pytest.mark.parametrize("channels", [1, 3, 16, 33])
def test_one_and_two_elements_per_channel(dtype, data_format, channels, backend):
    one, two = (
        testing.random_problem(
            helpers.shape_of(data_format, batch, channels, (1, 1)), dtype, data_format=data_format
        )
        for batch in (1, 2)
    )
    # With batch statistics, the gradient of one element is exactly zero: dy - dy/1 - 0. The mean
    # of one element is exact.
    assert np.array_equal(one.mean, one.src.reshape(-1).astype(np.float32))
    got = run(one, EPSILON, data_format, backend)
    assert not got.diff_src.astype(np.float32).any()
    assert not got.diff_gamma.any()
    assert np.array_equal(got.diff_beta, one.diff_dst.reshape(-1).astype(np.float32))
    # The terms of two cancel almost completely, so the allowed error is relative to their size.
    got, expected = run(two, EPSILON, data_format, backend), reference(two, EPSILON, data_format)
    scale = (two.gamma / np.sqrt(two.variance + EPSILON)).astype(np.float64)
    kept = onedsl.DataFormat(data_format).broadcast_shape(two.src.shape)
    terms = np.abs(scale.reshape(kept) * two.diff_dst.astype(np.float64)).max(0, keepdims=True)
    error = np.abs(got.diff_src.astype(np.float64) - expected.diff_src)
    rounded = 0 if dtype == "f32" else 2.0**-8
    assert (error <= 16 * 2.0**-24 * terms + rounded * np.abs(expected.diff_src)).all()


@usable()
@formats
def test_zero_where_the_reference_is_zero(dtype, data_format, backend):
    """With batch statistics, a constant diff_dst has the gradient zero."""
    shape = helpers.shape_of(data_format, 4, 5, (4, 4))
    src, diff_dst, *statistics = testing.random_problem(shape, dtype, data_format=data_format)
    zeros = run((src, np.zeros_like(diff_dst), *statistics), EPSILON, data_format, backend)
    for member in zeros:
        assert not member.astype(np.float32).any()
    gamma_zero = [*statistics[:2], np.zeros_like(statistics[2])]
    got = run((src, diff_dst, *gamma_zero), EPSILON, data_format, backend)
    assert not got.diff_src.astype(np.float32).any()
    assert got.diff_beta.all()
    # Each channel has 64 elements, diff_dst = 1/2 and src = mean +- 1: every operation is exact.
    signs = np.where(np.indices(shape).sum(0) % 2 == 0, 3, 1).astype(src.dtype)
    ones = np.ones(5, np.float32)
    exact = run(
        (signs, np.full_like(diff_dst, 0.5), 2 * ones, ones, ones), 1e-30, data_format, backend
    )
    assert not exact.diff_src.astype(np.float32).any()
    assert not exact.diff_gamma.any()
    assert (exact.diff_beta == 32).all()


@usable("bf16")
def test_bf16_statistics_are_rounded_once(dtype, backend):
    """Sums of bf16 statistics are f32 sums that are rounded at the end, ties to even."""
    bf16 = helpers.NUMPY[dtype]
    counts = np.arange(1200)  # from 256 on, odd numbers are not bf16
    diff_dst = (counts[:, None] < counts).astype(bf16)  # channel c has c ones
    zeros, ones = (np.full(counts.size, value, bf16) for value in (0, 1))
    got = run((diff_dst, diff_dst, zeros, ones), EPSILON, "NXC", backend)
    assert np.array_equal(got.diff_beta, counts.astype(bf16))


CHANNEL, CHANNELS = 2, 21


@usable()
@formats
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "minus_inf"])
@pytest.mark.parametrize("where", ["src", "diff_dst", "mean", "variance", "gamma"])
def test_nan_and_inf_stay_in_their_channel(dtype, data_format, where, value, backend):
    """A negative variance is not rejected, because a check would have to read all values."""
    shape = helpers.shape_of(data_format, 3, CHANNELS, (5, 4))
    good, expected = helpers.case(shape, dtype, "f32", data_format)
    bad = getattr(good, where).copy()
    first = np.moveaxis(bad, -1 if data_format == "NXC" else 1, 0) if bad.ndim > 1 else bad
    if bad.ndim > 1:
        first[CHANNEL][1, 2, 3] = value
    else:
        first[CHANNEL] = value
    got = run(good._replace(**{where: bad}), EPSILON, data_format, backend)
    axis = shape.index(CHANNELS)

    def without_channel(result):
        return result._make(np.delete(a, CHANNEL, axis if a.ndim > 1 else 0) for a in result)

    testing.assert_close(without_channel(got), without_channel(expected))
    inside = np.take(got.diff_src, CHANNEL, axis).astype(np.float32)
    gamma, beta = got.diff_gamma[CHANNEL], got.diff_beta[CHANNEL]
    if where == "variance" and value == np.inf:
        assert not inside.any()  # divided by infinity
        assert gamma == 0
    else:
        assert not np.isfinite(inside).any()
        assert np.isfinite(gamma) == (where == "gamma")
    if where == "variance" and value == -np.inf:
        assert np.isnan(inside).all()
    if where == "diff_dst":
        np.testing.assert_equal(beta, np.float32(value))
        np.testing.assert_equal(abs(gamma), abs(np.float32(value)))
    else:
        np.testing.assert_allclose(beta, expected.diff_beta[CHANNEL], rtol=1e-6)


@pytest.mark.parametrize("elements", [64, 9000])
def test_an_infinite_gradient_has_an_infinite_sum_of_its_sign(elements):
    inputs = testing.random_problem((elements, 4))
    inputs.diff_dst[5] = np.inf
    deviation = inputs.src[5] - inputs.mean
    got = onedsl.BatchNormTrainingBackward(epsilon=EPSILON)(*inputs).diff_gamma
    np.testing.assert_equal(got, np.copysign(np.float32(np.inf), deviation))


@usable("f32", "bf16")
@formats
@pytest.mark.parametrize("epsilon", [1e-30, 1e-12, 0.5, 1e30])
def test_epsilon_of_any_size(dtype, data_format, epsilon, backend):
    """Epsilon is added to the variance, which may be zero, under the root."""
    shape = helpers.shape_of(data_format, 4, 5, (4, 3))
    problem = helpers.case(shape, dtype, "f32", data_format).problem
    src, mean = np.full_like(problem.src, 0.75), np.full(5, 0.75, "f4")
    constant = problem._replace(src=src, mean=mean, variance=np.zeros(5, "f4"))
    for given in (problem, constant):
        got = run(given, epsilon, data_format, backend)
        testing.assert_close(got, reference(given, epsilon, data_format))
    assert not got.diff_gamma.any()


@formats
@pytest.mark.parametrize(
    ("dtype", "count", "shift", "independent", "tolerance"),
    [
        *((dtype, 400_000, 0, True, 5e-7) for dtype in helpers.NUMPY),
        ("f32", 100_000, 0, False, 3e-7),
        # The mean is a thousand times the standard deviation.
        ("f32", 1_000_000, 1500, False, 3e-7),
    ],
)
def test_sums_of_many_elements(dtype, count, shift, independent, tolerance, data_format):
    """Sums have f32 accuracy, and are off by less than an ulp for 100,000 elements.

    Regression: src - mean has the same rounding error for all src of one binade. If diff_dst is
    independent of src, diff_gamma is small compared to its terms and such an error is visible.
    """
    shape = (count, 3) if data_format == "NXC" else (40, 3, count // 40)
    problem = helpers.even_problem(shape, dtype, data_format=data_format)
    if shift:
        src = (problem.src.astype(np.float64) + shift).astype(np.float32)
        axes = onedsl.DataFormat(data_format).summed_axes(src.ndim)
        mean = src.mean(axes, dtype=np.float64).astype(np.float32)
        problem = problem._replace(src=src, mean=mean)
    if independent:
        noise = np.random.default_rng(1).standard_normal(shape) + 0.25
        problem = problem._replace(diff_dst=noise.astype(problem.src.dtype))
    expected, got = reference(problem, EPSILON, data_format), run(problem, EPSILON, data_format)
    assert testing.relative_l2(got.diff_gamma, expected.diff_gamma) < tolerance
    assert testing.relative_l2(got.diff_beta, expected.diff_beta) < 1e-7
    assert testing.relative_l2(got.diff_src, expected.diff_src) < testing.TOLERANCES[dtype]
    if not shift and not independent:
        for sums, exact in zip(got[1:], expected[1:], strict=True):
            assert (np.abs(sums - exact) < np.spacing(np.abs(exact).astype(np.float32))).all()


@formats
@pytest.mark.parametrize("spatial", [(1,), (7,), (49, 50)])
@pytest.mark.parametrize(
    ("size", "gradient"), [(1e37, 1e-9), (1e30, 1e4), (1e5, 1e29), (1e-19, 1e-9)]
)
def test_documented_range(data_format, spatial, size, gradient):
    """Products are below 1e36, and above 1e-30 except for some that do not contribute."""
    shape = helpers.shape_of(data_format, 60, 5, spatial)
    src, diff_dst, mean, _, gamma = testing.random_problem(shape, data_format=data_format)
    src, mean = src * np.float32(size), mean * np.float32(size)
    problem = (src, diff_dst * np.float32(gradient), mean, np.full(5, 0.5, np.float32), gamma)
    epsilon = min(1e30, max(1e-30, size**2 / 10))
    got = run(problem, epsilon, data_format)
    testing.assert_close(got, reference(problem, epsilon, data_format))


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@formats
def test_two_large_neighbors(data_format, parts):
    """The mean is no float32."""
    src = np.float32([1e7, 1e7 + 1]).reshape(2, 1, 1)
    op = onedsl.BatchNormForwardTraining(1e-3, data_format=data_format)
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    if parts:
        moments = op.reduce(src[:1]) + op.reduce(src[1:])
        halves = [op.apply(moments, part, zero, one) for part in (src[:1], src[1:])]
        dst = np.concatenate([half.dst for half in halves])
    else:
        dst = op(src, zero, one).dst
    expected = 0.5 / np.sqrt(0.25 + 1e-3)
    np.testing.assert_allclose(dst.ravel(), [-expected, expected], rtol=2e-7)
    # A gamma or beta that is not finite is not multiplied by the rest of the mean.
    inf = np.float32([np.inf])
    for gamma, beta, expected in ((inf, zero, [np.nan, np.inf]), (one, inf, [np.inf, np.inf])):
        np.testing.assert_array_equal(op(src, zero, one, gamma, beta).dst.ravel(), expected)


@helpers.dtypes
@pytest.mark.parametrize("shape", [(8, 5, (7, 9)), (600, 33, ()), (2, 3, (90, 100))])
@formats
def test_mean_far_above_the_deviation(data_format, shape, dtype):
    """Of results that are rounded to 16 bits, only the rounding is left."""
    shape = helpers.shape_of(data_format, *shape)
    channel = onedsl.DataFormat(data_format).broadcast_shape(shape)
    rng = np.random.default_rng(3)
    size = {"f32": 1e-3, "bf16": 16, "f16": 2}[dtype]
    src = (1000 + size * rng.standard_normal(shape)).astype(helpers.NUMPY[dtype])
    zeros, ones, gamma, beta = np.float32([[0], [1], [0.7], [-0.3]]).repeat(np.prod(channel), 1)
    op = onedsl.BatchNormForwardTraining(1e-10, data_format=data_format)
    dst = op(src, zeros, ones, gamma, beta).dst.astype(np.float64)
    expected = testing.batch_norm(src, gamma, beta, epsilon=1e-10, data_format=data_format)
    rounding = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}[dtype]
    assert (np.abs(dst - expected) <= rounding * np.abs(expected) + 8 * 2.0**-24).all()
