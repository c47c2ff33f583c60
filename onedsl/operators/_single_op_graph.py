"""The operator `BatchNormTrainingBackward` as a graph of one op, and back."""

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

INPUTS, OUTPUTS = _core.ports(_core.Operation.training_backward)
_TENSORS = ("src", "diff_dst", "diff_src")

# What oneDNN adds where it dumps a graph after it was partitioned.
_NOTES = ("backend", "partition_id")


def graph_of(
    attributes: Mapping[str, Any],
    spec: TensorSpec | None,
    stats_dtype: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Graph:
    """Describe one call; without a spec its sizes are not known."""
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
class ArrayInfo:
    """What a graph says of one call."""

    epsilon: float
    data_format: DataFormat
    dtype: str
    stats_dtype: str
    inputs: Mapping[str, LogicalTensor]
    outputs: Mapping[str, LogicalTensor]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of src."""
        return self.inputs["src"].shape


def described(graph: Graph) -> ArrayInfo:
    """Read a graph of the one op.

    Raises
    ------
    ValueError
        If it is another graph, or describes what the op does not take. The message names the
        place.
    """
    if graph.engine_kind != "cpu":
        raise ValueError(f'engine_kind is "{graph.engine_kind}"; onedsl runs on a "cpu"')
    for i, other in enumerate(graph.ops):
        if other.kind != KIND:
            raise ValueError(f'graph[{i}].kind is "{other.kind}"; onedsl runs graphs of one {KIND}')
    if len(graph.ops) != 1:
        raise ValueError(f"graph has {len(graph.ops)} ops; onedsl runs graphs of one {KIND}")
    (op,) = graph.ops
    if len(op.inputs) not in (4, 5):
        raise _wrong("inputs", f"has {len(op.inputs)} tensors", "4 (no gamma) or 5")
    if len(op.outputs) not in (1, 3):
        raise _wrong("outputs", f"has {len(op.outputs)} tensors", "1 (diff_src) or 3")
    inputs = dict(zip(INPUTS, op.inputs, strict=False))
    outputs = dict(zip(OUTPUTS, op.outputs, strict=False))
    epsilon, data_format = _attributes_of(op)
    _check_types(op)
    _check_shapes(op, data_format)
    return ArrayInfo(epsilon, data_format, op.inputs[0].dtype, op.inputs[2].dtype, inputs, outputs)


def _wrong(place: str, got: str, wanted: str) -> ValueError:
    return ValueError(f"graph[0].{place} {got}, and must be {wanted}")


def _ports(op: GraphOp) -> list[tuple[str, str, LogicalTensor]]:
    """List place, name and tensor of each port."""
    named = ((INPUTS, "inputs", op.inputs), (OUTPUTS, "outputs", op.outputs))
    return [
        (f"{side}[{i}]", name, tensor)
        for names, side, tensors in named
        for i, (name, tensor) in enumerate(zip(names, tensors, strict=False))
    ]


def _attributes_of(op: GraphOp) -> tuple[float, DataFormat]:
    for name in op.attrs:
        if name not in ("epsilon", "data_format", *_NOTES):
            raise ValueError(f"graph[0].attrs.{name} is no attribute of {KIND}")
    if "epsilon" not in op.attrs:
        raise ValueError("graph[0].attrs.epsilon is missing")
    try:
        return (
            _attributes.epsilon(op.attrs["epsilon"]),
            parse_data_format(op.attrs.get("data_format", "NXC")),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"graph[0].attrs: {error}") from None


def _check_types(op: GraphOp) -> None:
    for place, name, tensor in _ports(op):
        like = op.inputs[0 if name in _TENSORS else 2]
        if tensor.dtype not in DTYPES:
            raise _wrong(f"{place}.dtype", f'({name}) is "{tensor.dtype}"', ", ".join(DTYPES))
        if tensor.dtype != like.dtype:
            kind = "src's" if name in _TENSORS else "mean's"
            raise _wrong(f"{place}.dtype", f'({name}) is "{tensor.dtype}"', f"{kind}: {like.dtype}")
        if tensor.layout_type not in ("strided", "any", "undef"):
            raise _wrong(f"{place}.layout_type", f'({name}) is "{tensor.layout_type}"', "strided")
    data, statistics = op.inputs[0].dtype, op.inputs[2].dtype
    if statistics not in STATISTICS[data]:
        wanted = f"{' or '.join(STATISTICS[data])} beside {data}"
        raise _wrong("inputs[2].dtype", f'(mean) is "{statistics}"', wanted)


def _check_shapes(op: GraphOp, data_format: DataFormat) -> None:
    shape = op.inputs[0].shape
    if shape is None:
        return
    if len(shape) < 2:
        raise _wrong("inputs[0].shape", f"(src) is {shape}", "of rank 2 or more")
    channels = (shape[data_format.channel_axis],)
    for place, name, tensor in _ports(op):
        wanted = shape if name in _TENSORS else channels
        if place.startswith("outputs") and tensor.shape is None:
            continue  # to be inferred
        if tensor.shape != wanted:
            why = "src's" if name in _TENSORS else f"(C,) of src {shape} in {data_format}"
            raise _wrong(f"{place}.shape", f"({name}) is {tensor.shape}", f"{wanted}, {why}")
        if place.startswith("inputs"):
            _check_strides(place, name, tensor, wanted)


def _check_strides(place: str, name: str, tensor: LogicalTensor, shape: tuple[int, ...]) -> None:
    """See to it that no element is where another is."""
    if tensor.strides is None or 0 in shape:
        return
    least = 1
    for stride, size in sorted(zip(tensor.strides, shape, strict=True)):
        if size > 1:
            if stride < least:
                wanted = "strides in which no two elements overlap"
                raise _wrong(f"{place}.stride", f"({name}) is {tensor.strides}", wanted)
            least = stride * size
