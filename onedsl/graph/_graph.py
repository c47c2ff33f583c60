"""The public class Graph."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from .. import _core
from ..runtime.capabilities import onednn_version
from ..runtime.errors import OneDNNError
from ._check import check_graph
from ._compiled_graph import CompiledGraph, refusals
from ._convert import ops_to_core, partitions_from_core
from ._drawing import draw
from ._json import JsonValue, parse_op
from ._parts import GraphOp, Partition


@dataclass(frozen=True)
class Graph:
    """A graph of ops. `str` lists them with their tensors, and the partitions of `partitions`.

    Attributes
    ----------
    ops : tuple of GraphOp
    changes : tuple of str
        What ``backend="onednn"`` changed in the graph that its caller asked for, else empty.
    version : str
        Version of the oneDNN that created the graph.
    engine_kind, fpmath_mode : str
        Usually ``"cpu"`` and ``"strict"``.
    """

    ops: tuple[GraphOp, ...]
    changes: tuple[str, ...] = ()
    version: str = field(default_factory=onednn_version)
    engine_kind: str = "cpu"
    fpmath_mode: str = "strict"

    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions into which oneDNN divides the graph, in execution order.

        `Partition.supported` is oneDNN's answer. It may be True for a partition that oneDNN does
        not compile.

        Raises
        ------
        ValueError
            If the graph has ops that onedsl does not build, or shapes that are unknown or invalid.
        UnsupportedError
            If oneDNN does not accept an op.
        """
        check_graph(self.ops)
        with refusals():
            partitions = _core.graph_partitions(ops_to_core(self.ops))
        return partitions_from_core(self.ops, partitions)

    def compile(self) -> CompiledGraph:
        """Compile the graph as it is by oneDNN, for its CPU engine.

        Raises
        ------
        ValueError
            If the graph is not one op BatchNormTrainingBackward or BatchNormForwardTraining, or
            has shapes or strides that are unknown or invalid.
        UnsupportedError
            If oneDNN does not support the graph on this CPU, with oneDNN's message and status, or
            if oneDNN would fail instead of reporting an error.
        """
        return CompiledGraph(self.ops)

    def to_json(self) -> str:
        """Return the graph in the JSON format of oneDNN's dumps, without partitions."""
        document = {
            "version": self.version,
            "engine_kind": self.engine_kind,
            "fpmath_mode": self.fpmath_mode,
            "graph": [op._to_dict() for op in self.ops],
        }
        return json.dumps(document, indent=2) + "\n"

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
            return cls(
                tuple(map(parse_op, document.at("graph").items("ops"))),
                version=document.get("version", str, ""),
                engine_kind=document.get("engine_kind", str, "cpu"),
                fpmath_mode=document.get("fpmath_mode", str, "strict"),
            )
        except RecursionError:
            raise ValueError("graph must be valid JSON: it has too many levels") from None

    def draw(self, path: str | Path) -> None:
        """Draw the ops with their tensors and partitions to a .png, .pdf or .svg file.

        Raises
        ------
        ValueError
            If the path has another suffix.
        ImportError
            If matplotlib is not installed.
        """
        title = f"oneDNN {self.version}, {self.engine_kind}"
        draw(Path(path), title, self.ops, self._known_partitions())

    def _known_partitions(self) -> tuple[Partition, ...]:
        """Return the partitions, or nothing if oneDNN cannot divide the graph."""
        try:
            return self.partitions()
        except (OneDNNError, ValueError):
            return ()

    def __str__(self) -> str:
        """Return one line for the graph and one for each op, tensor and partition."""
        lines = [f"graph of oneDNN {self.version}, {self.engine_kind}, {self.fpmath_mode}"]
        for op in self.ops:
            attrs = ", ".join(f"{name}={value}" for name, value in op.attrs.items())
            lines.append(f"op {op.id}: {op.kind} ({attrs})")
            lines += [
                f"  {side:<4}{tensor.id:>3} {name:<17}{tensor}" for side, name, tensor in op.ports
            ]
        lines += map(str, self._known_partitions())
        if self.changes:
            lines.append(f"changed by onedsl: {'; '.join(self.changes)}")
        return "\n".join(lines)
