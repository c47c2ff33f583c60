"""What graphs are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _core

UNKNOWN_SIZE = -(2**63)  # DNNL_GRAPH_UNKNOWN_DIM

# The ports of the ops that onedsl builds, as oneDNN's documents name them.
_PORTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "BatchNormTrainingBackward": _core.ports(_core.Operation.training_backward),
    "BatchNormForwardTraining": _core.ports(_core.Operation.forward_training),
    "Add": (("src_0", "src_1"), ("dst",)),
    "Clamp": (("src",), ("dst",)),
    "ClampBackward": (("dst", "diff_dst"), ("diff_src",)),
    "ReLU": (("src",), ("dst",)),
    "ReLUBackward": (("dst", "diff_dst"), ("diff_src",)),
}

Attribute = bool | int | float | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class LogicalTensor:
    """oneDNN's description of a tensor.

    Attributes
    ----------
    id : int
        Ports of one id are one tensor.
    dtype : str
        ``"f32"``, ``"bf16"``, ``"f16"``, or another of oneDNN's.
    shape : tuple of int or None
        None where it is not known.
    strides : tuple of int or None
        In elements. None where they are not known.
    layout_type, property_type : str
        ``"strided"`` and ``"undef"`` as a rule.
    """

    id: int
    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    layout_type: str = "strided"
    property_type: str = "undef"

    def __str__(self) -> str:
        """Write type, sizes, layout and strides."""
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
        oneDNN's name of what it computes, as ``"BatchNormTrainingBackward"``.
    attrs : mapping of str to bool, int, float, str or tuple
    inputs, outputs : tuple of LogicalTensor
    """

    id: int
    name: str
    kind: str
    attrs: Mapping[str, Attribute]
    inputs: tuple[LogicalTensor, ...]
    outputs: tuple[LogicalTensor, ...]

    @property
    def ports(self) -> list[tuple[str, str, LogicalTensor]]:
        """Side (``"in"`` or ``"out"``), name and tensor of each port.

        The names are those of oneDNN's document; empty for an op that onedsl has none for.
        """
        names = _PORTS.get(self.kind, ((), ()))
        return [
            (side, names[i][k] if k < len(names[i]) else "", tensor)
            for i, (side, tensors) in enumerate((("in", self.inputs), ("out", self.outputs)))
            for k, tensor in enumerate(tensors)
        ]

    def _to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "attrs": {name: _typed(value) for name, value in self.attrs.items()},
            "inputs": [tensor._to_dict() for tensor in self.inputs],
            "outputs": [tensor._to_dict() for tensor in self.outputs],
        }


@dataclass(frozen=True)
class Partition:
    """A part of a graph that oneDNN compiles and runs as one.

    Attributes
    ----------
    id : int
    kind : str
        The kinds of its ops, with a plus between those that are fused.
    op_ids : tuple of int
    supported : bool
        Whether oneDNN runs it on this CPU.
    inputs, outputs : tuple of LogicalTensor
        As compiled.
    """

    id: int
    kind: str
    op_ids: tuple[int, ...]
    supported: bool
    inputs: tuple[LogicalTensor, ...]
    outputs: tuple[LogicalTensor, ...]


def _sizes(sizes: tuple[int, ...] | None) -> str:
    if sizes is None:
        return "?"
    return "x".join(map(str, sizes)) or "scalar"


def _typed(value: Attribute) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": "string", "value": value}
    if isinstance(value, bool):
        return {"type": "bool", "value": value}
    if isinstance(value, tuple):
        whole = all(isinstance(item, int) for item in value)
        return {"type": "s64[]" if whole else "f32[]", "value": list(value)}
    return {"type": "s64" if isinstance(value, int) else "f32", "value": value}
