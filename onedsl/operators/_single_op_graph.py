"""Conversion between calls of `BatchNormTrainingBackward` and graphs of one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..graph import Graph, GraphOp, LogicalTensor
from ..tensors.dtypes import DTYPES, STATISTICS
from ..tensors.spec import DataFormat, TensorSpec, parse_data_format
from . import _attributes

KIND = "BatchNormTrainingBackward"

_SIGNATURE = _core.signature(_core.Operation.training_backward)
INPUTS = tuple(name for name, *_ in _SIGNATURE["inputs"])
OUTPUTS = tuple(name for name, *_ in _SIGNATURE["outputs"])
_TENSORS = {
    name for name, is_tensor, *_ in (*_SIGNATURE["inputs"], *_SIGNATURE["outputs"]) if is_tensor
}

# Attributes that oneDNN adds to the dump of a partitioned graph.
_DUMP_ATTRIBUTES = ("backend", "partition_id")


def graph_of(
    attributes: Mapping[str, Any],
    spec: TensorSpec | None,
    stats_dtype: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Graph:
    """Return the graph of one call. Without a spec, sizes are unknown."""
    ids = {name: i for i, name in enumerate((*inputs, *outputs))}

    def logical(name: str) -> LogicalTensor:
        dtype = stats_dtype
        shape: tuple[int, ...] | None = None
        strides: tuple[int, ...] | None = None
        if name in _TENSORS:
            dtype = "f32" if spec is None else spec.dtype
            if spec is not None:
                shape, strides = spec.shape, spec.strides
        elif spec is not None:
            axis = DataFormat(attributes["data_format"]).channel_axis
            shape, strides = (spec.shape[axis],), (1,)
        return LogicalTensor(ids[name], dtype, shape, strides)

    op = GraphOp(
        0,
        KIND,
        KIND,
        {"epsilon": float(attributes["epsilon"]), "data_format": attributes["data_format"]},
        tuple(map(logical, inputs)),
        tuple(map(logical, outputs)),
    )
    return Graph((op,))


@dataclass(frozen=True)
class CallInfo:
    """One call, read from a graph."""

    epsilon: float
    data_format: DataFormat
    dtype: str
    stats_dtype: str
    inputs: Mapping[str, LogicalTensor]
    outputs: Mapping[str, LogicalTensor]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of src."""
        return self.inputs["src"].shape


def parse_graph(graph: Graph) -> CallInfo:
    """Return the call that a graph of one op describes.

    Raises
    ------
    ValueError
        If the graph has other ops, or the op does not support the call. The message contains the
        path of the invalid member, such as ``graph[0].inputs[2].shape``.
    """
    if graph.engine_kind != "cpu":
        raise ValueError(f'engine_kind must be "cpu", got "{graph.engine_kind}"')
    for i, other in enumerate(graph.ops):
        if other.kind != KIND:
            raise ValueError(f'graph[{i}].kind must be "{KIND}", got "{other.kind}"')
    if len(graph.ops) != 1:
        raise ValueError(f"graph must have one op, got {len(graph.ops)}")
    (op,) = graph.ops
    if len(op.inputs) not in (4, 5):
        raise _error("inputs", "4 (no gamma) or 5 tensors", len(op.inputs))
    if len(op.outputs) not in (1, 3):
        raise _error("outputs", "1 (diff_src) or 3 tensors", len(op.outputs))
    inputs = dict(zip(INPUTS, op.inputs, strict=False))
    outputs = dict(zip(OUTPUTS, op.outputs, strict=False))
    epsilon, data_format = _attributes_of(op)
    _check_types(op)
    _check_shapes(op, data_format)
    return CallInfo(epsilon, data_format, op.inputs[0].dtype, op.inputs[2].dtype, inputs, outputs)


def _error(path: str, expected: str, got: object) -> ValueError:
    return ValueError(f"graph[0].{path} must be {expected}, got {got}")


def _ports(op: GraphOp) -> list[tuple[str, str, LogicalTensor]]:
    """Return the path in the graph, the name and the tensor of each port."""
    named = ((INPUTS, "inputs", op.inputs), (OUTPUTS, "outputs", op.outputs))
    return [
        (f"{side}[{i}]", name, tensor)
        for names, side, tensors in named
        for i, (name, tensor) in enumerate(zip(names, tensors, strict=False))
    ]


def _attributes_of(op: GraphOp) -> tuple[float, DataFormat]:
    for name in op.attrs:
        if name not in ("epsilon", "data_format", *_DUMP_ATTRIBUTES):
            raise ValueError(f"graph[0].attrs.{name} is not an attribute of {KIND}")
    if "epsilon" not in op.attrs:
        raise ValueError("graph[0].attrs.epsilon is missing")
    try:
        return (
            _attributes.parse_epsilon(op.attrs["epsilon"]),
            parse_data_format(op.attrs.get("data_format", "NXC")),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"graph[0].attrs: {error}") from None


def _check_types(op: GraphOp) -> None:
    data, statistics = op.inputs[0].dtype, op.inputs[2].dtype
    for path, name, tensor in _ports(op):
        dtype, like = (data, "src") if name in _TENSORS else (statistics, "mean")
        got = f'"{tensor.dtype}" for {name}'
        if tensor.dtype not in DTYPES:
            raise _error(f"{path}.dtype", " or ".join(DTYPES), got)
        if tensor.dtype != dtype:
            raise _error(f"{path}.dtype", f"{dtype} like {like}", got)
        if tensor.layout_type not in ("strided", "any", "undef"):
            raise _error(f"{path}.layout_type", "strided", f'"{tensor.layout_type}" for {name}')
    if statistics not in STATISTICS[data]:
        expected = f"{' or '.join(STATISTICS[data])} where src is {data}"
        raise _error("inputs[2].dtype", expected, f'"{statistics}" for mean')


def _check_shapes(op: GraphOp, data_format: DataFormat) -> None:
    shape = op.inputs[0].shape
    if shape is None:
        return
    if len(shape) < 2:
        raise _error("inputs[0].shape", "of rank 2 or more", f"{shape} for src")
    channels = (shape[data_format.channel_axis],)
    for path, name, tensor in _ports(op):
        if path.startswith("outputs") and tensor.shape is None:
            continue  # oneDNN infers it
        expected, like = (shape, "src's shape") if name in _TENSORS else (channels, "shape (C,)")
        if tensor.shape != expected:
            got = f"{tensor.shape} for {name} with src {shape} in {data_format}"
            raise _error(f"{path}.shape", f"{expected}, {like}", got)
        if path.startswith("inputs"):
            _check_strides(path, name, tensor, expected)


def _check_strides(path: str, name: str, tensor: LogicalTensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError if elements may share memory."""
    if tensor.strides is None or 0 in shape:
        return
    smallest = 1
    for stride, size in sorted(zip(tensor.strides, shape, strict=True)):
        if size > 1:
            if stride < smallest:
                expected = "strides without overlapping elements"
                raise _error(f"{path}.stride", expected, f"{tensor.strides} for {name}")
            smallest = stride * size
