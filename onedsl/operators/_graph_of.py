"""oneDNN's graphs of calls of the operators, exactly as the calls describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..graph import Graph, GraphOp, LogicalTensor
from ..runtime.errors import UnsupportedError
from ..tensors.ports import Port, signature
from ..tensors.spec import TensorSpec
from .attributes import ACTIVATIONS

if TYPE_CHECKING:
    from .base import ChannelOperator

Tensors = dict[str, LogicalTensor]
"""Tensors by the core's names of the ports."""

OpRow = tuple[str, Mapping[str, Any], Sequence[str], Sequence[str]]
"""An op: kind, attributes, names of the inputs, names of the outputs. Other names than those of the
core's ports are tensors between two ops."""


ACTIVATION_KINDS = {
    "relu": "ReLU",
    "leaky_relu": "LeakyReLU",
    "hardswish": "HardSwish",
    "gelu": "GELU",
}
"""The kinds of ops for activations. oneDNN has none for the others."""


def batch_norm(operator: ChannelOperator[Any], operation: str, **renamed: str) -> OpRow:
    """Return an operator's batch norm, an operation. `renamed` are its ports on other tensors."""
    ports = signature(operation)
    given = {n: v for n, v in operator._attributes.items() if v is not None}
    for name in ("activation", "clip", "negative_slope"):  # which `activation` passes
        given.pop(name, None)
    inputs, outputs = (
        [renamed.get(port.name, port.name) for port in side]
        for side in (ports.inputs, ports.outputs)
    )
    return ports.name, given | {"data_format": str(operator.data_format)}, inputs, outputs


def activation(operator: ChannelOperator[Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the attributes of oneDNN's op for an operator's activation."""
    name, parameter = operator._activation
    kind = ACTIVATION_KINDS.get(name)
    if kind is None:
        raise UnsupportedError(f"oneDNN's Graph API has no op for {name}", "unimplemented")
    if name == "leaky_relu":
        return kind, {"alpha": ACTIVATIONS[name].default if parameter is None else parameter}
    return (kind, {}) if parameter is None else ("Clamp", {"min": 0.0, "max": parameter})


def act_forward(operator: ChannelOperator[Any], absent: set[str]) -> list[OpRow]:
    """Return the ops of batch norm, the addition of a residual that is present, and activation."""
    ops: list[OpRow] = [batch_norm(operator, "forward_training", dst="normalized")]
    result = "normalized"
    if "residual" not in absent:
        ops.append(("Add", {}, ("normalized", "residual"), (result := "total",)))
    return [*ops, (*activation(operator), (result,), ("dst",))]


def graph_of(
    operator: ChannelOperator[Any],
    spec: TensorSpec,
    stats_dtype: object,
    given: Sequence[bool],
    all_outputs: bool = True,
) -> tuple[Graph, Tensors]:
    """Return the graph of a call, and the tensors of its inputs and outputs.

    `given` has an item for each input of the schema: whether the call passes it.
    """
    schema = operator._schema
    statistics = operator._check_spec(spec, stats_dtype)
    statistic = TensorSpec(operator.data_format.channels_of(spec.shape), statistics)
    ports = signature(schema.operation)
    passed = [port for port, passed in zip(ports.inputs, given, strict=True) if passed]
    computed = [port for port in ports.outputs if all_outputs or not port.optional]
    tensors: Tensors = {}

    def add_tensor(port: Port) -> LogicalTensor:
        like = spec if port.kind == "tensor" else statistic
        tensor = LogicalTensor(len(tensors), like.dtype, like.shape, like.strides)
        return tensors.setdefault(port.name, tensor)

    for port in (*passed, *computed):
        add_tensor(port)
    absent = {port.name for port in (*ports.inputs, *ports.outputs)} - tensors.keys()

    def present(names: Sequence[str]) -> tuple[LogicalTensor, ...]:
        return tuple(add_tensor(Port(name)) for name in names if name not in absent)

    ops = tuple(
        GraphOp(i, kind, kind, attrs, present(inputs), present(outputs))
        for i, (kind, attrs, inputs, outputs) in enumerate(operator._ops(absent))
    )
    names = tuple((tensors[n].id, n) for n in ("residual", "diff_residual") if n in tensors)
    return Graph(ops, names=names), tensors
