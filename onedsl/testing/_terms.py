"""The terms that the elements of a result are sums of. Rounding errors are relative to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from ..tensors.dtypes import DTYPES
from ._results import Float64, Result, Terms

PIVOT = 2.0**-11
"""Maximum difference of the mean and the number that kernels subtract from src, relative to the
mean."""

ARGUMENT_ERROR = 2.0**-20
"""Error of an activation's argument, relative to its terms."""

ROUNDING: dict[str, float] = {"f32": 0.0, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Error by rounding to a dtype, relative to the rounded number. That of f32 is one of many."""

_SLOPE, _CURVATURE = 1.5, 0.8
"""Upper bounds of the slopes and of the second derivatives of all activations, by Hardswish and
GELU."""

ONEDNN_SUM_ERROR = 1e-7
"""Relative error of oneDNN's f32 sums, times the square root of the number of elements per channel.
See `onednn_sum_error`."""


def onednn_sum_error(num_summed: int) -> float:
    """Return the relative error of oneDNN's sums over a channel, which it computes in f32.

    One thread adds up to all elements of a channel (always in NCX), one after the other in each
    vector lane. Two errors grow with their number n, both confirmed by measurements with n to 2^19:

    - Random rounding: ``ONEDNN_SUM_ERROR * sqrt(n)``.
    - Bias in sums of squares, the variance: small terms are rounded to multiples of the last bit of
      the sum, and most squares are small: ``0.02 * (n * 2**-23) ** 1.5``.

    Parameters
    ----------
    num_summed : int
        Number of elements per channel.

    Notes
    -----
    The errors are not bounded by this for channels of few different values (integers, for example),
    where rounding has the same sign in many additions. They can then reach ``n * 2**-24``.
    """
    return ONEDNN_SUM_ERROR * math.sqrt(num_summed) + 0.02 * math.pow(num_summed * 2.0**-23, 1.5)


AnyResult = TypeVar("AnyResult", bound=Result)


def rounding_of(array: Any) -> tuple[float, float]:
    """Return the errors by rounding to an array's dtype, relative and absolute, 0 for other dtypes.

    The absolute one is that of tiny numbers.
    """
    for name, dtype in DTYPES.items():
        if dtype == getattr(array, "dtype", None):
            info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
            return ROUNDING[name], float(info.smallest_subnormal)
    return 0.0, 0.0


def attach(result: AnyResult, terms: Sequence[Terms]) -> AnyResult:
    """Set the terms of a result, in the shapes of its members, and return it."""
    members: Any = result
    result.terms = tuple(
        Terms(*(np.broadcast_to(a, np.shape(term.magnitude)).reshape(array.shape) for a in term))
        for array, term in zip(members, terms, strict=True)
    )
    return result


def summed_axes(x: Float64, statistic: Float64) -> tuple[int, ...]:
    """Return the axes along which a statistic broadcasts to x."""
    sizes = zip(statistic.shape, x.shape, strict=True)
    return tuple(axis for axis, (size, full) in enumerate(sizes) if size != full)


def of_gradients(
    x: Float64,
    dy: Float64,
    mean: Float64,
    variance: Float64,
    gamma: Float64,
    *,
    epsilon: float,
    statistics: str,
    of_dy: Terms | None = None,
) -> list[Terms]:
    """Return the terms of diff_src, diff_gamma and diff_beta. Statistics broadcast to x.

    `of_dy` are the terms of dy, if it is computed, too.
    """
    axes = summed_axes(x, mean)
    rstd = 1 / np.sqrt(variance + epsilon)
    scale, xhat = np.abs(gamma * rstd), (x - mean) * rstd
    factor = np.abs(xhat) + PIVOT * np.abs(mean) * rstd
    share = mean.size / x.size if statistics == "batch" and x.size else 0.0

    def of(terms: Float64, factor: Float64) -> tuple[Float64, Float64, Float64]:
        """Return the mean's part of diff_src, and the sums, with terms and factor for dy, xhat."""
        diff_beta = np.sum(terms, axis=axes, keepdims=True)
        diff_gamma = np.sum(terms * factor, axis=axes, keepdims=True)
        of_sums = np.abs(diff_beta) + np.abs(xhat * diff_gamma)
        return scale * share * of_sums, np.abs(diff_gamma), np.abs(diff_beta)

    magnitude, _, slack = of_dy or Terms(np.abs(dy), 0.0, np.zeros_like(dy))
    magnitudes, sums, slacks = of(magnitude, factor), of(dy, xhat), of(np.asarray(slack), factor)
    all_terms = [Terms(*each) for each in zip(magnitudes, sums, slacks, strict=True)]
    first = all_terms[0]
    all_terms[0] = Terms(
        first.magnitude + scale * magnitude, first.sums, first.slack + scale * slack
    )
    return all_terms


def of_argument(
    x: Float64,
    mean: Float64,
    sum_: Float64,
    *others: Float64 | None,
    condition: Float64 | float = 1.0,
) -> Float64:
    """Return the magnitude of the terms of batch norm's result, plus a residual.

    Parameters
    ----------
    x, mean : ndarray
    sum_ : ndarray
        variance + epsilon.
    *others : ndarray or None
        gamma, beta and residual.
    condition : ndarray or float
        The magnitude of the terms of sum_, divided by sum_.
    """
    gamma, *added = others
    deviation = np.abs(x - mean) * (1 + condition) + np.abs(mean)
    scaled: Float64 = np.abs(1.0 if gamma is None else gamma) * deviation / np.sqrt(sum_)
    return sum((np.abs(a) for a in added if a is not None), scaled)


def of_activation_gradient(
    activation: str,
    parameter: float | None,
    y: Float64,
    magnitude: Float64,
    diff_dst: Float64,
    derivative: Float64,
    rounding: tuple[float, float],
) -> Terms:
    """Return the terms of an activation's gradient, ``diff_dst * derivative``.

    `y` is the activation's argument, `magnitude` that of the terms of y. `rounding` are the errors
    by rounding to the dtype of the activation's result, which decides the gradient of a ReLU or a
    LeakyReLU.
    """
    slope = 0.01 if parameter is None else parameter
    jumps: dict[str, tuple[tuple[float | None, ...], float]] = {
        "relu": ((0, parameter), 1.0),
        "leaky_relu": ((0,), abs(1 - slope)),
        "hardswish": ((-3, 3), 0.5),
    }
    kinks, jump = jumps.get(activation, ((), 0.0))
    margin = ARGUMENT_ERROR * magnitude
    if activation in ("relu", "leaky_relu"):
        margin = margin + rounding[0] * np.abs(y) + rounding[1]
    # If all terms are 0, as with gamma = beta = 0, the argument is 0 without an error.
    near = [(np.abs(y - kink) <= margin) & (magnitude > 0) for kink in kinks if kink is not None]
    slack = np.abs(diff_dst) * jump * (np.any(near, axis=0) if near else 0.0)
    error = 0.0 if activation in ("relu", "leaky_relu") else _CURVATURE * magnitude
    return Terms(np.abs(diff_dst) * (np.abs(derivative) + error), 0.0, slack)


def _slope(activation: str, parameter: float | None) -> float:
    """Return a bound of the slopes of an activation."""
    return max(_SLOPE, abs(parameter or 0.0)) if activation == "leaky_relu" else _SLOPE


def of_forward(
    x: Float64,
    old: Sequence[Float64],
    batch: Sequence[Float64],
    *others: Float64 | None,
    axes: tuple[int, ...],
    epsilon: float,
    momentum: float,
    activation: str | None,
    parameter: float | None,
) -> list[Terms]:
    """Return the terms of the forward pass's results.

    `old` and `batch` are running and batch statistics, `others` are gamma, beta and the residual.
    All arrays broadcast to x, which is not empty.
    """
    mean, variance = batch
    of_mean = np.mean(np.abs(x), axis=axes, keepdims=True)
    deviation = np.abs(x - mean) + PIVOT * of_mean
    of_variance = np.mean(deviation**2, axis=axes, keepdims=True)
    # oneDNN subtracts its own mean, whose error is squared.
    variance_sums = variance + onednn_sum_error(x.size // mean.size) * mean**2
    sum_ = variance + epsilon
    dst = of_argument(x, mean, sum_, *others, condition=(of_variance + epsilon) / sum_)
    gamma = np.abs(1.0 if others[0] is None else others[0]) / np.sqrt(sum_)
    dst, of_sums = dst + gamma * of_mean, gamma * (np.abs(mean) + np.abs(x - mean))
    if activation is not None:
        slope = _slope(activation, parameter)
        dst, of_sums = dst * slope, of_sums * slope
    running = [
        Terms(momentum * np.abs(a) + (1 - momentum) * b, (1 - momentum) * np.abs(c))
        for a, b, c in zip(old, (of_mean, of_variance), (mean, variance_sums), strict=True)
    ]
    return [
        Terms(dst, of_sums),
        *running,
        Terms(of_mean, np.abs(mean)),
        Terms(of_variance, variance_sums),
    ]
