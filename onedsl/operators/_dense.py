"""Dense copies of valid but strided arrays."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from .. import _core
from ..tensors.arrays import Array, is_contiguous, same_layout
from ._schema import OpSchema, channel_axis

_log = logging.getLogger("onedsl")


def dense_inputs(
    schema: OpSchema, statistics_shape: _core.StatisticsShape, arrays: Sequence[Array | None]
) -> tuple[Array | None, ...]:
    """Return the arrays whose memory the core can use, and dense copies of the others."""
    first: Array | None = None
    dense: list[Array | None] = []
    kept = _kept_axes(schema, statistics_shape, arrays)
    for port, array in zip(schema.inputs, arrays, strict=True):
        if array is None:
            dense.append(None)
        elif port.kind == "statistic":
            dense.append(_contiguous(port.label, array))
        else:
            tensor = _dense(port.label, array, kept, first)
            first = tensor if first is None else first
            dense.append(tensor)
    return tuple(dense)


def _kept_axes(
    schema: OpSchema, statistics_shape: _core.StatisticsShape, arrays: Sequence[Array | None]
) -> int:
    """Return the axes of the statistics as a bit mask: the channel axis, or those of size > 1."""
    first: dict[str, Array] = {}
    for port, array in zip(schema.inputs, arrays, strict=True):
        if array is not None:
            first.setdefault(port.kind, array)
    axis = channel_axis(statistics_shape)
    if axis is not None:
        return 1 << (axis % first["tensor"].ndim)
    return sum(1 << axis for axis, size in enumerate(first["statistic"].shape) if size != 1)


def _dense(name: str, array: Array, kept: int, first: Array | None) -> Array:
    """Return a tensor, or a copy, that is dense and has the strides of the first tensor."""
    if _core.is_dense(array, kept) and (first is None or same_layout(array, first)):
        return array
    if first is not None:
        return _copy(name, array, np.empty_like(first, order="K"))
    copy = np.empty_like(array, order="K")
    if not _core.is_dense(copy, kept):
        copy = np.empty_like(array, order="C")
    return _copy(name, array, copy)


def _contiguous(name: str, array: Array) -> Array:
    return array if is_contiguous(array) else _copy(name, array, np.empty_like(array, order="C"))


def _copy(name: str, array: Array, copy: Array) -> Array:
    copy[...] = array
    _log.info("%s copied: shape %s, strides %s", name, array.shape, array.strides)
    return copy
