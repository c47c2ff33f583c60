"""oneDNN's graphs, open to look at: ops, logical tensors, partitions, and the JSON of its dumps.

A `Graph` is what ``compiled.graph`` shows of what oneDNN made, and what `Graph.from_json` reads from
a file: one that oneDNN wrote (``ONEDNN_GRAPH_DUMP=graph``, or ``subgraph``, in a build that has
``ONEDNN_ENABLE_GRAPH_DUMP``; the wheels have it not), one of its benchdnn's
``inputs/graph``, or one of `Graph.to_json`. `BatchNormTrainingBackward.to_json` and ``from_json``
are the same for an operator.

Examples
--------
>>> op = onedsl.BatchNormTrainingBackward(epsilon=1e-5)
>>> graph = onedsl.graph.Graph.from_json(op.to_json(onedsl.TensorSpec((8, 7, 7, 64))))
>>> graph.ops[0].kind, graph.ops[0].outputs[1].shape
('BatchNormTrainingBackward', (64,))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import _core

__docformat__ = "numpy"
__all__ = ["Graph", "GraphOp", "LogicalTensor", "Partition"]

UNKNOWN_SIZE = -(2**63)  # DNNL_GRAPH_UNKNOWN_DIM

# The ports of the ops that onedsl builds, as oneDNN's documents name them.
_NORM = ("src", "mean", "variance", "gamma", "beta")
_PORTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "BatchNormTrainingBackward": (
        ("src", "diff_dst", "mean", "variance", "gamma"),
        ("diff_src", "diff_gamma", "diff_beta"),
    ),
    "BatchNormForwardTraining": (
        _NORM,
        ("dst", "running_mean", "running_variance", "batch_mean", "batch_variance"),
    ),
    "Add": (("src_0", "src_1"), ("dst",)),
    "Clamp": (("src",), ("dst",)),
    "ClampBackward": (("dst", "diff_dst"), ("diff_src",)),
    "ReLU": (("src",), ("dst",)),
    "ReLUBackward": (("dst", "diff_dst"), ("diff_src",)),
}

Attribute = bool | int | float | str | tuple[int, ...] | tuple[float, ...]

_ATTRIBUTE_TYPES = ("string", "bool", "s64", "s64[]", "f32", "f32[]")


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


@dataclass(frozen=True)
class Graph:
    """Ops, and what oneDNN made of them. Printing it gives its text form.

    Attributes
    ----------
    ops : tuple of GraphOp
    partitions : tuple of Partition
        Empty for a graph that was read from JSON, which oneDNN has not seen.
    version : str
        Of the oneDNN that made it.
    engine_kind, fpmath_mode : str
        ``"cpu"`` and ``"strict"`` as a rule.
    """

    ops: tuple[GraphOp, ...]
    partitions: tuple[Partition, ...] = ()
    version: str = field(default_factory=lambda: ".".join(map(str, _core.onednn_version())))
    engine_kind: str = "cpu"
    fpmath_mode: str = "strict"

    def to_json(self) -> str:
        """Write the JSON that oneDNN dumps and its benchdnn reads. It has no partitions.

        Returns
        -------
        str
        """
        document = {
            "version": self.version,
            "engine_kind": self.engine_kind,
            "fpmath_mode": self.fpmath_mode,
            "graph": [op._to_dict() for op in self.ops],
        }
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Read the JSON that oneDNN dumps.

        Parameters
        ----------
        text : str
            Contents of the file.

        Returns
        -------
        Graph

        Raises
        ------
        ValueError
            If it is no such JSON. The message names the place, as ``graph[0].inputs[2].shape``.
        """
        try:
            document = _Place(json.loads(text), "the document")
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not a graph's JSON: {error}") from None
        version = document.get("version", str, "")
        return cls(
            tuple(_read_op(place) for place in document.items_of("graph", "ops")),
            version=version,
            engine_kind=document.get("engine_kind", str, "cpu"),
            fpmath_mode=document.get("fpmath_mode", str, "strict"),
        )

    def draw(self, path: str | Path) -> None:
        """Draw the graph: ops, their tensors, and a frame around each partition.

        Parameters
        ----------
        path : str or Path
            Where the picture goes; .png, .pdf or .svg.

        Raises
        ------
        ValueError
            If the path ends in another way.
        ImportError
            If matplotlib is not installed.
        """
        from ._draw import draw

        draw(self, Path(path))

    def __str__(self) -> str:
        """Lay it out, op by op and partition by partition."""
        lines = [f"graph of oneDNN {self.version}, {self.engine_kind}, {self.fpmath_mode}"]
        for op in self.ops:
            attrs = ", ".join(f"{name}={value}" for name, value in op.attrs.items())
            lines.append(f"op {op.id}: {op.kind} ({attrs})")
            lines += [
                f"  {side:<4}{tensor.id:>3} {name:<17}{tensor}" for side, name, tensor in op.ports
            ]
        for part in self.partitions:
            ops = ", ".join(map(str, part.op_ids))
            runs = "supported" if part.supported else "not supported"
            lines.append(f"partition {part.id}: {part.kind}, op {ops}, {runs}")
        return "\n".join(lines)


def _sizes(sizes: tuple[int, ...] | None) -> str:
    if sizes is None:
        return "?"
    return "x".join(map(str, sizes)) or "scalar"


class _Place:
    """A value of a JSON document, and the way to it."""

    def __init__(self, value: Any, path: str) -> None:
        self.value, self.path = value, path

    def refuse(self, wanted: str) -> ValueError:
        text = json.dumps(self.value)
        shown = text if len(text) < 60 else f"{text[:60]}..."
        return ValueError(f"{self.path} is {shown}, and must be {wanted}")

    def as_a(self, kind: type | tuple[type, ...], wanted: str) -> Any:
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.refuse(wanted)
        return self.value

    def at(self, key: str | int) -> _Place:
        if isinstance(key, int):
            return _Place(self.value[key], f"{self.path}[{key}]")
        members = self.as_a(dict, "an object")
        path = key if self.path == "the document" else f"{self.path}.{key}"
        if key not in members:
            raise ValueError(f"{path} is missing")
        return _Place(members[key], path)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        members = self.as_a(dict, "an object")
        if default is not None and key not in members:
            return default
        return self.at(key).as_a(kind, {str: "a string", int: "a whole number"}[kind])

    def items_of(self, key: str, what: str) -> Iterator[_Place]:
        place = self.at(key)
        for i in range(len(place.as_a(list, f"a list of {what}"))):
            yield place.at(i)

    def integers(self) -> tuple[int, ...]:
        values = self.as_a(list, "a list of whole numbers")
        return tuple(self.at(i).as_a(int, "a whole number") for i in range(len(values)))


def _read_op(place: _Place) -> GraphOp:
    attrs = place.at("attrs")
    return GraphOp(
        place.get("id", int),
        place.get("name", str, ""),
        place.get("kind", str),
        {name: _read_attribute(attrs.at(name)) for name in attrs.as_a(dict, "an object")},
        tuple(_read_tensor(tensor) for tensor in place.items_of("inputs", "tensors")),
        tuple(_read_tensor(tensor) for tensor in place.items_of("outputs", "tensors")),
    )


def _read_attribute(place: _Place) -> Attribute:
    kind = place.get("type", str)
    if kind not in _ATTRIBUTE_TYPES:
        raise place.at("type").refuse(f"one of {', '.join(_ATTRIBUTE_TYPES)}")
    value = place.at("value")
    if kind == "string":
        return str(value.as_a(str, "a string"))
    if kind == "bool":
        # oneDNN's own writer has 1 and 0.
        if value.value not in (0, 1):
            raise value.refuse("true or false")
        return bool(value.value)
    if kind == "s64":
        return int(value.as_a(int, "a whole number"))
    if kind == "s64[]":
        return value.integers()
    if kind == "f32":
        return float(value.as_a((int, float), "a number"))
    count = len(value.as_a(list, "a list of numbers"))
    return tuple(float(value.at(i).as_a((int, float), "a number")) for i in range(count))


def _read_tensor(place: _Place) -> LogicalTensor:
    shape = place.at("shape").integers()
    strides = place.at("stride").integers()
    known = UNKNOWN_SIZE not in shape
    if known and any(size < 0 for size in shape):
        raise place.at("shape").refuse("sizes of 0 and more")
    steps_known = UNKNOWN_SIZE not in strides
    if known and steps_known and len(strides) != len(shape):
        raise place.at("stride").refuse(f"as many numbers as shape has: {len(shape)}")
    return LogicalTensor(
        place.get("id", int),
        place.get("dtype", str),
        shape if known else None,
        strides if steps_known else None,
        place.get("layout_type", str, "strided"),
        place.get("property_type", str, "undef"),
    )


def _typed(value: Attribute) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": "string", "value": value}
    if isinstance(value, bool):
        return {"type": "bool", "value": value}
    if isinstance(value, tuple):
        whole = all(isinstance(item, int) for item in value)
        return {"type": "s64[]" if whole else "f32[]", "value": list(value)}
    return {"type": "s64" if isinstance(value, int) else "f32", "value": value}


def shortest_float32(value: float) -> float:
    """Give the shortest decimal that is the same float32: what a person wrote, as a rule."""
    return float(str(np.float32(value)))


def of_core(parts: tuple[Sequence[Any], Sequence[Any]]) -> Graph:
    """Make a graph of what the core tells of one."""
    ops, partitions = parts

    def tensors(rows: Sequence[Any]) -> tuple[LogicalTensor, ...]:
        return tuple(LogicalTensor(*row) for row in rows)

    kinds = {op[0]: op[2] for op in ops}
    return Graph(
        tuple(
            GraphOp(
                number,
                name,
                kind,
                {
                    key: shortest_float32(value) if isinstance(value, float) else value
                    for key, value in attrs.items()
                },
                tensors(inputs),
                tensors(outputs),
            )
            for number, name, kind, attrs, inputs, outputs in ops
        ),
        tuple(
            Partition(
                number,
                " + ".join(kinds[i] for i in op_ids),
                tuple(op_ids),
                supported,
                tensors(inputs),
                tensors(outputs),
            )
            for number, op_ids, supported, inputs, outputs in partitions
        ),
    )
