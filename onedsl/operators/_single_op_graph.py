"""Graphs of one call of an operator."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..graph import Graph, GraphOp, LogicalTensor
from ..tensors.dtypes import dtype_name
from ..tensors.spec import DataFormat, TensorSpec, c_strides
from . import _validation
from ._operator import ChannelOperator

_KINDS = {
    _core.Operation.training_backward: "BatchNormTrainingBackward",
    _core.Operation.forward_training: "BatchNormForwardTraining",
}


def graph_of(
    operator: ChannelOperator[Any],
    spec: TensorSpec,
    stats_dtype: object,
    gamma: bool,
    all_outputs: bool = True,
) -> Graph:
    """Return the graph of one call, with oneDNN's port names."""
    schema = operator._schema
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
        shape = (spec.shape[operator.data_format.channel_axis],)
        return LogicalTensor(number, statistics, shape, c_strides(shape))

    tensors = [logical(i, is_tensor) for i, (_, is_tensor) in enumerate([*inputs, *outputs])]
    kind, end = _KINDS[schema.operation], len(inputs)
    attrs = {
        name: str(value) if isinstance(value, DataFormat) else value
        for name, value in operator._attributes.items()
        if value is not None
    }
    op = GraphOp(0, kind, kind, attrs, tuple(tensors[:end]), tuple(tensors[end:]))
    return Graph((op,))
