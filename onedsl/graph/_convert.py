"""Conversion between parts of graphs and the tuples of the C++ core (`onedsl/_core.pyi`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from ._parts import Attribute, GraphOp, LogicalTensor, Partition

DUMP_ATTRIBUTES = ("backend", "partition_id")
"""Attributes that oneDNN adds to the dump of a partitioned graph."""


def ops_to_core(ops: Sequence[GraphOp]) -> list[_core.Node]:
    """Return ops, which must be valid, as tuples."""
    return [
        (
            op.id,
            op.name,
            op.kind,
            [
                (name, float(value) if type(value) is int else value)
                for name, value in op.attrs.items()
                if name not in DUMP_ATTRIBUTES
            ],
            [_tensor_to_core(tensor) for tensor in op.inputs],
            [_tensor_to_core(tensor) for tensor in op.outputs],
        )
        for op in ops
    ]


def ops_from_core(ops: Sequence[_core.Node]) -> tuple[GraphOp, ...]:
    """Return tuples as ops."""
    return tuple(
        GraphOp(
            number,
            name,
            kind,
            {key: _attribute(value) for key, value in attrs},
            _tensors_from_core(inputs),
            _tensors_from_core(outputs),
        )
        for number, name, kind, attrs, inputs, outputs in ops
    )


def partitions_from_core(
    ops: Sequence[GraphOp], partitions: Sequence[_core.PartitionTuple]
) -> tuple[Partition, ...]:
    """Return tuples as partitions of a graph with these ops."""
    kinds = {op.id: op.kind for op in ops}
    return tuple(
        Partition(
            number,
            " + ".join(kinds[i] for i in op_ids),
            tuple(op_ids),
            supported,
            _tensors_from_core(inputs),
            _tensors_from_core(outputs),
        )
        for number, op_ids, supported, inputs, outputs in partitions
    )


def _tensor_to_core(tensor: LogicalTensor) -> _core.TensorTuple:
    shape, strides = tensor.shape or (), tensor.strides or ()
    return (
        tensor.id, tensor.dtype, shape, strides, tensor.layout_type, tensor.property_type
    )  # fmt: skip


def _tensors_from_core(rows: Sequence[_core.TensorTuple]) -> tuple[LogicalTensor, ...]:
    return tuple(
        LogicalTensor(number, dtype, tuple(shape), tuple(strides), layout, prop)
        for number, dtype, shape, strides, layout, prop in rows
    )


def _attribute(value: Any) -> Attribute:
    """Return a float32 of oneDNN as the shortest decimal that rounds to it."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
