"""Where a caller's mistake gets its words.

The core looks at every argument itself and refuses, without a word, what it cannot take as it is.
Then the functions here say what is wrong, or make dense copies of what is merely strided.
"""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arrays import Array, as_numpy, buffers_for
from ._types import dtype_name

_log = logging.getLogger("onedsl")

BACKENDS = {name: _core.Backend[name] for name in ("auto", "onednn", "native")}

Inputs = tuple[Array, Array, Array, Array, Array | None]
Buffers = tuple[Array | None, ...] | None


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


@dataclass(frozen=True)
class Dialect:
    """What is peculiar to one operator class."""

    names: Names
    gradients: type[Any]
    """The NamedTuple of the three outputs."""
    statistics: _core.Statistics
    types: dict[str, tuple[str, ...]]
    """Types of the statistics, by the type of src."""
    documents: Names | None = None
    """The ports as the dialect's document spells them, for messages, where it does otherwise."""
    ignores_gamma: bool = False
    """Whether its document has gamma ignored where diff_src is the only output."""
    max_rank: int = 64

    def label(self, port: str) -> str:
        """Give the name of a port as messages have it."""
        name: str = getattr(self.names, port)
        return f"{name} ({getattr(self.documents, port)})" if self.documents else name

    def check_types(self, data: str, statistics: str, argument: str) -> None:
        """Refuse a pair of types that is not a row of the type table."""
        if data not in self.types:
            raise TypeError(f"{self.label('src')} must be {' or '.join(self.types)}, not {data}")
        if statistics not in self.types[data]:
            raise TypeError(
                f"{argument} must be {' or '.join(self.types[data])} where {self.names.src} is "
                f"{data}, not {statistics}"
            )


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
        if value == names.diff_src:
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


def statistics(value: object) -> _core.Statistics:
    """Take the word for where mean and variance come from."""
    if isinstance(value, str) and value in ("batch", "frozen"):
        return _core.Statistics[value]
    raise ValueError(f"statistics must be 'batch' or 'frozen', not {value!r}")


def statistics_shape(
    dialect: Dialect, layout: _core.StatisticsShape, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Give the shape of the statistics of a src of this shape; None where it is theirs to say."""
    least = 1 if layout is _core.StatisticsShape.broadcast else 2
    if len(shape) < least:
        wanted = "batch and channels at least; it" if least > 1 else "it"
        raise ValueError(
            f"{dialect.label('src')} must have {least} dimension{'s' * (least > 1)} or more, "
            f"{wanted} has shape {shape}"
        )
    if len(shape) > dialect.max_rank:
        raise ValueError(
            f"{dialect.label('src')} must have {dialect.max_rank} dimensions at most, "
            f"not {len(shape)}"
        )
    if layout is _core.StatisticsShape.broadcast:
        return None
    return (shape[1 if layout is _core.StatisticsShape.channel_second else -1],)


def kept_axes(
    dialect: Dialect,
    layout: _core.StatisticsShape,
    shape: tuple[int, ...],
    mean_shape: tuple[int, ...],
) -> int:
    """Check mean's shape against src's, and give the axes of src that it keeps, one bit each."""
    wanted = statistics_shape(dialect, layout, shape)
    if wanted is not None:
        if mean_shape != wanted:
            raise ValueError(
                f"{dialect.label('mean')} must have shape {wanted}, one value a channel of "
                f"{dialect.label('src')} with shape {shape}; it has shape {mean_shape}"
            )
        return 1 << (1 if layout is _core.StatisticsShape.channel_second else len(shape) - 1)
    if len(mean_shape) != len(shape) or any(
        size not in (1, whole) for size, whole in zip(mean_shape, shape, strict=True)
    ):
        raise ValueError(
            f"{dialect.label('mean')} must have as many dimensions as {dialect.names.src} with "
            f"shape {shape}, each of its size or 1; it has shape {mean_shape}"
        )
    return sum(1 << axis for axis, size in enumerate(mean_shape) if size != 1)


def arguments(
    dialect: Dialect,
    layout: _core.StatisticsShape,
    inputs: Sequence[object],
    *,
    sums: bool,
    out: object,
) -> tuple[Inputs, Buffers]:
    """Check src, diff_dst, mean, variance, gamma and out, one after the other.

    Gives arrays that the core takes as they are.
    """
    label = dialect.label
    src = as_numpy(label("src"), inputs[0])
    data = dtype_name(src.dtype)
    statistics_shape(dialect, layout, src.shape)
    diff_dst = as_numpy(label("diff_dst"), inputs[1])
    _same(label("diff_dst"), diff_dst, label("src"), src)

    mean = as_numpy(label("mean"), inputs[2])
    statistics = dtype_name(mean.dtype)
    dialect.check_types(data, statistics, label("mean"))
    kept = kept_axes(dialect, layout, src.shape, mean.shape)

    def statistic(name: str, value: object) -> Array:
        array = as_numpy(name, value)
        if array.dtype != mean.dtype:
            raise TypeError(
                f"{name} must be {statistics} as {label('mean')} is, not {dtype_name(array.dtype)}"
            )
        if array.shape != mean.shape:
            raise ValueError(
                f"{name} must have shape {mean.shape}, one value a channel of {label('src')} "
                f"with shape {src.shape}; it has shape {array.shape}"
            )
        return array

    variance = statistic(label("variance"), inputs[3])
    gamma = None if inputs[4] is None else statistic(label("gamma"), inputs[4])

    dense_src = _usable(label("src"), src, kept)
    checked: Inputs = (
        dense_src,
        _usable(label("diff_dst"), diff_dst, kept, like=dense_src),
        _contiguous(label("mean"), mean),
        _contiguous(label("variance"), variance),
        None if gamma is None else _contiguous(label("gamma"), gamma),
    )
    if out is None:
        likes = (checked[0], *((checked[2], checked[2]) if sums else (None, None)))
        return checked, buffers_for(inputs[0], likes)

    # The caller's own arrays: an output must not overlap these, copied or not.
    names = dialect.names
    taken = dict(zip(names[:4], (src, diff_dst, mean, variance), strict=True))
    if gamma is not None:
        taken[names.gamma] = gamma
    written: list[Array] = []
    for port, value in zip(Names._fields[5:], _members(names, out, sums), strict=True):
        if value is None:
            continue
        name = f"out.{label(port)}"
        array = as_numpy(name, value)
        if port == "diff_src":
            _same(name, array, label("src"), src)
            if not _same_layout(array, dense_src):
                raise ValueError(
                    f"{name} must lie in memory as {names.src} does, with strides "
                    f"{dense_src.strides}; it has {array.strides}. "
                    f"np.empty_like({names.src}) makes such an array"
                )
        else:
            array = statistic(name, array)
            if not _is_contiguous(array):
                raise ValueError(
                    f"{name} must be contiguous and aligned; its strides are {array.strides}"
                )
        if not array.flags.writeable:
            raise ValueError(f"{name} is read-only; pass an array that can be written to")
        _no_overlap(names, port, name, array, taken)
        taken[name] = array
        written.append(array)
    return checked, tuple(written) if sums else (written[0], None, None)


def _no_overlap(names: Names, port: str, label: str, array: Array, taken: dict[str, Array]) -> None:
    cure = "give it memory of its own"
    if port == "diff_src":
        cure = f"it may be exactly {names.diff_dst}, or share no memory with any argument"
        if _same_memory(array, taken[names.diff_dst]):
            taken = {name: other for name, other in taken.items() if name != names.diff_dst}
    for name, other in taken.items():
        if np.may_share_memory(array, other):
            raise ValueError(f"{label} overlaps {name}; {cure}")


def _same(name: str, array: Array, src_name: str, src: Array) -> None:
    if array.dtype != src.dtype:
        raise TypeError(
            f"{name} must be {dtype_name(src.dtype)} as {src_name} is, "
            f"not {dtype_name(array.dtype)}"
        )
    if array.shape != src.shape:
        raise ValueError(f"{name} must have {src_name}'s shape {src.shape}, not {array.shape}")


def _usable(name: str, array: Array, kept: int, like: Array | None = None) -> Array:
    """Return the array itself if the core can use its memory, or else a dense copy."""
    if _core.is_dense(array, kept) and (like is None or _same_layout(array, like)):
        return array
    if like is None:
        copy = np.empty_like(array, order="K")
        if not _core.is_dense(copy, kept):
            copy = np.empty_like(array, order="C")
    else:
        copy = np.empty_like(like, order="K")
    return _copied(name, array, copy)


def _contiguous(name: str, array: Array) -> Array:
    return array if _is_contiguous(array) else _copied(name, array, np.empty_like(array, order="C"))


def _copied(name: str, array: Array, copy: Array) -> Array:
    copy[...] = array
    _log.info(
        "%s copied: strides %s of shape %s are not what a plan can use",
        name,
        array.strides,
        array.shape,
    )
    return copy


def _is_contiguous(array: Array) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned)


def _same_layout(a: Array, b: Array) -> bool:
    if not a.flags.aligned:
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
    dialect: Dialect,
    inputs: Sequence[object],
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    data: str,
    stats_shape: tuple[int, ...],
    statistics: str,
    gamma: bool,
) -> None:
    """Say where arguments that are right in themselves are not those of the compiled plan."""
    for port, value in zip(("src", "diff_dst"), inputs, strict=False):
        name = dialect.label(port)
        array = as_numpy(name, value)
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
    name = dialect.label("mean")
    mean = as_numpy(name, inputs[2])
    if dtype_name(mean.dtype) != statistics:
        raise TypeError(
            f"{name} is {dtype_name(mean.dtype)}, and this was compiled for "
            f'stats_dtype="{statistics}"'
        )
    if mean.shape != stats_shape:
        raise ValueError(f"{name} has shape {mean.shape}, and this was compiled for {stats_shape}")
    if (inputs[4] is not None) != gamma:
        raise TypeError(
            f"{dialect.label('gamma')} is {'missing' if gamma else 'given'}, and this was "
            f"compiled with gamma={gamma}"
        )
