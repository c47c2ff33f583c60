"""The public class Graph."""

from __future__ import annotations

import json
import numbers
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..runtime.errors import OneDNNError
from ..runtime.text import printable
from ..runtime.versions import onednn_version
from ._defects import limit_of, messages
from ._drawing import draw
from ._json import JsonValue, parse_op
from ._parts import GraphOp, LogicalTensor, Partition, check_fields
from ._repair import Repairs
from .compiled_graph import CompiledGraph, divide_graph


def _plain_number(number: numbers.Real) -> int | float:
    """Convert a number of NumPy, for example, to a number of Python."""
    return int(number) if isinstance(number, numbers.Integral) else float(number)


@dataclass(frozen=True)
class Graph:
    """A graph of ops. `str` lists them with their tensors, and the partitions of `partitions`.

    A graph, an op or a tensor whose fields have other types than documented is a TypeError.

    Attributes
    ----------
    ops : tuple of GraphOp
    version : str
        Version of the oneDNN that created the graph.
    engine_kind, fpmath_mode : str
        Usually ``"cpu"`` and ``"strict"``.
    names : tuple of (int, str)
        Names of tensors by id, where they differ from those of the ops' ports. A named tensor is an
        input or output, even if it is also between two ops.
    changes : tuple of str
        What `repaired` changed, else empty. Only `repaired` sets this and the following.
    constants : tuple of (int, float)
        The inputs that it added, by id, and the numbers that fill them.
    requested : Graph or None
        The graph that it changed. Calls of the compiled graph pass its tensors.
    """

    ops: tuple[GraphOp, ...]
    version: str = field(default_factory=onednn_version)
    engine_kind: str = "cpu"
    fpmath_mode: str = "strict"
    names: tuple[tuple[int, str], ...] = ()
    changes: tuple[str, ...] = field(default=(), init=False)
    constants: tuple[tuple[int, float], ...] = field(default=(), init=False)
    requested: Graph | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def inputs(self) -> dict[str, LogicalTensor]:
        """The tensors that a call passes, by name: those that no op computes.

        The name is that of the port, with the tensor's id behind it if it is not unique.
        """
        return self._ports("in")

    @property
    def outputs(self) -> dict[str, LogicalTensor]:
        """The tensors that a call returns, by name: those that no op reads."""
        return self._ports("out")

    def _ports(self, side: str) -> dict[str, LogicalTensor]:
        if self.requested is not None:
            return self.requested._ports(side)
        own = dict(self.names)
        inner = {t.id for t in self._tensors("in")} & {t.id for t in self._tensors("out")}
        inner -= own.keys()
        found: dict[int, tuple[str, LogicalTensor]] = {}
        for op in self.ops:
            for port_side, name, tensor in op.ports:
                if port_side == side and tensor.id not in inner:
                    found.setdefault(tensor.id, (own.get(tensor.id, name), tensor))
        if side == "in":
            computed = {tensor.id for tensor in self._tensors("out")}
            found = {number: port for number, port in found.items() if number not in computed}
        count = Counter(name for name, _ in found.values())
        ports: dict[str, LogicalTensor] = {}
        for number, (name, tensor) in found.items():
            unique = name
            while unique in ports or count[unique] > (unique == name):
                unique += f"_{number}"
            ports[unique] = tensor
        return ports

    def _tensors(self, side: str) -> Iterator[LogicalTensor]:
        return (t for op in self.ops for port_side, _, t in op.ports if port_side == side)

    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions into which oneDNN divides the graph, in execution order.

        `Partition.supported` is oneDNN's answer. It may be True for a partition that oneDNN does
        not compile, or computes wrongly: `Partition.defects` lists what is known.

        Raises
        ------
        ValueError
            If the graph has ops that onedsl does not build, or shapes that are unknown or invalid.
        UnsupportedError
            If oneDNN does not accept an op, such as one of tensors with more than 12 dimensions.
        """
        parts = divide_graph(self.ops)  # what follows relies on valid ops
        ops = {op.id: op for op in self.ops}
        limit = [text for text in [limit_of(self.ops)] if text]
        return tuple(
            replace(part, defects=(*limit, *messages([ops[i] for i in part.op_ids])))
            for part in parts
        )

    def repaired(self) -> Graph:
        """Return a graph for which oneDNN computes what its documentation says of this one.

        `changes` lists what differs. The compiled graph takes and returns the arrays of this graph:
        they are reshaped without a copy, 16-bit statistics are converted, inputs that this graph
        lacks are filled, and outputs that it lacks are dropped. NXC tensors are divided into as
        many images as the current number of threads can share.

        Raises
        ------
        ValueError
            As `partitions`.
        UnsupportedError
            If no graph is known for which oneDNN does so. A repaired graph may still have a type
            for which oneDNN has no kernel on this CPU: `compile` raises for it.
        """
        if self.requested is not None:
            return self
        repairs = Repairs(self.ops)
        graph = replace(self, ops=tuple(repairs.ops))
        # No arguments of the constructor: oneDNN would read beyond the arrays of another graph.
        object.__setattr__(graph, "changes", tuple(repairs.changes))
        object.__setattr__(graph, "constants", tuple(repairs.constants.items()))
        object.__setattr__(graph, "requested", self)
        return graph

    def compile(self, *, try_anyway: bool = False) -> CompiledGraph:
        """Compile the graph by oneDNN, for its CPU engine. Compiled graphs are cached.

        Parameters
        ----------
        try_anyway : bool
            Whether to compile a graph with which older versions of oneDNN crashed than the loaded
            one. It may end the process.

        Raises
        ------
        ValueError
            If the graph has ops that onedsl does not build, or shapes or strides that are unknown
            or invalid.
        UnsupportedError
            If oneDNN does not support the graph on this CPU, with oneDNN's message and status, or
            if oneDNN would fail instead of reporting an error.
        """
        return CompiledGraph(self, try_anyway=try_anyway)

    def to_json(self) -> str:
        """Return the graph in the JSON format of oneDNN's dumps, without partitions.

        The inputs and outputs that `repaired` added are ports like all others.
        """
        own = replace(self)  # without `requested`
        document = {
            "version": self.version,
            "engine_kind": self.engine_kind,
            "fpmath_mode": self.fpmath_mode,
            "input_ports": [tensor.id for tensor in own.inputs.values()],
            "output_ports": [tensor.id for tensor in own.outputs.values()],
            "graph": [op._to_dict() for op in self.ops],
        }
        return json.dumps(document, indent=2, default=_plain_number) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Parse the JSON format of oneDNN's dumps.

        Raises
        ------
        ValueError
            If the text is not a document of this format. The message contains the path of the
            invalid value, such as ``graph[0].inputs[2].shape``.
        """
        try:
            document = JsonValue.parse(text)
            graph = cls(
                tuple(map(parse_op, document.at("graph").items("ops"))),
                version=document.get("version", str, ""),
                engine_kind=document.get("engine_kind", str, "cpu"),
                fpmath_mode=document.get("fpmath_mode", str, "strict"),
            )
        except RecursionError:
            raise ValueError("graph must be valid JSON: it has too many levels") from None
        return replace(graph, names=graph._named_outputs(document))

    def _named_outputs(self, document: JsonValue) -> tuple[tuple[int, str], ...]:
        """Return the tensors that a document lists as outputs although another op reads them."""
        if "output_ports" not in document.value:
            return ()
        listed = document.at("output_ports").integers()
        read = {tensor.id for tensor in self._tensors("in")}
        return tuple(
            (tensor.id, f"{name}_{tensor.id}")
            for op in self.ops
            for side, name, tensor in op.ports
            if side == "out" and tensor.id in listed and tensor.id in read
        )

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the ops with their tensors and partitions to a .png, .pdf or .svg file.

        Known defects are red, and the reason why oneDNN does not divide the graph, if it does not.
        Inputs and outputs that `repaired` added are dashed.

        Raises
        ------
        ValueError
            If the path has another suffix.
        ImportError
            If matplotlib is not installed. The message says how to install it.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a string or path-like, got {type(path).__name__}")
        partitions, problem = self._partitions_or_problem()
        title = f"oneDNN {self.version}, {self.engine_kind}"
        draw(Path(path), title, self.ops, partitions, problem, self._changed_lines(), self._added())

    def _partitions_or_problem(self) -> tuple[tuple[Partition, ...], str]:
        """Return the partitions, or the reason why there are none."""
        try:
            return self.partitions(), ""
        except (OneDNNError, ImportError, ValueError) as error:
            return (), printable(f"no partitions: {error}")

    def _changed_lines(self) -> list[str]:
        return [f"changed by onedsl: {'; '.join(self.changes)}"] if self.changes else []

    def _added(self) -> dict[int, str]:
        """Return what `repaired` says of the tensors that a call neither passes nor returns."""
        if self.requested is None:
            return {}
        returned = {tensor.id for tensor in self.requested._tensors("out")}
        computed = {tensor.id for tensor in self._tensors("out")}
        filled = {number: f"filled with {value:g}" for number, value in self.constants}
        return filled | dict.fromkeys(computed - returned, "dropped")

    def __str__(self) -> str:
        """Return one line for the graph and one for each op, tensor and partition."""
        lines = [f"graph of oneDNN {self.version}, {self.engine_kind}, {self.fpmath_mode}"]
        added = self._added()
        for op in self.ops:
            attrs = ", ".join(f"{name}={value}" for name, value in op.attrs.items())
            lines.append(f"op {op.id}: {op.kind} ({attrs})")
            lines += [
                f"  {side:<4}{tensor.id:>3} {name:<17}{tensor}"
                + (f", {added[tensor.id]} by onedsl" if tensor.id in added else "")
                for side, name, tensor in op.ports
            ]
        lines = list(map(printable, lines))
        partitions, problem = self._partitions_or_problem()
        lines += [problem] if problem else map(str, partitions)
        return "\n".join([*lines, *self._changed_lines()])
