"""Comparing with a reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..operators.batch_norm_training_backward import BatchNormGradients
from ..tensors.dtypes import dtype_name
from ._arrays import wide

TOLERANCES: dict[str, float] = {"f32": 6e-7, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Relative L2 error allowed to tensors (diff_src, dst), by their dtype."""

SUM_TOLERANCES: dict[str, float] = {"f32": 1e-6, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Relative L2 error allowed to diff_gamma, diff_beta and statistics, by their dtype."""


def relative_l2(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Give the error norm ``|actual - expected| / |expected|``, in float64.

    0 where both are zero everywhere or empty, inf where only expected is, NaN where actual holds
    a NaN.
    """
    a, e = wide(actual), wide(expected)
    if a.shape != e.shape:
        raise ValueError(f"shapes differ: {a.shape} and {e.shape}")
    error, norm = float(np.linalg.norm((a - e).ravel())), float(np.linalg.norm(e.ravel()))
    if norm == 0 and error > 0:
        return float("inf")
    return error / norm if norm else error


def assert_close(
    actual: tuple[Any, ...], expected: tuple[Any, ...], *, factor: float = 1.0
) -> None:
    """Compare an operator's results with a reference, at onedsl's own tolerances.

    Parameters
    ----------
    actual : BatchNormGradients, BatchNormForward or another operator's results
        What was computed; its dtypes choose the tolerances. None members are not compared.
    expected : tuple
        As this module's formulas give them.
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
        tolerances = TOLERANCES if i == 0 or name == "diff_residual" else SUM_TOLERANCES
        tolerance = factor * tolerances[dtype_name(got.dtype, name)]
        error = relative_l2(got, want)
        if not error <= tolerance:
            raise AssertionError(
                f"{name} is off by {error:.3g} (relative L2), more than {tolerance:.3g}; "
                f"{got.dtype.name}, shape {got.shape}"
            )


def assert_gradients_close(
    actual: tuple[Any, ...], expected: tuple[Any, ...], *, factor: float = 1.0
) -> None:
    """Compare gradients with a reference: `assert_close`, by its older name."""
    assert_close(actual, expected, factor=factor)
