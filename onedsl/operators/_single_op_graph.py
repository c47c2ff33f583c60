"""Conversion between calls of operators and graphs of one op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..graph import Graph, GraphOp, LogicalTensor
from ..graph._check import check_op, port_error, ports_of
from ..tensors.dtypes import STATISTICS, dtype_name
from ..tensors.spec import DataFormat, TensorSpec, c_strides, parse_data_format
from . import _attributes, _validation
from ._schema import OpSchema

KIND = "BatchNormTrainingBackward"

_KINDS = {
    _core.Operation.training_backward: KIND,
    _core.Operation.forward_training: "BatchNormForwardTraining",
}


def graph_of(
    schema: OpSchema,
    attributes: Mapping[str, Any],
    spec: TensorSpec,
    stats_dtype: object,
    *,
    gamma: bool,
    all_outputs: bool = True,
) -> Graph:
    """Return the graph of one call, with oneDNN's port names."""
    statistics = dtype_name(stats_dtype, "stats_dtype")
    _validation.check_bool("gamma", gamma)
    _validation.check_rank(schema, _validation.check_spec(spec).shape)
    _validation.check_dtypes(schema, spec.dtype, statistics, "stats_dtype")
    ports = _core.signature(schema.operation)
    inputs = [(name, tensor) for name, tensor, optional in ports["inputs"] if gamma or not optional]
    outputs = [(name, t) for name, t, always, _ in ports["outputs"] if all_outputs or always]

    def logical(number: int, is_tensor: bool) -> LogicalTensor:
        if is_tensor:
            return LogicalTensor(number, spec.dtype, spec.shape, spec.strides)
        shape = (spec.shape[attributes["data_format"].channel_axis],)
        return LogicalTensor(number, statistics, shape, c_strides(shape))

    tensors = [logical(i, is_tensor) for i, (_, is_tensor) in enumerate([*inputs, *outputs])]
    kind, end = _KINDS[schema.operation], len(inputs)
    attrs = {
        name: str(value) if isinstance(value, DataFormat) else value
        for name, value in attributes.items()
        if value is not None
    }
    op = GraphOp(0, kind, kind, attrs, tuple(tensors[:end]), tuple(tensors[end:]))
    return Graph((op,))


@dataclass(frozen=True)
class CallInfo:
    """One call of `BatchNormTrainingBackward`, read from a graph."""

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

    @property
    def all_outputs(self) -> bool:
        """Whether the call computes all outputs, not only diff_src."""
        return len(self.outputs) > 1


def parse_graph(graph: Graph) -> CallInfo:
    """Return the call that a graph of one op describes.

    Another graph is a ValueError with the path of the invalid member, such as
    ``graph[0].inputs[2] (mean)``.
    """
    if graph.engine_kind != "cpu":
        raise ValueError(f'engine_kind must be "cpu", got "{graph.engine_kind}"')
    for i, other in enumerate(graph.ops):
        if other.kind != KIND:
            raise ValueError(f'graph[{i}].kind must be "{KIND}", got "{other.kind}"')
    if len(graph.ops) != 1:
        raise ValueError(f"graph must have one op, got {len(graph.ops)}")
    (op,) = graph.ops
    check_op(0, op)
    if len(op.outputs) == 2:
        raise ValueError("graph[0].outputs must be 1 (diff_src) or 3 tensors, got 2")
    try:
        epsilon = _attributes.parse_epsilon(op.attrs["epsilon"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"graph[0].attrs: {error}") from None
    ports = ports_of(0, op)
    data, statistics = op.inputs[0].dtype, op.inputs[2].dtype
    for place, port, tensor in ports:
        dtype, like = (data, "src") if port.is_tensor else (statistics, "mean")
        if tensor.dtype != dtype:
            raise port_error(place, port.name, f"have dtype {dtype} like {like}", tensor.dtype)
    if statistics not in STATISTICS[data]:
        expected = f"have dtype {' or '.join(STATISTICS[data])} where src is {data}"
        raise port_error("graph[0].inputs[2]", "mean", expected, statistics)
    names = [port.name for _, port, _ in ports]
    return CallInfo(
        epsilon,
        parse_data_format(op.attrs.get("data_format", "NXC")),
        data,
        statistics,
        dict(zip(names[: len(op.inputs)], op.inputs, strict=True)),
        dict(zip(names[len(op.inputs) :], op.outputs, strict=True)),
    )
