"""Validation of graphs. oneDNN reads memory out of bounds for shapes that do not fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..tensors.dtypes import DTYPES
from ..tensors.ports import Port
from ..tensors.spec import DataFormat, parse_data_format
from ._convert import DUMP_ATTRIBUTES
from ._parts import FORWARD, GRADIENT, PORTS, GraphOp, LogicalTensor

_BATCH_NORM = ("epsilon", "data_format")
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    GRADIENT: _BATCH_NORM,
    FORWARD: (*_BATCH_NORM, "momentum"),
    "Clamp": ("min", "max"),
    "ClampBackward": ("min", "max", "use_dst"),
    "ReLUBackward": ("use_dst",),
}
_MAX_FLOAT = 2.0**128 - 2.0**104  # of float32


def _is_number(value: object) -> bool:
    is_bool = isinstance(value, bool)
    return isinstance(value, int | float) and not is_bool and abs(value) <= _MAX_FLOAT


_NUMBER = _is_number, "a number in the range of float32"
_ATTRIBUTE_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "data_format": (lambda value: isinstance(value, str), "NXC or NCX"),
    "use_dst": (lambda value: isinstance(value, bool), "true or false"),
}

MAX_RANK = 12  # DNNL_MAX_NDIMS
_MAX_INT = 2**63 - 1


def port_error(place: str, name: str, requirement: str, got: object) -> ValueError:
    """Return the exception for a port, such as ``graph[0].inputs[2] (mean)``."""
    return ValueError(f"{place} ({name}) must {requirement}, got {got}")


def ports_of(index: int, op: GraphOp) -> list[tuple[str, Port, LogicalTensor]]:
    """Return the place in the graph, the port and the tensor of each input and output."""
    return [
        (f"graph[{index}].{side}[{i}]", port, tensor)
        for side, tensors in (("inputs", op.inputs), ("outputs", op.outputs))
        for i, (port, tensor) in enumerate(zip(PORTS[op.kind][side], tensors, strict=False))
    ]


def check_graph(ops: Sequence[GraphOp]) -> None:
    """Raise ValueError unless oneDNN can divide a graph into partitions without invalid reads."""
    if not ops:
        raise ValueError("graph must have at least one op, got 0")
    if len({op.id for op in ops}) != len(ops):
        raise ValueError(f"ops must have different ids, got {[op.id for op in ops]}")
    known: dict[int, LogicalTensor] = {}
    later = [tensor.id for op in ops for tensor in op.outputs]
    for i, op in enumerate(ops):
        check_op(i, op)
        for place, port, tensor in ports_of(i, op):
            if tensor.shape is None or tensor.strides is None:
                raise port_error(place, port.name, "have a known shape and stride", tensor)
            if any(abs(number) > _MAX_INT for number in (*tensor.shape, *tensor.strides)):
                raise port_error(place, port.name, "have 64-bit sizes and strides", tensor)
            if tensor.layout_type != "strided":
                raise port_error(place, port.name, "be strided", tensor.layout_type)
            if known.setdefault(tensor.id, tensor) != tensor:
                expected = f"be the same tensor wherever its id is {tensor.id}"
                raise port_error(place, port.name, expected, tensor)
            if ".inputs" in place and tensor.id in later:
                raise port_error(
                    place, port.name, "not be an output of this op or a later one", tensor.id
                )
        if any(later.count(tensor.id) > 1 for tensor in op.outputs):
            ids = [tensor.id for tensor in op.outputs]
            raise ValueError(f"graph[{i}].outputs must have different ids, got {ids}")
        for tensor in op.outputs:
            later.remove(tensor.id)


def check_op(index: int, op: GraphOp) -> None:
    """Raise ValueError unless an op's ports and attributes fit together.

    Tensors of unknown shape are accepted. Types are left to oneDNN and to the operators.
    """
    if op.kind not in PORTS:
        kinds = ", ".join(PORTS)
        raise ValueError(f'graph[{index}].kind must be one of {kinds}, got "{op.kind}"')
    for side, tensors in (("inputs", op.inputs), ("outputs", op.outputs)):
        ports = PORTS[op.kind][side]
        least = sum(not port.optional for port in ports)
        if not least <= len(tensors) <= len(ports):
            counts = f"{least}" if least == len(ports) else f"{least} to {len(ports)}"
            names = ", ".join(port.name for port in ports)
            raise ValueError(
                f"graph[{index}].{side} must be {counts} tensors ({names}), got {len(tensors)}"
            )
    if not 0 <= op.id <= _MAX_INT:
        raise ValueError(f"graph[{index}].id must be between 0 and 2^63 - 1, got {op.id}")
    _check_missing_input(index, op)
    data_format = _check_attributes(index, op)
    shape = op.inputs[0].shape
    for place, port, tensor in ports_of(index, op):
        if not 0 <= tensor.id <= _MAX_INT:
            raise port_error(place, port.name, "have an id between 0 and 2^63 - 1", tensor.id)
        if tensor.dtype not in DTYPES:
            raise port_error(place, port.name, "have dtype f32, bf16 or f16", f'"{tensor.dtype}"')
        if tensor.layout_type not in ("strided", "any", "undef"):
            raise port_error(place, port.name, "be strided", f'"{tensor.layout_type}"')
        if tensor.property_type not in ("undef", "constant", "variable"):
            expected = "have property_type undef, constant or variable"
            raise port_error(place, port.name, expected, f'"{tensor.property_type}"')
        if shape is not None:
            _check_shape(place, port, tensor, shape, data_format)


def _check_missing_input(index: int, op: GraphOp) -> None:
    """Raise ValueError if the ids of a gradient without gamma skip the tensor before the last.

    Inputs have no names, so that a file without variance would look like one without gamma.
    """
    ids = [tensor.id for tensor in op.inputs]
    if op.kind == GRADIENT and [i - ids[0] for i in ids] == [0, 1, 2, 4]:
        raise ValueError(
            f"graph[{index}].inputs[3] (variance) is missing: the ids {ids} skip {ids[0] + 3}. "
            "Number the tensors consecutively if it is gamma that is absent"
        )


def _check_attributes(index: int, op: GraphOp) -> DataFormat:
    known = _ATTRIBUTES.get(op.kind, ())
    for name, value in op.attrs.items():
        if name in DUMP_ATTRIBUTES:
            continue
        if name not in known:
            raise ValueError(f"graph[{index}].attrs.{name} is not an attribute of {op.kind}")
        is_valid, requirement = _ATTRIBUTE_TYPES.get(name, _NUMBER)
        if not is_valid(value):
            raise ValueError(f"graph[{index}].attrs.{name} must be {requirement}, got {value!r}")
    if "epsilon" in known and "epsilon" not in op.attrs:
        raise ValueError(f"graph[{index}].attrs.epsilon is missing")
    try:
        return parse_data_format(op.attrs.get("data_format", "NXC"))
    except ValueError as error:
        raise ValueError(f"graph[{index}].attrs: {error}") from None


def _check_shape(
    place: str, port: Port, tensor: LogicalTensor, src: tuple[int, ...], data_format: DataFormat
) -> None:
    """Raise ValueError for a shape that does not fit that of src, or strides that overlap."""
    if not 2 <= len(src) <= MAX_RANK:
        raise port_error(place, port.name, f"have 2 to {MAX_RANK} dimensions", src)
    channels = (src[data_format.channel_axis],)
    expected, why = (
        (src, "like src") if port.kind == "tensor" else (channels, "one value per channel of src")
    )
    if tensor.shape is None and ".outputs" in place:
        return  # oneDNN infers it
    if any(size < 0 for size in src):
        raise port_error(place, port.name, "have sizes of 0 or more", src)
    if tensor.shape != expected:
        raise port_error(place, port.name, f"have shape {expected}, {why}", tensor.shape)
    if tensor.strides is None:
        return
    if len(tensor.strides) != len(tensor.shape):
        expected_stride = f"have a stride of {len(tensor.shape)} integers, as its shape"
        raise port_error(place, port.name, expected_stride, tensor.strides)
    is_empty = 0 in tensor.shape
    smallest = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size != 1:
            if stride < smallest:
                expected_stride = "have a stride (in elements) without overlapping elements"
                raise port_error(place, port.name, expected_stride, tensor.strides)
            smallest = 1 if is_empty else stride * size
