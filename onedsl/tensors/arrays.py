"""Arrays of any library, as NumPy arrays over the same memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from .. import _core
from .dtypes import DTYPES, MAX_RANK, dtype_name

Array = npt.NDArray[Any]


class SupportsDLPack(Protocol):
    """An array that lends its memory, such as NumPy's and PyTorch's."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class HasShapeAndDtype(Protocol):
    """An array whose types do not say that it has ``__dlpack__``: JAX's."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102


AnyArray = SupportsDLPack | HasShapeAndDtype


# DLPack's device types of memory that the CPU reads and writes: its own, and what is pinned.
_HOST = (1, 3, 11)


def as_numpy(name: str, value: object) -> Array:
    """Take an array of one of the three types; nothing is copied.

    Raises
    ------
    TypeError, ValueError
        If it is none. The message calls it `name`.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and the mask would be lost; pass {name}.filled()"
        )
    array = _core.import_array(value)
    if array is None:
        _reject(name, value)
    return np.asarray(array).view(DTYPES[dtype_name(array.dtype, name)])


def buffers_for(src: object, likes: Sequence[Array | None]) -> tuple[Array | None, ...] | None:
    """Make memory for results that src's library is to take over; None where that is NumPy.

    It is in whole cache lines: JAX copies what is not.
    """
    if isinstance(src, np.ndarray):
        return None
    return tuple(None if like is None else aligned_like(like) for like in likes)


def is_contiguous(array: Array) -> bool:
    """Tell whether an array is in C order, on whole items."""
    return bool(array.flags.c_contiguous and array.flags.aligned)


def same_layout(array: Array, like: Array) -> bool:
    """Tell whether an array lies in memory, on whole items, as another of its shape does."""
    if not array.flags.aligned:
        return False
    steps = zip(array.shape, array.strides, like.strides, strict=True)
    return array.size == 0 or all(a == b for size, a, b in steps if size > 1)


def same_memory(array: Array, other: Array) -> bool:
    """Tell whether two arrays of one dtype have each element in the same place."""
    return (
        array.__array_interface__["data"][0] == other.__array_interface__["data"][0]
        and array.shape == other.shape
        and same_layout(array, other)
    )


def overlap(array: Array, other: Array) -> str:
    """Say how two arrays overlap, or nothing where they have no byte in common.

    To decide that of strided memory can take for ever, so that there is a third answer.
    """
    try:
        # NumPy's stub knows its two named bounds alone.
        shared = np.shares_memory(array, other, max_work=100_000)  # type: ignore[arg-type]
        return "overlaps" if shared else ""
    except np.exceptions.TooHardError:
        return "lies, too intricately to be told apart, in the memory of"


def mark_written(out: Sequence[object]) -> None:
    """Tell PyTorch which of its tensors have been written to: autograd may have saved them.

    The core calls this where an output is not NumPy's.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        for array in out:
            if isinstance(array, torch.Tensor):
                torch.autograd.graph.increment_version(array)


def aligned_like(like: Array, line: int = 64) -> Array:
    """Make an array like another, uninitialized, that begins a line of the cache."""
    memory = np.empty(like.nbytes + line, np.uint8)
    start = -memory.ctypes.data % line
    return np.ndarray(like.shape, like.dtype, memory, start, like.strides)


def _reject(name: str, value: Any) -> NoReturn:
    kind = type(value).__name__
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is a tracer of JAX, which has no memory; use onedsl.jax, which JAX can trace"
        )
    if jax is not None and isinstance(value, jax.Array) and value.is_deleted():
        raise ValueError(f"{name} has no memory any more: it was deleted, or donated to a call")
    if not hasattr(type(value), "__dlpack__"):
        raise TypeError(
            f"{name} must be a NumPy array, or another with __dlpack__, of f32, bf16 or f16, "
            f"not {kind}"
        )
    if getattr(value, "requires_grad", False) is True:
        raise TypeError(
            f"{name} requires grad, and the result would not be part of its graph; pass "
            f"{name}.detach(), or use onedsl.torch, which autograd knows"
        )
    rank = getattr(value, "ndim", 0)
    if isinstance(rank, int) and rank > MAX_RANK:
        raise ValueError(f"{name} must have {MAX_RANK} dimensions at most, not {rank}")
    if hasattr(value, "resolve_neg") and value.is_neg():
        raise TypeError(f"{name} is the negative of its memory; pass {name}.resolve_neg()")
    try:
        device = int(value.__dlpack_device__()[0])
        dtype = _core.dlpack_type(value) if device in _HOST else None
    except Exception as error:
        raise TypeError(f"{name}, a {kind}, does not give its memory away: {error}") from error
    if device not in _HOST:
        where = getattr(value, "device", f"that DLPack numbers {device}")
        raise ValueError(f"{name} is on the device {where}; move it to the CPU first")
    if dtype not in (None, *(known.name for known in DTYPES.values())):
        raise TypeError(f"{name} must be f32, bf16 or f16, not {dtype}")
    raise TypeError(f"{name}, a {kind}, gives no memory away that can be used")
