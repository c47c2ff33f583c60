"""The call out of XLA's program into onedsl by way of Python."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from .. import _core
from ..operators._schema import OpSchema
from ._arguments import Attributes, refuse_platforms

_CPU = 1  # kDLCPU, DLPack's number for it


def call(
    schema: OpSchema,
    attributes: Attributes,
    results: Sequence[jax.ShapeDtypeStruct],
    *inputs: jax.Array | None,
) -> list[jax.Array]:
    """Put the call into the program that JAX traces."""
    operator = dataclasses.replace(schema, statistics=attributes.statistics).core_operator(
        attributes.epsilon, attributes.data_format.statistics_shape_kind
    )
    # Under vmap this is one call for all items, on views, where "sequential" would copy each.
    run = functools.partial(_run, operator, schema.all_outputs, len(results[0].shape))
    outputs: list[jax.Array] = buffer_callback(run, list(results), vmap_method="expand_dims")(
        *inputs
    )
    return outputs


def _run(
    operator: _core.Operator,
    wanted: int,
    rank: int,
    _context: object,
    results: Any,
    *inputs: Any,
) -> None:
    """Compute into XLA's buffers, for each item of the axes that vmap has put in front.

    No array of JAX is made here: JAX may need this very thread to do so.
    """
    if inputs[0].__dlpack_device__()[0] != _CPU:
        refuse_platforms("src", {"a device that is no CPU"})
    arrays = [None if buffer is None else np.asarray(buffer) for buffer in inputs]
    out = [np.asarray(buffer) for buffer in results]
    batch = out[0].shape[: out[0].ndim - rank]
    for item in itertools.product(*map(range, batch)):
        ports = tuple(None if array is None else _item(array, item) for array in arrays)
        buffers = tuple(_item(array, item) for array in out)
        if operator.run(ports, wanted, buffers, _core.Backend.auto) is None:
            raise AssertionError("the core refused arguments that were checked while JAX traced")


def _item(array: np.ndarray[Any, Any], item: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Take an item of the batch, or the only one, which is that of all of the batch."""
    if not item:
        return array
    view: np.ndarray[Any, Any] = array[
        tuple(min(i, size - 1) for i, size in zip(item, array.shape, strict=False))
    ]
    return view
