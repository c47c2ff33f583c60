"""oneDNN's graphs of calls of the operators, exactly as the calls describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..graph import Graph, GraphOp, LogicalTensor
from ..runtime.errors import UnsupportedError
from ..tensors.dtypes import dtype_name
from ..tensors.ports import Port, signature
from ..tensors.spec import TensorSpec, c_strides
from . import validation

if TYPE_CHECKING:
    from .base import ChannelOperator

Tensors = dict[str, LogicalTensor]
"""Tensors by the core's names of the ports."""


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
    statistics = dtype_name(stats_dtype, "stats_dtype")
    validation.check_rank(schema, validation.check_spec(spec).shape)
    validation.check_dtypes(schema, spec.dtype, statistics, "stats_dtype")
    channels = (spec.shape[operator.data_format.channel_axis],)
    builder = _Builder(operator, spec, TensorSpec(channels, statistics))
    ports = signature(schema.operation)
    inputs = [port for port, passed in zip(ports.inputs, given, strict=True) if passed]
    outputs = [port for port in ports.outputs if all_outputs or not port.optional]
    tensors = {port.name: builder.tensor(port) for port in (*inputs, *outputs)}
    _ADD[schema.operation](builder, tensors)
    names = tuple((tensors[n].id, n) for n in ("residual", "diff_residual") if n in tensors)
    return Graph(tuple(builder.ops), names=names), tensors


class _Builder:
    """The ops of a graph."""

    def __init__(
        self, operator: ChannelOperator[Any], spec: TensorSpec, statistics: TensorSpec
    ) -> None:
        self.ops: list[GraphOp] = []
        self._specs = {"tensor": spec, "statistic": statistics}
        self._num_tensors = 0
        attributes = {n: v for n, v in operator._attributes.items() if v is not None}
        clip = attributes.pop("clip", None)
        self.bounds = {} if clip is None else {"min": 0.0, "max": clip}
        self.norm = attributes | {"data_format": str(operator.data_format)}

    def tensor(self, port: Port) -> LogicalTensor:
        """Return a new tensor for a port."""
        spec = self._specs[port.kind]
        self._num_tensors += 1
        strides = spec.strides if port.kind == "tensor" else c_strides(spec.shape)
        return LogicalTensor(self._num_tensors - 1, spec.dtype, spec.shape, strides)

    def intermediate(self) -> LogicalTensor:
        """Return a new tensor between two ops."""
        return self.tensor(Port(""))

    def add(
        self,
        kind: str,
        attrs: dict[str, Any],
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
    ) -> None:
        """Add an op, whose name is its kind."""
        self.ops.append(GraphOp(len(self.ops), kind, kind, attrs, tuple(inputs), tuple(outputs)))


def _some(tensors: Tensors, names: str) -> list[LogicalTensor]:
    return [tensors[name] for name in names.split() if name in tensors]


def _add_backward(builder: _Builder, tensors: Tensors) -> None:
    inputs = _some(tensors, "src diff_dst mean variance gamma")
    outputs = _some(tensors, "diff_src diff_gamma diff_beta")
    builder.add("BatchNormTrainingBackward", builder.norm, inputs, outputs)


def _add_forward(builder: _Builder, tensors: Tensors) -> None:
    inputs = _some(tensors, "src mean variance gamma beta")
    outputs = _some(tensors, "dst running_mean running_variance batch_mean batch_variance")
    builder.add("BatchNormForwardTraining", builder.norm, inputs, outputs)


def _add_relu_forward(builder: _Builder, tensors: Tensors) -> None:
    dst = builder.intermediate()
    _add_forward(builder, tensors | {"dst": dst})
    if "residual" in tensors:
        total = builder.intermediate()
        builder.add("Add", {}, [dst, tensors["residual"]], [total])
        dst = total
    kind = "Clamp" if builder.bounds else "ReLU"
    builder.add(kind, builder.bounds, [dst], [tensors["dst"]])


def _add_relu_backward(builder: _Builder, tensors: Tensors) -> None:
    if "dst" not in tensors:
        raise UnsupportedError("dst must be given: oneDNN's ReLUBackward needs it", "unimplemented")
    masked = tensors.get("diff_residual") or builder.intermediate()
    kind = "ClampBackward" if builder.bounds else "ReLUBackward"
    inputs = [tensors["dst"], tensors["diff_dst"]]
    builder.add(kind, builder.bounds | {"use_dst": True}, inputs, [masked])
    _add_backward(builder, tensors | {"diff_dst": masked})


_ADD = {
    _core.Operation.training_backward: _add_backward,
    _core.Operation.forward_training: _add_forward,
    _core.Operation.relu_forward_training: _add_relu_forward,
    _core.Operation.relu_training_backward: _add_relu_backward,
}
