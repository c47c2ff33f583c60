"""Conversion between parts of graphs and the tuples of the C++ core (`onedsl/_core.pyi`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from ._parts import Attribute, GraphOp, LogicalTensor, Partition

DUMP_ATTRIBUTES = ("backend", "partition_id")
"""Attributes that oneDNN adds to the dump of a partitioned graph."""


def ops_to_core(ops: Sequence[GraphOp]) -> list[_core.Node]:
    """Return ops, which must be valid, as tuples."""
    nodes: list[_core.Node] = []
    for op in ops:
        attrs: list[tuple[str, Any]] = [
            (name, float(value) if type(value) is int else value)
            for name, value in op.attrs.items()
            if name not in DUMP_ATTRIBUTES
        ]
        inputs, outputs = (
            [dataclasses.astuple(t) for t in side] for side in (op.inputs, op.outputs)
        )
        nodes.append((op.id, op.name, op.kind, attrs, inputs, outputs))
    return nodes


def ops_from_core(nodes: Sequence[_core.Node]) -> tuple[GraphOp, ...]:
    """Return tuples as ops."""
    ops = []
    for number, name, kind, attrs, inputs, outputs in nodes:
        attributes = {key: _attribute(value) for key, value in attrs}
        ops.append(GraphOp(number, name, kind, attributes, _tensors(inputs), _tensors(outputs)))
    return tuple(ops)


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


def _attribute(value: Any) -> Attribute:
    """Return a float32 of oneDNN as the shortest decimal that rounds to it."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
