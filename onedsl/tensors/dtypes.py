"""Names of the data types, and the pairs of types that operators accept."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np

from .. import _core

MAX_RANK = _core.MAX_RANK

Backend = Literal["auto", "onednn", "native"]

DType = (
    Literal["f32", "bf16", "f16", "float32", "bfloat16", "float16"]
    | np.dtype[Any]
    | type[np.generic]
)
"""The accepted values of an argument `dtype`: short names, NumPy's names, and dtype objects."""

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}

# For each dtype of the tensors (src, diff_dst, ...): the dtypes that statistics, gamma and beta may
# have.
STATISTICS: dict[str, tuple[str, ...]] = {
    name: tuple(s.name for tensor, s in _core.supported_types() if tensor.name == name)
    for name in DTYPES
}

# The enumerators of the C++ core.
CORE = {name: _core.DataType[name] for name in DTYPES}

_SPELLINGS = {name: name for name in DTYPES} | {d.name: name for name, d in DTYPES.items()}


def dtype_name(dtype: object, argument: str = "dtype") -> str:
    """Return the short name of a dtype: ``"f32"``, ``"bf16"`` or ``"f16"``.

    Another dtype, or byte order, is a TypeError that calls it `argument`.
    """
    if isinstance(dtype, str):
        name = _SPELLINGS.get(dtype)
    else:
        try:
            parsed = np.dtype(dtype)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            parsed = None
        name = next((n for n, d in DTYPES.items() if parsed is not None and d == parsed), None)
        if parsed is not None and not parsed.isnative:
            raise TypeError(
                f"{argument} must be in native byte order, got {parsed.str}. "
                f"Convert it with {argument}.astype({argument}.dtype.newbyteorder('='))"
            )
    if name is None:
        raise TypeError(f"{argument} must be f32, bf16 or f16, got {_spell(dtype)}")
    return name


def _spell(dtype: object) -> str:
    return repr(dtype) if isinstance(dtype, str) else str(getattr(dtype, "name", dtype))
