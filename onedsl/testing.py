"""The formulas in float64, and helpers to compare with them, for users' own tests.

Nothing here calls oneDNN or onedsl's kernels: it is NumPy, to be judged by.
"""

# No annotations from __future__ here: pdoc would not find the types of a NamedTuple's fields.

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _refuse
from ._spec import DataFormat, DataFormatLike, parse_data_format
from ._types import DTYPES, DType, dtype_name
from .operators.batch_norm_training_backward import BatchNormGradients
from .operators.batch_normalization_grad import BatchNormalizationGradients

__docformat__ = "numpy"

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Statistics = Literal["batch", "frozen"]

TOLERANCES: dict[str, float] = {"f32": 6e-7, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Relative L2 error allowed to diff_src, by its dtype."""

SUM_TOLERANCES: dict[str, float] = {"f32": 1e-6, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Relative L2 error allowed to diff_gamma and diff_beta, by the statistics' dtype."""


def batch_norm(
    src: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    mean: npt.ArrayLike | None = None,
    variance: npt.ArrayLike | None = None,
) -> Float64:
    """Compute the forward pass in float64.

    ``gamma * (src - mean) / sqrt(variance + epsilon) + beta``, with src's own mean and biased
    variance where they are not given (batch statistics), and the given ones else (frozen).

    Parameters
    ----------
    src : array_like, (N, ..., C) or (N, C, ...)
    gamma, beta, mean, variance : array_like, (C,), optional
    epsilon : float
    data_format : {"NXC", "NCX"} or DataFormat

    Returns
    -------
    ndarray of float64, src's shape
    """
    x, axes, shape = _layout(src, data_format)
    mu = x.mean(axes) if mean is None else _wide(mean)
    var = ((x - mu.reshape(shape)) ** 2).mean(axes) if variance is None else _wide(variance)
    result = (x - mu.reshape(shape)) / np.sqrt(var + epsilon).reshape(shape)
    if gamma is not None:
        result = result * _wide(gamma).reshape(shape)
    if beta is not None:
        result = result + _wide(beta).reshape(shape)
    return result


def batch_norm_backward(
    src: npt.ArrayLike,
    diff_dst: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    statistics: Statistics = "batch",
) -> BatchNormGradients:
    """Compute the gradients in float64, formula by formula.

    Parameters
    ----------
    src, diff_dst : array_like, (N, ..., C) or (N, C, ...)
    mean, variance : array_like, (C,)
        The biased variance.
    gamma : array_like, (C,), optional
        Absent means ones.
    epsilon : float
    data_format : {"NXC", "NCX"} or DataFormat
    statistics : {"batch", "frozen"}
        Whether mean and variance are src's, so that the gradient flows through them, or constants.

    Returns
    -------
    BatchNormGradients
        Of float64 arrays.
    """
    x, axes, shape = _layout(src, data_format)
    if gamma is None:
        gamma = np.ones_like(_wide(variance))
    diff_src, diff_gamma, diff_beta = _gradients(
        x,
        _wide(diff_dst),
        _wide(mean).reshape(shape),
        _wide(variance).reshape(shape),
        _wide(gamma).reshape(shape),
        epsilon=epsilon,
        axes=axes,
        statistics=statistics,
    )
    return BatchNormGradients(diff_src, diff_gamma.reshape(-1), diff_beta.reshape(-1))


def batch_normalization_grad(
    input: npt.ArrayLike,  # noqa: A002 - DirectML's name
    input_gradient: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    scale: npt.ArrayLike,
    *,
    epsilon: float,
) -> BatchNormalizationGradients:
    """Compute DirectML's gradient, for frozen statistics, in float64.

    Parameters
    ----------
    input, input_gradient : array_like
        Of one shape.
    mean, variance, scale : array_like
        Of input's rank, each size input's or 1: the sums go over the latter.
    epsilon : float

    Returns
    -------
    BatchNormalizationGradients
        Of float64 arrays.
    """
    x = _wide(input)
    mu = _wide(mean)
    sizes = zip(mu.shape, x.shape, strict=True)
    axes = tuple(axis for axis, (size, whole) in enumerate(sizes) if size == 1 != whole)
    gradients = _gradients(
        x,
        _wide(input_gradient),
        mu,
        _wide(variance),
        _wide(scale),
        epsilon=epsilon,
        axes=axes,
        statistics="frozen",
    )
    return BatchNormalizationGradients(*gradients)


def _gradients(
    x: Float64,
    dy: Float64,
    mean: Float64,
    variance: Float64,
    gamma: Float64,
    *,
    epsilon: float,
    axes: tuple[int, ...],
    statistics: str,
) -> tuple[Float64, Float64, Float64]:
    """Write the formulas down, for statistics that broadcast to x and sums that go over axes."""
    _refuse.statistics(statistics)
    rstd = 1 / np.sqrt(variance + epsilon)
    xhat = (x - mean) * rstd
    diff_beta: Float64 = np.sum(dy, axis=axes, keepdims=True)
    diff_gamma: Float64 = np.sum(dy * xhat, axis=axes, keepdims=True)
    diff_src = dy
    if statistics == "batch" and x.size:
        count = x.size // diff_beta.size
        diff_src = dy - diff_beta / count - xhat * diff_gamma / count
    return gamma * rstd * diff_src, diff_gamma, diff_beta


def relative_l2(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Give the error norm ``|actual - expected| / |expected|``, in float64.

    0 where both are zero everywhere or empty, inf where only expected is, NaN where actual holds
    a NaN.
    """
    a, e = _wide(actual), _wide(expected)
    if a.shape != e.shape:
        raise ValueError(f"shapes differ: {a.shape} and {e.shape}")
    error, norm = float(np.linalg.norm((a - e).ravel())), float(np.linalg.norm(e.ravel()))
    if norm == 0 and error > 0:
        return float("inf")
    return error / norm if norm else error


def assert_gradients_close(
    actual: tuple[Any, Any, Any],
    expected: tuple[Any, Any, Any],
    *,
    factor: float = 1.0,
) -> None:
    """Compare gradients with a reference, at onedsl's own tolerances.

    Parameters
    ----------
    actual : BatchNormGradients or another dialect's
        What was computed; its dtypes choose the tolerances. None members are not compared.
    expected : BatchNormGradients or another dialect's
        As `batch_norm_backward` or `batch_normalization_grad` gives them.
    factor : float
        Multiplies the tolerances.

    Raises
    ------
    AssertionError
        Naming the member, its error and the tolerance.
    """
    names = getattr(actual, "_fields", BatchNormGradients._fields)
    for i, (name, got, want) in enumerate(zip(names, actual, expected, strict=True)):
        if got is None:
            continue
        tolerances = SUM_TOLERANCES if i else TOLERANCES
        tolerance = factor * tolerances[dtype_name(got.dtype, name)]
        error = relative_l2(got, want)
        if not error <= tolerance:
            raise AssertionError(
                f"{name} is off by {error:.3g} (relative L2), more than {tolerance:.3g}; "
                f"{got.dtype.name}, shape {got.shape}"
            )


class Problem(NamedTuple):
    """Inputs of one call, in the operator's own order."""

    src: Array
    diff_dst: Array
    mean: Array
    variance: Array
    gamma: Array


def random_problem(
    shape: Sequence[int],
    dtype: DType = "f32",
    stats_dtype: DType = "f32",
    *,
    data_format: DataFormatLike = DataFormat.NXC,
    seed: int = 0,
) -> Problem:
    """Make inputs whose mean and variance are those of src, rounded to their dtype.

    diff_dst leans on src, as it does in training. If it did not, diff_gamma would be what is left
    when M terms cancel, and its relative error would grow as the root of M in any arithmetic.

    Parameters
    ----------
    shape : sequence of int
        Of src, in the order of data_format.
    dtype, stats_dtype : str or dtype
    data_format : {"NXC", "NCX"} or DataFormat
    seed : int

    Returns
    -------
    Problem
    """
    narrow, stats = DTYPES[dtype_name(dtype)], DTYPES[dtype_name(stats_dtype)]
    rng = np.random.default_rng(seed)
    src = (rng.standard_normal(shape) * 1.5 + 0.5).astype(narrow)
    diff_dst = (rng.standard_normal(shape) + 0.25 + 0.5 * src.astype(np.float32)).astype(narrow)
    x, axes, per_channel = _layout(src, data_format)
    channels = x.shape[parse_data_format(data_format).channel_axis]
    mean: Array = np.zeros(channels)
    variance: Array = np.ones(channels)
    if x.size:
        mean = np.mean(x, axis=axes)
        variance = np.mean((x - mean.reshape(per_channel)) ** 2, axis=axes)
    gamma = rng.uniform(0.5, 2, size=(channels,))
    return Problem(
        src, diff_dst, np.asarray(mean, stats), np.asarray(variance, stats), gamma.astype(stats)
    )


def _wide(array: npt.ArrayLike) -> Float64:
    return np.asarray(array).astype(np.float64)


def _layout(
    src: npt.ArrayLike, data_format: DataFormatLike
) -> tuple[Float64, tuple[int, ...], tuple[int, ...]]:
    """Give src in float64, the axes that are summed, and the shape that a (C,) array takes."""
    x, parsed = _wide(src), parse_data_format(data_format)
    return x, parsed.summed_axes(x.ndim), parsed.statistics_shape_beside(x.shape)
