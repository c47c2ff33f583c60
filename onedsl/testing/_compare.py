"""Comparison of results with a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from ..tensors.arrays import copied
from ..tensors.dtypes import dtype_name
from ..tensors.options import Backend
from ._reference import is_number
from ._results import Gradients

TOLERANCES: dict[str, float] = {"f32": 6e-7, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Maximum relative L2 error of tensors (diff_src, diff_residual, dst), by dtype."""

SUM_TOLERANCES: dict[str, float] = {"f32": 1e-6, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Maximum relative L2 error of diff_gamma, diff_beta and statistics, by dtype."""

_TENSORS = ("dst", "diff_src", "diff_residual", "output_gradient")
"""The results that are no sums."""

ONEDNN_SUM_ERROR = 5e-8
"""Error of oneDNN's f32 sums, relative to the sum of the terms' absolute values: times the square
root of the number of elements per channel. See `onednn_sum_error`."""


def onednn_sum_error(num_summed: int, mean_over_deviation: float = 1.0) -> float:
    """Return the addition to the tolerances of oneDNN's results, which sums in f32.

    One thread adds up to all elements of a channel (always in NCX), one after the other in each
    vector lane. Two errors grow with their number n, both confirmed by measurements with n to 2^19:

    - Random rounding: ``ONEDNN_SUM_ERROR * sqrt(n)``, relative to the sum of absolute values. Where
      the result is a difference from the mean, as dst, or diff_src and diff_gamma of a diff_dst
      with a mean, it is relative to the mean, and so is multiplied by mean over standard deviation.
    - Bias in sums of squares, the variance: small terms are rounded to multiples of the last bit of
      the sum, and most squares are small: ``0.02 * (n * 2**-23) ** 1.5``.

    Parameters
    ----------
    num_summed : int
        Number of elements per channel.
    mean_over_deviation : float
        Maximum over the channels of abs(mean) / standard deviation, of src and diff_dst. Less than
        1 counts as 1.

    Notes
    -----
    The errors are not bounded by this in two cases: channels of equal values, where rounding has
    the same sign in each addition, and results whose terms cancel, which have a larger relative
    error than their terms.
    """
    random = ONEDNN_SUM_ERROR * math.sqrt(num_summed) * max(1.0, mean_over_deviation)
    return random + 0.02 * math.pow(num_summed * 2.0**-23, 1.5)


def relative_l2(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Return the relative error ``|actual - expected| / |expected|`` in L2 norms, in float64.

    It is 0 if both arrays are zero or empty, inf if only expected is zero, and NaN if actual
    contains NaN. Arrays of different shapes raise ValueError.
    """
    a, e = copied("actual", actual, np.float64), copied("expected", expected, np.float64)
    if a.shape != e.shape:
        raise ValueError(f"actual must have expected's shape {e.shape}, got {a.shape}")
    error, norm = float(np.linalg.norm((a - e).ravel())), float(np.linalg.norm(e.ravel()))
    if norm == 0 and error > 0:
        return float("inf")
    return error / norm if norm else error


def assert_close(
    actual: tuple[Any, ...] | Mapping[str, Any],
    expected: tuple[Any, ...],
    *,
    factor: float = 1.0,
    backend: Backend = "auto",
    mean_over_deviation: float = 1.0,
) -> None:
    """Raise if an operator's results differ from a reference by more than the tolerances.

    The error of each array is its `relative_l2`. The tolerance is in `TOLERANCES` for tensors, and
    in `SUM_TOLERANCES` for the other arrays. oneDNN sums in f32, so that its error grows with the
    number of elements per channel: with ``backend="onednn"``, `onednn_sum_error` is added, which
    describes its limits.

    diff_src is a difference of terms as large as ``gamma * diff_dst / sqrt(variance + epsilon)``.
    With two values per channel they cancel almost completely. The error of diff_src is then small
    relative to these terms (at most 1e-6 in f32), but not relative to diff_src, so compare it with
    the terms instead.

    Parameters
    ----------
    actual : BatchNormGradients, BatchNormForward, another operator's results, or a dict
        The results to check, for example what a compiled graph returns. Members that are None are
        skipped. The dtype of each member selects its tolerance.
    expected : tuple
        The results of a reference implementation of this module.
    factor : float
        A factor by which all tolerances are multiplied.
    backend : {"auto", "onednn", "native"}
        The backend that computed the results.
    mean_over_deviation : float
        With ``backend="onednn"``, maximum of abs(mean) / standard deviation of a channel of src or
        diff_dst. For src of a forward pass it is known from expected.

    Raises
    ------
    AssertionError
        If an error is too large or NaN. The message names the member, its error and its tolerance.
    TypeError, ValueError
        If names, dtypes or shapes of actual are not those of results, or if it has no array.
    """
    if not isinstance(backend, str) or backend not in get_args(Backend):
        raise ValueError(f'backend must be "auto", "onednn" or "native", got {backend!r}')
    for name, number in {"factor": factor, "mean_over_deviation": mean_over_deviation}.items():
        if not (is_number(number) and number >= 0):
            raise ValueError(f"{name} must be a number of at least 0, got {number!r}")
    members = _members(actual, expected)
    num_summed = np.size(expected[0]) // max(np.size(expected[1]), 1)
    ratio = max(mean_over_deviation, _mean_over_deviation(expected))
    sum_error = factor * onednn_sum_error(num_summed, ratio)
    for name, (array, want) in members.items():
        got = copied(name, array)
        tolerances = TOLERANCES if name in _TENSORS else SUM_TOLERANCES
        tolerance = factor * tolerances[dtype_name(got.dtype, name)]
        limit = tolerance + sum_error if backend == "onednn" else tolerance
        error = relative_l2(got, want)
        if error <= limit:
            continue
        remark = ""
        if backend == "onednn":
            remark = ". oneDNN sums in f32, which this tolerance includes"
        elif error <= tolerance + sum_error:
            remark = '. If oneDNN computed it, pass backend="onednn": oneDNN sums in f32'
        raise AssertionError(
            f"{name} must be within {limit:.3g} (relative L2) of the reference, got "
            f"{error:.3g} ({got.dtype.name}, shape {got.shape}){remark}"
        )


def _members(actual: Any, expected: Any) -> dict[str, tuple[Any, Any]]:
    """Return the arrays of the results and the expected ones, by name, or raise."""
    for name, value, kinds in (
        ("actual", actual, tuple | list | Mapping),
        ("expected", expected, tuple | list),
    ):
        if not isinstance(value, kinds):
            raise TypeError(f"{name} must be a tuple of arrays, got {type(value).__name__}")
    names = getattr(expected, "_fields", Gradients._fields)
    if not isinstance(actual, Mapping):
        if len(actual) != len(names) or len(expected) != len(names):
            raise TypeError(
                f"actual and expected must have {len(names)} members ({', '.join(names)}), got "
                f"{len(actual)} and {len(expected)}"
            )
        actual = dict(zip(names, actual, strict=True))
    given = {name: array for name, array in actual.items() if array is not None}
    if not given or not given.keys() <= set(names):
        found = ", ".join(map(str, given)) or "no arrays"
        raise TypeError(f"actual must have names among {', '.join(names)}, got {found}")
    pairs = zip(names, expected, strict=True)
    return {name: (given[name], want) for name, want in pairs if name in given}


def _mean_over_deviation(expected: Any) -> float:
    """Return the maximum ratio of a forward pass's statistics, of other results 0."""
    if not hasattr(expected, "batch_variance"):
        return 0.0
    mean, variance = np.asarray(expected.batch_mean), np.asarray(expected.batch_variance)
    varies = variance > 0
    return float(np.max(np.abs(mean[varies]) / np.sqrt(variance[varies]), initial=0))
