"""Dense copies of arrays that are right but for how they lie in memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from .. import _core
from ..tensors.arrays import Array, is_contiguous, same_layout
from ._schema import OpSchema, channel_axis

_log = logging.getLogger("onedsl")


def inputs(
    schema: OpSchema, statistics_shape: _core.StatisticsShape, arrays: Sequence[Array | None]
) -> tuple[Array | None, ...]:
    """Give the arrays themselves where the core takes their memory, and dense copies elsewhere."""
    tensors: list[Array] = []
    dense: list[Array | None] = []
    kept = _kept_axes(schema, statistics_shape, arrays)
    for port, array in zip(schema.inputs, arrays, strict=True):
        if array is None:
            dense.append(None)
        elif port.kind == "statistic":
            dense.append(_contiguous(port.label, array))
        else:
            tensors.append(_usable(port.label, array, kept, tensors[0] if tensors else None))
            dense.append(tensors[-1])
    return tuple(dense)


def _kept_axes(
    schema: OpSchema, statistics_shape: _core.StatisticsShape, arrays: Sequence[Array | None]
) -> int:
    """Give the axes that the statistics keep, one bit each."""
    first: dict[str, Array] = {}
    for port, array in zip(schema.inputs, arrays, strict=True):
        if array is not None:
            first.setdefault(port.kind, array)
    axis = channel_axis(statistics_shape)
    if axis is not None:
        return 1 << (axis % first["tensor"].ndim)
    return sum(1 << axis for axis, size in enumerate(first["statistic"].shape) if size != 1)


def _usable(name: str, array: Array, kept: int, like: Array | None) -> Array:
    if _core.is_dense(array, kept) and (like is None or same_layout(array, like)):
        return array
    if like is None:
        copy = np.empty_like(array, order="K")
        if not _core.is_dense(copy, kept):
            copy = np.empty_like(array, order="C")
    else:
        copy = np.empty_like(like, order="K")
    return _copied(name, array, copy)


def _contiguous(name: str, array: Array) -> Array:
    return array if is_contiguous(array) else _copied(name, array, np.empty_like(array, order="C"))


def _copied(name: str, array: Array, copy: Array) -> Array:
    copy[...] = array
    _log.info(
        "%s copied: strides %s of shape %s are not what a plan can use",
        name,
        array.strides,
        array.shape,
    )
    return copy
