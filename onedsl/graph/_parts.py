"""The parts of a graph: logical tensors, ops and partitions."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from ..runtime.text import printable
from ..tensors.dtypes import DTYPE_NAMES, DTYPES
from ..tensors.ports import Port, Signature, signature
from ..tensors.spec import DataFormat, byte_strides, parse_data_format

UNKNOWN_SIZE = -(2**63)  # DNNL_GRAPH_UNKNOWN_DIM

GRADIENT = signature("training_backward").name
FORWARD = signature("forward_training").name


class OpKind(NamedTuple):
    """A kind of op that onedsl builds, with the names of oneDNN's documentation."""

    ports: Signature
    attributes: tuple[str, ...] = ()

    @property
    def is_batch_norm(self) -> bool:
        """Whether the op has statistics. The others are elementwise."""
        return any(port.kind == "channel vector" for port in self.ports.inputs)


def _kind(operation: str, inputs: str, outputs: str, attributes: str) -> OpKind:
    """Return a kind of op from names that are separated by spaces."""
    if operation:
        ports = signature(operation)
    else:
        ports = Signature(tuple(map(Port, inputs.split())), tuple(map(Port, outputs.split())))
    return OpKind(ports, tuple(attributes.split()))


KINDS = {name: _kind(*row) for name, row in _core.graph_op_kinds().items()}

Attribute = bool | int | float | str | tuple[int, ...] | tuple[float, ...]


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def _is_name(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and _is_integer(value[0]) and _is_text(value[1])


def _are_sizes(value: object) -> bool:
    return value is None or (isinstance(value, tuple) and all(map(_is_integer, value)))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real)


def _is_attribute(value: object) -> bool:
    return _is_text(value) or all(map(_is_number, value if isinstance(value, tuple) else (value,)))


def _are_attributes(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(_is_text(name) and _is_attribute(item) for name, item in value.items())


Requirement = tuple[Callable[[Any], bool], str]
"""A requirement of a value, and its text in an error message."""


def _tuple_of(is_valid: Callable[[Any], bool], items: str) -> Requirement:
    def are_valid(value: object) -> bool:
        return isinstance(value, tuple) and all(map(is_valid, value))

    return are_valid, f"a tuple of {items}"


_TEXT = _is_text, "a string that UTF-8 can express"
_SIZES = _are_sizes, "a tuple of integers or None"
_TENSORS = _tuple_of(lambda item: isinstance(item, LogicalTensor), "LogicalTensor")
_FIELDS: dict[str, Requirement] = {
    "id": (_is_integer, "an integer"),
    **dict.fromkeys(("name", "kind", "dtype", "layout_type", "property_type"), _TEXT),
    **dict.fromkeys(("version", "engine_kind", "fpmath_mode"), _TEXT),
    **dict.fromkeys(("shape", "strides"), _SIZES),
    **dict.fromkeys(("inputs", "outputs"), _TENSORS),
    "attrs": (_are_attributes, "a mapping of strings to strings, numbers or tuples of numbers"),
    "ops": _tuple_of(lambda item: isinstance(item, GraphOp), "GraphOp"),
    "names": _tuple_of(_is_name, "pairs of an id and a string"),
}


def check_fields(owner: Any) -> None:
    """Convert lists to tuples, and raise TypeError for fields of a wrong type.

    A compiled graph relies on the tuples, so a caller's lists must not change them later.
    """
    for name, given in vars(owner).items():
        value, (is_valid, requirement) = given, _FIELDS[name]
        is_array = isinstance(given, np.ndarray) and given.ndim
        if is_array or isinstance(given, list | tuple | range):
            value = tuple(given)
        if not is_valid(value):
            field = f"{type(owner).__name__}.{name}"
            raise TypeError(printable(f"{field} must be {requirement}, got {given!r}"))
        object.__setattr__(owner, name, value)


@dataclass(frozen=True)
class LogicalTensor:
    """oneDNN's description of a tensor.

    Attributes
    ----------
    id : int
        Ports with the same id share a tensor.
    dtype : str
        ``"f32"``, ``"bf16"``, ``"f16"`` or another data type of oneDNN.
    shape, strides : tuple of int or None
        None if unknown. Strides are in elements.
    layout_type, property_type : str
        Usually ``"strided"`` and ``"undef"``.
    """

    id: int
    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    layout_type: str = "strided"
    property_type: str = "undef"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides in bytes, as `TensorSpec.byte_strides`. Not all tensors have them."""
        shape, strides = self.shape or (), self.strides or ()
        is_known = self.shape is not None and self.strides is not None
        if not is_known or len(shape) != len(strides) or self.dtype not in DTYPES:
            requirement = f"a known shape, as many strides and dtype {DTYPE_NAMES}"
            raise ValueError(f"byte_strides needs {requirement}, got {self}")
        return byte_strides(shape, self.dtype, strides)

    def __str__(self) -> str:
        """Return dtype, shape, layout and strides."""
        shape = _sizes(self.shape)
        return f"{self.dtype} {shape}, {self.layout_type} {_sizes(self.strides)}"

    def _to_dict(self) -> dict[str, Any]:
        unknown = (UNKNOWN_SIZE,)
        return {
            "id": self.id,
            "dtype": self.dtype,
            "shape": list(unknown if self.shape is None else self.shape),
            "stride": list(unknown if self.strides is None else self.strides),
            "layout_type": self.layout_type,
            "property_type": self.property_type,
        }


@dataclass(frozen=True)
class GraphOp:
    """A node of a graph.

    Attributes
    ----------
    id : int
    name : str
    kind : str
        oneDNN's name of the operation, such as ``"BatchNormTrainingBackward"``.
    attrs : mapping of str to bool, int, float, str or tuple
    inputs, outputs : tuple of LogicalTensor
    """

    id: int
    name: str
    kind: str
    attrs: Mapping[str, Attribute]
    inputs: tuple[LogicalTensor, ...]
    outputs: tuple[LogicalTensor, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "attrs", dict(self.attrs))  # the caller may change its own

    def __hash__(self) -> int:
        return hash((self.id, self.kind, *self.inputs, *self.outputs))

    @property
    def data_format(self) -> DataFormat:
        """The attribute data_format, whose default is NXC."""
        return parse_data_format(self.attrs.get("data_format", "NXC"))

    @property
    def geometry(self) -> tuple[int, int, int] | None:
        """Outer size, channels and inner size of the first input, None if it is not dense."""
        if not self.inputs:
            return None
        src = self.inputs[0]
        if any(abs(size) >= 2**63 for size in (*(src.shape or ()), *(src.strides or ()))):
            return None
        return _core.geometry(src.shape or (), src.strides or (), self.data_format.channel_axis)

    @property
    def ports(self) -> list[tuple[str, str, LogicalTensor]]:
        """The inputs and outputs: (side, name, tensor), where side is ``"in"`` or ``"out"``.

        The names are those of oneDNN's documentation. They are empty for ops that onedsl does not
        build.
        """
        return [(side, port.name, tensor) for side, _, port, tensor in ports_of(self)]

    def _to_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "attrs": {name: _typed(value) for name, value in self.attrs.items()},
            "inputs": [tensor._to_dict() for tensor in self.inputs],
            "outputs": [tensor._to_dict() for tensor in self.outputs],
        }


@dataclass(frozen=True)
class Partition:
    """A subset of ops that oneDNN compiles and runs together.

    Attributes
    ----------
    id : int
        oneDNN's number.
    kind : str
        The kinds of the partition's ops, joined by `` + ``.
    op_ids : tuple of int
    supported : bool
        Whether oneDNN reports that it supports the partition on this CPU.
    inputs, outputs : tuple of LogicalTensor
    defects : tuple of str
        What is known to go wrong all the same: see `onedsl.graph`.
    """

    id: int
    kind: str
    op_ids: tuple[int, ...]
    supported: bool
    inputs: tuple[LogicalTensor, ...]
    outputs: tuple[LogicalTensor, ...]
    defects: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return ops, kind and oneDNN's answer in one line, and a line for each defect."""
        ops = ", ".join(map(str, self.op_ids))
        support = "supported" if self.supported else "not supported"
        if self.defects:
            support = "\n  but: ".join((f"oneDNN reports {support}", *self.defects))
        return f"partition of op {ops}: {self.kind}, {support}"


def tensors_of(op: GraphOp) -> tuple[LogicalTensor, ...]:
    """Return the inputs and the outputs."""
    return (*op.inputs, *op.outputs)


def ports_of(op: GraphOp) -> list[tuple[str, int, Port, LogicalTensor]]:
    """Return side (``"in"`` or ``"out"``), index, port and tensor of each input and output."""
    known = KINDS[op.kind].ports if op.kind in KINDS else Signature((), ())
    sides = ("in", known.inputs, op.inputs), ("out", known.outputs, op.outputs)
    return [
        (side, i, ports[i] if i < len(ports) else Port(""), tensor)
        for side, ports, tensors in sides
        for i, tensor in enumerate(tensors)
    ]


def _sizes(sizes: tuple[int, ...] | None) -> str:
    if sizes is None:
        return "?"
    return "x".join(map(str, sizes)) or "scalar"


def _typed(value: Attribute) -> dict[str, Any]:
    """Return an attribute's JSON object, which has its type and its value."""
    if isinstance(value, str):
        return {"type": "string", "value": value}
    if isinstance(value, bool):
        return {"type": "bool", "value": value}
    if isinstance(value, tuple):
        integers = all(isinstance(item, numbers.Integral) for item in value)
        return {"type": "s64[]" if integers else "f32[]", "value": list(value)}
    return {"type": "s64" if isinstance(value, numbers.Integral) else "f32", "value": value}
