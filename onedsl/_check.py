"""Where a caller's mistake gets its words.

The core looks at every argument itself and refuses, without a word, what it cannot take as it is.
Then the functions here say what is wrong, or make dense copies of what is merely strided.
"""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._types import DTYPES, check_statistics, dtype_name

_log = logging.getLogger("onedsl")

BACKENDS = {name: _core.Backend[name] for name in ("auto", "onednn", "native")}

Array = npt.NDArray[Any]


class Names(NamedTuple):
    """What a dialect calls the eight ports."""

    src: str
    diff_dst: str
    mean: str
    variance: str
    gamma: str
    diff_src: str
    diff_gamma: str
    diff_beta: str


def epsilon(value: object) -> float:
    """Check the attribute: a positive number that is one in float32 too, oneDNN's type for it."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"epsilon must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    with np.errstate(over="ignore", under="ignore"):
        single = float(np.float32(number))
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"epsilon must be positive and finite, not {number}")
    if not (single > 0 and math.isfinite(single)):
        raise ValueError(f"epsilon must be representable in float32; {number} becomes {single}")
    return number


def outputs(value: object, names: Names) -> bool:
    """Tell whether the sums are wanted beside diff_src."""
    if isinstance(value, str):
        if value == "all":
            return True
        if value in ("diff_src", names.diff_src):
            return False
    raise ValueError(
        f'outputs must be "all" or "{names.diff_src}", not {value!r}: {names.diff_gamma} and '
        f"{names.diff_beta} come both or neither"
    )


def backend(value: object) -> _core.Backend:
    """Take the name of a backend."""
    if isinstance(value, str) and value in BACKENDS:
        return BACKENDS[value]
    raise ValueError(f'backend must be "auto", "onednn" or "native", not {value!r}')


Inputs = tuple[Array, Array, Array, Array, Array | None]
Buffers = tuple[Array | None, ...] | None


def arguments(
    names: Names,
    channel_axis: int,
    inputs: Sequence[object],
    *,
    sums: bool,
    out: object,
) -> tuple[Inputs, Buffers]:
    """Check src, diff_dst, mean, variance, gamma and out, one after the other.

    Gives arrays that the core takes as they are.
    """
    src = _array(names.src, inputs[0])
    if src.ndim < 2:
        raise ValueError(
            f"{names.src} must have 2 dimensions or more, batch and channels at least; "
            f"it has shape {src.shape}"
        )
    diff_dst = _array(names.diff_dst, inputs[1])
    _same(names.diff_dst, diff_dst, names.src, src)

    channels = src.shape[channel_axis]
    data = dtype_name(src.dtype)
    mean = _array(names.mean, inputs[2])
    statistics = dtype_name(mean.dtype)
    check_statistics(data, statistics, names.mean, names.src)

    def per_channel(name: str, value: object) -> Array:
        array = _array(name, value)
        if array.dtype != mean.dtype:
            raise TypeError(
                f"{name} must be {statistics} as {names.mean} is, not {dtype_name(array.dtype)}"
            )
        if array.shape != (channels,):
            raise ValueError(
                f"{name} must have shape ({channels},), one value a channel of {names.src} with "
                f"shape {src.shape}; it has shape {array.shape}"
            )
        return array

    mean = per_channel(names.mean, mean)
    variance = per_channel(names.variance, inputs[3])
    gamma = None if inputs[4] is None else per_channel(names.gamma, inputs[4])

    dense_src = _dense(names.src, src)
    checked: Inputs = (
        dense_src,
        _dense(names.diff_dst, diff_dst, like=dense_src),
        _dense(names.mean, mean),
        _dense(names.variance, variance),
        None if gamma is None else _dense(names.gamma, gamma),
    )
    if out is None:
        return checked, None

    # The caller's own arrays: an output must not overlap these, copied or not.
    taken = dict(zip(names[:4], (src, diff_dst, mean, variance), strict=True))
    if gamma is not None:
        taken[names.gamma] = gamma
    written: list[Array] = []
    for name, value in zip(names[5:], _members(names, out, sums), strict=True):
        if value is None:
            continue
        label = f"out.{name}"
        array = _array(label, value)
        if name == names.diff_src:
            _same(label, array, names.src, src)
            if not _same_layout(array, dense_src):
                raise ValueError(
                    f"{label} must lie in memory as {names.src} does, with strides "
                    f"{dense_src.strides}; it has {array.strides}. "
                    f"np.empty_like({names.src}) makes such an array"
                )
        else:
            array = per_channel(label, array)
            if not _core.is_dense(array):
                raise ValueError(
                    f"{label} must be contiguous and aligned; its strides are {array.strides}"
                )
        if not array.flags.writeable:
            raise ValueError(f"{label} is read-only; pass an array that can be written to")
        _no_overlap(names, label, array, taken)
        taken[label] = array
        written.append(array)
    return checked, tuple(written) if sums else (written[0], None, None)


def _no_overlap(names: Names, label: str, array: Array, taken: dict[str, Array]) -> None:
    cure = "give it memory of its own"
    if label == f"out.{names.diff_src}":
        cure = f"it may be exactly {names.diff_dst}, or share no memory with any argument"
        if _same_memory(array, taken[names.diff_dst]):
            taken = {name: other for name, other in taken.items() if name != names.diff_dst}
    for name, other in taken.items():
        if np.may_share_memory(array, other):
            raise ValueError(f"{label} overlaps {name}; {cure}")


def _array(name: str, value: object) -> Array:
    """Take a NumPy array of one of the three types."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and the mask would be lost; pass {name}.filled()"
        )
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"{name} must be a NumPy array of f32, bf16 or f16, not {type(value).__name__}"
        )
    dtype = DTYPES[dtype_name(value.dtype, name)]
    return np.asarray(value).view(dtype)


def _same(name: str, array: Array, src_name: str, src: Array) -> None:
    if array.dtype != src.dtype:
        raise TypeError(
            f"{name} must be {dtype_name(src.dtype)} as {src_name} is, "
            f"not {dtype_name(array.dtype)}"
        )
    if array.shape != src.shape:
        raise ValueError(f"{name} must have {src_name}'s shape {src.shape}, not {array.shape}")


def _dense(name: str, array: Array, like: Array | None = None) -> Array:
    """Return the array itself if the core can use its memory, or else a dense copy."""
    if _core.is_dense(array) and (like is None or _same_layout(array, like)):
        return array
    copy = np.empty_like(array if like is None else like, order="K")
    copy[...] = array
    _log.info(
        "%s copied: strides %s of shape %s are not what a plan can use",
        name,
        array.strides,
        array.shape,
    )
    return copy


def _same_layout(a: Array, b: Array) -> bool:
    if not _core.is_dense(a):
        return False
    steps = zip(a.shape, a.strides, b.strides, strict=True)
    return a.size == 0 or all(x == y for size, x, y in steps if size > 1)


def _same_memory(a: Array, b: Array) -> bool:
    return (
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and a.size == b.size
        and _same_layout(a, b)
    )


def _members(names: Names, out: object, sums: bool) -> tuple[object, object, object]:
    wanted = f"({names.diff_src}, {names.diff_gamma}, {names.diff_beta})"
    if not isinstance(out, tuple | list) or len(out) != 3:
        raise TypeError(f"out must be a tuple {wanted}, not {type(out).__name__}")
    diff_src, diff_gamma, diff_beta = out
    if diff_src is None:
        raise ValueError(f"out.{names.diff_src} must be an array, not None")
    if (diff_gamma is None) != (diff_beta is None):
        raise ValueError(
            f"out must have {names.diff_gamma} and {names.diff_beta} both or neither: the op has "
            "either three outputs or one"
        )
    if sums and diff_gamma is None:
        raise ValueError(
            f"out.{names.diff_gamma} and out.{names.diff_beta} are None; give arrays, or ask for "
            f'outputs="{names.diff_src}"'
        )
    if not sums and diff_gamma is not None:
        raise ValueError(
            f"out.{names.diff_gamma} and out.{names.diff_beta} would not be written with "
            f'outputs="{names.diff_src}"; give None for both'
        )
    return diff_src, diff_gamma, diff_beta


def compiled_for(
    names: Names,
    inputs: Sequence[object],
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    data: str,
    statistics: str,
    gamma: bool,
) -> None:
    """Say where arguments that are right in themselves are not those of the compiled plan."""
    for name, value in zip(names[:2], inputs, strict=False):
        array = _array(name, value)
        if dtype_name(array.dtype) != data:
            raise TypeError(
                f"{name} is {dtype_name(array.dtype)}, and this was compiled for {data}"
            )
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, and this was compiled for {shape}")
        wanted = tuple(step * array.itemsize for step in strides)
        if array.size and any(
            a != b for size, a, b in zip(shape, array.strides, wanted, strict=True) if size > 1
        ):
            raise ValueError(
                f"{name} has strides {array.strides}, and this was compiled for {wanted} (in "
                f"bytes): compile for TensorSpec.of({name}), or copy {name} into that order"
            )
        if not array.flags.aligned:
            raise ValueError(f"{name} is not aligned to its items; pass {name}.copy()")
    mean = _array(names.mean, inputs[2])
    if dtype_name(mean.dtype) != statistics:
        raise TypeError(
            f"{names.mean} is {dtype_name(mean.dtype)}, and this was compiled for "
            f'stats_dtype="{statistics}"'
        )
    if (inputs[4] is not None) != gamma:
        raise TypeError(
            f"{names.gamma} is {'missing' if gamma else 'given'}, and this was compiled with "
            f"gamma={gamma}"
        )
