"""Conversion of arrays of any library to NumPy views."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _core
from .dtypes import DTYPE_NAMES, DTYPES, MAX_RANK, short_name

Array = npt.NDArray[Any]

DELETED = "must be an array with memory, got a JAX array that was deleted or donated"


class AnyArray(Protocol):
    """An array of any library, for type checkers. It must also have ``__dlpack__``.

    The type stubs of some libraries, such as JAX's, do not declare that method.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102


if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    SrcArray = _TypeVar("SrcArray", bound=AnyArray, default=Any)
else:  # Python 3.13 is the first one whose TypeVar has defaults
    SrcArray = TypeVar("SrcArray")


def as_numpy(name: str, value: object, *, is_output: bool = False) -> Array:
    """Return a NumPy array over the memory of an array of any library, or raise.

    Error messages call it `name`, and name no copy as a remedy if it is to be written. Its dtype
    may be one that no operator accepts.
    """
    reject_masked(name, value, is_output=is_output)
    array = _core.import_array(value)
    if not isinstance(array, np.ndarray):
        _reject(name, value, array, is_output=is_output)
    dtype: Any = array.dtype
    if not dtype.isnative:
        convert = f"Convert it with {name}.astype({name}.dtype.newbyteorder('='))"
        remedy = f"Pass an array of dtype {dtype.name}" if is_output else convert
        raise TypeError(f"{name} must be in native byte order, got {dtype.str}. {remedy}")
    return np.asarray(array).view(DTYPES.get(short_name(dtype), dtype))  # without metadata


def reject_masked(name: str, value: object, *, is_output: bool = False) -> None:
    """Raise TypeError for a masked array of NumPy, whose mask would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        remedy = "Pass {}.data" if is_output else "The mask would be lost: pass {}.filled()"
        got = "got a masked array. " + remedy.format(name)
        raise TypeError(f"{name} must be a plain array, {got}")


def copied(name: str, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return a copy as a NumPy array. NumPy alone cannot convert PyTorch's bf16 tensors."""
    reject_masked(name, value)
    imported = _core.import_array(value)
    try:
        is_array = isinstance(imported, np.ndarray)
        return np.asarray(imported if is_array else value, dtype).copy()
    except (RuntimeError, TypeError, ValueError) as error:
        got = f"{type(value).__name__}, for which NumPy raised: {error}"
        raise TypeError(f"{name} must be array_like, got {got}") from error


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the distance in memory from the first element to the last, in the strides' unit."""
    return sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if size > 1)


def new_array(spec: Any, library: object = None) -> Any:
    """Return zeros with shape, dtype and strides of a spec, which may leave gaps.

    A tensor of PyTorch if `library` is one. Otherwise a NumPy array that begins at a cache line.
    """
    tensor = _core.empty_tensor(library, spec.dtype, spec.shape, spec.strides)
    if tensor is not None:
        return tensor.zero_()
    nbytes = span(spec.shape, spec.byte_strides) + DTYPES[spec.dtype].itemsize
    memory = np.zeros(nbytes + _core.CACHE_LINE, np.uint8)
    return _core.at_cache_line(memory, spec.dtype, spec.shape, spec.byte_strides)


def aligned_like(like: Array) -> Array:
    """Return an uninitialized array as np.empty_like does, whose memory begins at a cache line."""
    memory = np.empty(like.nbytes + _core.CACHE_LINE, np.uint8)
    dtype: Any = short_name(like.dtype)
    return _core.at_cache_line(memory, dtype, like.shape, np.empty_like(like).strides)


def _reject(name: str, value: Any, reason: str | Exception, *, is_output: bool) -> NoReturn:
    """Raise the error for a value that `_core.import_array` does not accept."""
    kind = type(value).__name__
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        reason = "tracer"
    elif jax is not None and isinstance(value, jax.Array) and value.is_deleted():
        raise ValueError(f"{name} {DELETED}")
    if isinstance(reason, Exception):
        text = f"must export its memory through DLPack, got {kind}, which raised: {reason}"
        raise TypeError(f"{name} {text}") from reason
    if reason == "device":
        where = getattr(value, "device", None) or f"type {value.__dlpack_device__()[0]} of DLPack"
        raise ValueError(f"{name} must be on the CPU, got device {where}. Move it to the CPU first")
    if reason == "rank":
        got = getattr(value, "ndim", "more")
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {got}")
    dtype = str(getattr(value, "dtype", kind)).rpartition(".")[2]  # without "torch."
    dense = f"torch.empty_like({name})" if is_output else f"{name}.resolve_neg()"
    texts = {
        "tracer": "must be an array with memory, got a JAX tracer. Use onedsl.jax, which JAX can "
        "trace",
        "no_dlpack": f"must be a NumPy array or another array with __dlpack__, got {kind}",
        "requires_grad": "must not require grad, because the result would not be part of the "
        f"autograd graph. Pass {name}.detach(), or use onedsl.torch, which supports autograd",
        "negative": f"must not be a negative view. Pass {dense}",
        "type": f"must be {DTYPE_NAMES}, got {dtype}",
    }
    usable = f"must export usable memory through DLPack, got {kind}"
    raise TypeError(f"{name} {texts.get(reason, usable)}")
