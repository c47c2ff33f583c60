"""The kernels' conversions between f32 and 16-bit types: every number, and every rounding.

NumPy and ml_dtypes compute the expected numbers. Rounding a NaN must not carry into its sign.
test_isa.py runs this file again with lower instruction sets.
"""

import numpy as np
import pytest
from helpers import NUMPY, formats

import onedsl

pytestmark = [
    pytest.mark.parametrize("dtype", ["bf16", "f16"]),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of the casts of NaN and infinities
]
# One row is computed in columns. 40 rows in NCX are planes, and need non-temporal stores.
rows = pytest.mark.parametrize("rows", [1, 40])
NAN = np.uint32([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF]).view("f4")


def every_number(dtype):
    return np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype])


def finite_numbers(dtype):
    """Return the finite numbers of a 16-bit type in float64, sorted."""
    numbers = every_number(dtype).astype(np.float64)
    return np.unique(numbers[np.isfinite(numbers)])


def every_rounding(dtype):
    """Return f32 numbers: those of a type, the midpoints between them, and those next to these."""
    exact = finite_numbers(dtype)
    first_infinite = exact[-1] + (exact[-1] - exact[-2]) / 2
    middles = [-first_infinite, *(exact[1:] + exact[:-1]) / 2, first_infinite]
    middles = np.float32(middles)
    next_to = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    most = np.finfo(np.float32).max
    return np.concatenate([every_number(dtype).astype("f4"), middles, *next_to, [-most, most], NAN])


def same(got, expected):
    """Check the types, and that numbers are equal, or NaN where NaN is expected."""
    assert got.dtype == expected.dtype
    pair = got.astype(np.float32), expected.astype(np.float32)
    if not np.array_equal(*pair, equal_nan=True):
        np.testing.assert_array_equal(*pair)  # says where, and takes longer


def in_format(numbers, data_format):
    """Return rows of channels, or one image with these rows in its last axis."""
    return numbers if data_format == "NXC" else np.ascontiguousarray(numbers.T)[None]


def mean_and_variance(channels):
    return [np.full(channels, value, np.float32) for value in (0, 1)]


@rows
@formats
def test_stores(dtype, data_format, rows):
    """With src = 0, dst is beta, rounded."""
    beta = every_rounding(dtype)
    src = in_format(np.zeros((rows, beta.size), NUMPY[dtype]), data_format)
    op = onedsl.BatchNormForwardTraining(1, data_format=data_format)
    dst = op(src, *mean_and_variance(beta.size), np.ones_like(beta), beta).dst
    expected = in_format(beta.astype(NUMPY[dtype])[None], data_format)
    same(dst, np.broadcast_to(expected, dst.shape))


@rows
@formats
def test_loads(dtype, data_format, rows):
    """diff_beta is the only number of a channel; with src = 0, dst is a positive residual."""
    numbers = every_number(dtype)
    tensor = np.zeros((rows, numbers.size), NUMPY[dtype])
    channels = np.arange(numbers.size)
    tensor[channels % rows, channels] = numbers
    tensor = in_format(tensor, data_format)
    src, statistics = np.zeros_like(tensor), mean_and_variance(numbers.size)
    op = onedsl.BatchNormTrainingBackward(1, data_format)
    same(op(src, tensor, *statistics).diff_beta, numbers.astype(np.float32))
    relu = onedsl.BatchNormActForwardTraining(1, data_format=data_format, activation="relu")
    same(relu(src, *statistics, None, None, tensor).dst, np.maximum(tensor, 0))


def test_statistics(dtype):
    """diff_gamma is the sum of a number, half of the next step, and one more bit, rounded."""
    numbers = finite_numbers(dtype)
    half_step = np.diff(numbers, append=2 * numbers[-1] - numbers[-2]) / 2
    bit = np.spacing(np.abs(numbers).astype("f4")).astype("f8")
    terms = [[numbers, i * half_step, j * bit] for i, j in ((0, 0), (1, -1), (1, 0), (1, 1))]
    terms = np.concatenate([np.hstack(terms), -np.hstack(terms)], axis=1)
    sums = terms.sum(0)
    src = np.where(np.abs(sums) < 1, 2.0**-12, 1)  # small terms are products of 16-bit numbers
    diff_dst = (terms / src).astype(NUMPY[dtype])
    is_exact = (sums == sums.astype(np.float32)) & (diff_dst == terms / src).all(0)
    assert is_exact.sum() > 200_000
    diff_dst, src = diff_dst[:, is_exact], src.astype(NUMPY[dtype])[is_exact]
    arguments = np.repeat(src[None], 3, axis=0), diff_dst.copy()
    zeros = np.zeros_like(src)
    if dtype == "bf16":
        got = onedsl.BatchNormTrainingBackward(1)(*arguments, zeros, zeros).diff_gamma
    else:
        zeros = zeros[None]
        got = onedsl.BatchNormalizationGrad(1)(*arguments, zeros, zeros, 1 + zeros)[1][0]
    same(got, sums[is_exact].astype(np.float32).astype(NUMPY[dtype]))


def test_loads_of_statistics(dtype):
    """dst of src = 0 is beta, and the frozen gradient of ones is the scale."""
    numbers = every_number(dtype)
    zeros = np.zeros_like(numbers)
    tensor = zeros[None]
    if dtype == "bf16":
        got = onedsl.BatchNormForwardTraining(1)(tensor, zeros, zeros, zeros, numbers).dst
    else:
        op = onedsl.BatchNormalizationGrad(1)
        got = op(tensor, tensor + 1, tensor, tensor, numbers[None]).output_gradient
    same(got[0], numbers)


@pytest.mark.parametrize("which", ["mean", "variance", "gamma", "beta"])
def test_nan_of_every_payload(dtype, which):
    src = np.arange(4 * NAN.size).reshape(4, -1).astype(NUMPY[dtype])
    ones = np.ones_like(NAN)
    values = dict.fromkeys(["mean", "variance", "gamma", "beta"], ones) | {which: NAN}
    mean, variance, gamma, beta = values.values()
    results = []
    if which != "beta":
        op = onedsl.BatchNormTrainingBackward(1e-5)
        results.append(op(src, src, mean, variance, gamma).diff_src)
    if which in ("gamma", "beta"):
        op = onedsl.BatchNormActForwardTraining(1e-5, activation="relu")
        results.append(op(src, ones, ones, gamma, beta).dst)
    assert all(np.isnan(array.astype(np.float32)).all() for array in results)
