"""oneDNN's graphs of calls of the operators, exactly as the calls describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..graph import Graph, GraphOp, LogicalTensor
from ..runtime.errors import UnsupportedError
from ..tensors.ports import Port, signature
from ..tensors.spec import TensorSpec

if TYPE_CHECKING:
    from .base import ChannelOperator

Tensors = dict[str, LogicalTensor]
"""Tensors by the core's names of the ports."""

Row = tuple[str, dict[str, Any], str, str]
"""An op: kind, attributes, names of the inputs, names of the outputs."""


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
    statistic = TensorSpec((spec.shape[operator.data_format.channel_axis],), statistics)
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

    def present(names: str) -> tuple[LogicalTensor, ...]:
        """Return tensors by name. Other names than those of ports are tensors between two ops."""
        return tuple(add_tensor(Port(name)) for name in names.split() if name not in absent)

    rows = _rows(operator, schema.operation, absent)
    ops = tuple(
        GraphOp(i, kind, kind, attrs, present(inputs), present(outputs))
        for i, (kind, attrs, inputs, outputs) in enumerate(rows)
    )
    names = tuple((tensors[n].id, n) for n in ("residual", "diff_residual") if n in tensors)
    return Graph(ops, names=names), tensors


def _rows(
    operator: ChannelOperator[Any], operation: _core.Operation, absent: set[str]
) -> list[Row]:
    """Return the ops."""
    norm = {n: v for n, v in operator._attributes.items() if v is not None}
    norm["data_format"] = str(operator.data_format)
    clip = norm.pop("clip", None)
    relu, bounds = ("ReLU", {}) if clip is None else ("Clamp", {"min": 0.0, "max": clip})

    def forward(dst: str) -> Row:
        outputs = f"{dst} running_mean running_variance batch_mean batch_variance"
        return "BatchNormForwardTraining", norm, "src mean variance gamma beta", outputs

    def gradient(diff_dst: str) -> Row:
        inputs = f"src {diff_dst} mean variance gamma"
        return "BatchNormTrainingBackward", norm, inputs, "diff_src diff_gamma diff_beta"

    match operation:
        case _core.Operation.forward_training:
            return [forward("dst")]
        case _core.Operation.training_backward:
            return [gradient("diff_dst")]
        case _core.Operation.relu_forward_training:
            if "residual" in absent:
                return [forward("normalized"), (relu, bounds, "normalized", "dst")]
            add: Row = "Add", {}, "normalized residual", "total"
            return [forward("normalized"), add, (relu, bounds, "total", "dst")]
        case _core.Operation.relu_training_backward:
            if "dst" in absent:
                reason = "dst must be given: oneDNN's ReLUBackward needs it"
                raise UnsupportedError(reason, "unimplemented")
            masked = "masked" if "diff_residual" in absent else "diff_residual"
            attrs = bounds | {"use_dst": True}
            return [(f"{relu}Backward", attrs, "dst diff_dst", masked), gradient(masked)]
