"""Dense copies of valid but strided arrays."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from .. import _core
from ..tensors.arrays import Array, is_contiguous, same_layout
from ._schema import OpSchema

_log = logging.getLogger("onedsl")


def dense_inputs(schema: OpSchema, arrays: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """Return the arrays that are dense like the first tensor, and dense copies of the others."""
    first: Array | None = None
    dense: list[Array | None] = []
    for port, array in zip(schema.inputs, arrays, strict=True):
        if array is None:
            dense.append(None)
        elif port.kind == "statistic":
            dense.append(_contiguous(port.name, array))
        else:
            tensor = _dense(port.name, array, first)
            first = tensor if first is None else first
            dense.append(tensor)
    return tuple(dense)


def _dense(name: str, array: Array, first: Array | None) -> Array:
    """Return a tensor, or a copy, that is dense and has the strides of the first tensor."""
    if _core.is_dense(array) and (first is None or same_layout(array, first)):
        return array
    return _copy(name, array, np.empty_like(array if first is None else first, order="K"))


def _contiguous(name: str, array: Array) -> Array:
    return array if is_contiguous(array) else _copy(name, array, np.empty_like(array, order="C"))


def _copy(name: str, array: Array, copy: Array) -> Array:
    copy[...] = array
    _log.info("%s copied: shape %s, strides %s", name, array.shape, array.strides)
    return copy
