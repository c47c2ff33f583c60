"""Names of the data types, and the pairs of types that operators accept."""

from __future__ import annotations

from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np

from .. import _core

MAX_RANK = _core.MAX_RANK

DTypeName = Literal["f32", "bf16", "f16"]
DTYPE_NAMES = "f32, bf16 or f16"  # in error messages

DType = DTypeName | Literal["float32", "bfloat16", "float16"] | np.dtype[Any] | type[np.generic]
"""The accepted values of an argument `dtype`: short names, NumPy's names, and dtype objects."""

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}

# For each dtype of the tensors (src, diff_dst, ...): the dtypes that statistics, gamma and beta may
# have.
STATS_DTYPES: dict[str, tuple[str, ...]] = {
    name: tuple(s for tensor, s in _core.supported_types() if tensor == name) for name in DTYPES
}

_SPELLINGS: dict[str, DTypeName] = {
    spelling: name for name in get_args(DTypeName) for spelling in (name, DTYPES[name].name)
}


def dtype_name(dtype: object, argument: str = "dtype") -> DTypeName:
    """Return the short name of a dtype: ``"f32"``, ``"bf16"`` or ``"f16"``.

    Another dtype, or byte order, is a TypeError that calls it `argument`.
    """
    if isinstance(dtype, str):
        spelling = dtype
    else:
        try:
            parsed = np.dtype(dtype)  # type: ignore[call-overload]
            spelling = parsed.name if parsed.isnative else parsed.str
        except (TypeError, ValueError):
            spelling = str(dtype).removeprefix("torch.")
    if spelling not in _SPELLINGS:
        raise TypeError(f"{argument} must be {DTYPE_NAMES}, got {dtype!r}")
    return _SPELLINGS[spelling]


def short_name(dtype: np.dtype[Any]) -> str:
    """Return the short name of a dtype, or NumPy's name of one that no operator accepts."""
    return _SPELLINGS.get(dtype.name, dtype.name)
