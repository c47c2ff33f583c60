"""Comparison of results with a reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..tensors.arrays import copied
from ..tensors.dtypes import dtype_name
from ..tensors.options import Backend
from ._reference import is_number
from ._results import Gradients, Terms
from ._terms import ROUNDING, onednn_sum_error

TOLERANCES: dict[str, float] = {"f32": 6e-7, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Maximum error of tensors (diff_src, diff_residual, dst) by dtype. See `assert_close`."""

SUM_TOLERANCES: dict[str, float] = {"f32": 1e-6, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Maximum error of diff_gamma, diff_beta and statistics by dtype. See `assert_close`."""

_TENSORS = ("dst", "diff_src", "diff_residual", "output_gradient")
"""The results that are no sums."""


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
) -> None:
    """Raise if an element of an operator's results differs from a reference by too much.

    Each element is a sum of terms, and rounding errors are proportional to them. The terms can
    cancel: with two values per channel, diff_src is a difference of nearly equal terms. The error
    of an element is therefore compared with the sum of the absolute values of its terms, which
    the references of this module return in ``expected.terms``. The allowed error is the sum of

    - that sum times the tolerance of f32, in `TOLERANCES` for tensors, and in `SUM_TOLERANCES` for
      the other arrays;
    - in bf16 and f16, the element's absolute value times the tolerance of its dtype, because the
      element is rounded;
    - with ``backend="onednn"``, `onednn_sum_error` times those terms that are sums over the
      channel, which oneDNN computes in f32. In bf16 and f16, also the tolerance of the dtype times
      all terms, which oneDNN rounds, too.

    Both values are accepted where rounding decides on which side of a kink the argument of an
    activation is. If all terms of the argument are 0, rounding does not.

    Parameters
    ----------
    actual : BatchNormGradients, BatchNormForward, another operator's results, or a dict
        The results to check, for example what a compiled graph returns. Members that are None are
        skipped. The dtype of each member selects its tolerance.
    expected : tuple
        The results of a reference implementation of this module. Another tuple of arrays has no
        terms. Errors are then compared with the largest element of each array.
    factor : float
        A factor by which all tolerances are multiplied.
    backend : {"auto", "onednn"}
        The backend that computed the results. Pass "onednn" for another implementation that sums in
        f32, too.

    Raises
    ------
    AssertionError
        If an error is too large or NaN. The message names the member and its worst element.
    TypeError, ValueError
        If names, dtypes or shapes of actual are not those of results, or if it has no array.
    """
    if not isinstance(backend, str) or backend not in get_args(Backend):
        raise ValueError(f'backend must be "auto" or "onednn", got {backend!r}')
    if not (is_number(factor) and factor >= 0):
        raise ValueError(f"factor must be a number of at least 0, got {factor!r}")
    members = _members(actual, expected)
    sum_error = onednn_sum_error(np.size(expected[0]) // max(np.size(expected[1]), 1))
    for name, (array, want, known) in members.items():
        got, value = copied(name, array), copied("expected", want, np.float64)
        dtype = dtype_name(got.dtype, name)
        if got.shape != value.shape:
            raise ValueError(f"{name} must have expected's shape {value.shape}, got {got.shape}")
        terms = known or Terms(np.full(value.shape, np.max(np.abs(value), initial=0)))
        info: Any = ml_dtypes.finfo(got.dtype)  # type: ignore[no-untyped-call]
        tolerance = (TOLERANCES if name in _TENSORS else SUM_TOLERANCES)["f32"]
        allowed = (terms.magnitude + terms.slack) * tolerance
        allowed = allowed + (np.abs(value) + terms.slack) * ROUNDING[dtype] + terms.slack
        allowed = factor * (allowed + float(info.smallest_subnormal))
        of_onednn = factor * (terms.sums * sum_error + terms.magnitude * ROUNDING[dtype])
        of_onednn = allowed + of_onednn
        limit = of_onednn if backend == "onednn" else allowed
        largest = float(info.max)  # rounding a larger result gives inf
        error = np.abs(
            got.astype(np.float64).clip(-largest, largest) - value.clip(-largest, largest)
        )
        if np.all(error <= limit):
            continue
        remark = ""
        if backend == "onednn":
            remark = ". oneDNN sums in f32, which this tolerance includes"
        elif np.all(error <= of_onednn):
            remark = (
                ". This is within the error of sums in f32. If oneDNN, or another implementation "
                'that sums in f32, computed it, pass backend="onednn"'
            )
        with np.errstate(all="ignore"):
            at = np.unravel_index(np.argmax(error / limit), error.shape)
        raise AssertionError(
            f"{name} must be within {limit[at]:.3g} of the reference, {value[at]:.9g} at "
            f"{[int(i) for i in at]}, got {got[at]:.9g} ({got.dtype.name}, shape {got.shape}). The "
            f"absolute values of its terms sum to {terms.magnitude[at]:.3g}{remark}"
        )


def _members(actual: Any, expected: Any) -> dict[str, tuple[Any, Any, Terms | None]]:
    """Return the arrays of the results, the expected ones and their terms, by name, or raise."""
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
    terms = getattr(expected, "terms", None) or [None] * len(names)
    members = zip(names, expected, terms, strict=True)
    return {name: (given[name], *others) for name, *others in members if name in given}
