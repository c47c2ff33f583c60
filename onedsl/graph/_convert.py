"""Conversion between parts of graphs and the tuples of the C++ core (`onedsl/_core.pyi`)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _core
from ._parts import GraphOp, LogicalTensor, Partition

DUMP_ATTRIBUTES = ("backend", "partition_id")
"""Attributes that oneDNN adds to the dump of a partitioned graph."""


def ops_to_core(ops: Sequence[GraphOp]) -> tuple[_core.Node, ...]:
    """Return ops, which must be valid, as tuples."""
    return tuple(
        (
            op.id,
            op.name,
            op.kind,
            tuple(
                (name, float(value) if type(value) is int else value)
                for name, value in op.attrs.items()
                if name not in DUMP_ATTRIBUTES
            ),
            tensors_to_core(op.inputs),
            tensors_to_core(op.outputs),
        )
        for op in ops
    )


def tensors_to_core(tensors: Sequence[LogicalTensor]) -> tuple[_core.TensorTuple, ...]:
    """Return tensors, whose shape and strides must be known, as tuples."""
    return tuple(
        (t.id, t.dtype, t.shape or (), t.strides or (), t.layout_type, t.property_type)
        for t in tensors
    )


def partitions_from_core(
    ops: Sequence[GraphOp], partitions: Sequence[_core.PartitionTuple]
) -> tuple[Partition, ...]:
    """Return tuples as partitions of a graph with these ops."""
    kinds = {op.id: op.kind for op in ops}
    parts = []
    for number, op_ids, supported, inputs, outputs in partitions:
        kind = " + ".join(kinds[i] for i in op_ids)
        sides = _tensors(inputs), _tensors(outputs)
        parts.append(Partition(number, kind, tuple(op_ids), supported, *sides))
    return tuple(parts)


def _tensors(rows: Sequence[_core.TensorTuple]) -> tuple[LogicalTensor, ...]:
    return tuple(
        LogicalTensor(number, dtype, tuple(shape), tuple(strides), layout, prop)
        for number, dtype, shape, strides, layout, prop in rows
    )
