"""The public class Graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from ._drawing import draw
from ._json import JsonValue, parse_op
from ._parts import GraphOp, LogicalTensor, Partition


@dataclass(frozen=True)
class Graph:
    """Ops, and the partitions that oneDNN divides them into. `str` lists all parts.

    Attributes
    ----------
    ops : tuple of GraphOp
    partitions : tuple of Partition
        Empty for a graph from JSON, which contains no partitions.
    version : str
        Version of the oneDNN that created the graph.
    engine_kind : str
        Usually ``"cpu"``.
    fpmath_mode : str
        Usually ``"strict"``.
    """

    ops: tuple[GraphOp, ...]
    partitions: tuple[Partition, ...] = ()
    version: str = field(default_factory=lambda: ".".join(map(str, _core.onednn_version())))
    engine_kind: str = "cpu"
    fpmath_mode: str = "strict"

    def to_json(self) -> str:
        """Return the graph in the JSON format of oneDNN's dumps and benchdnn, without partitions.

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
        """Parse the JSON format of oneDNN's dumps.

        Parameters
        ----------
        text : str
            The JSON document.

        Returns
        -------
        Graph

        Raises
        ------
        ValueError
            If the text is not a document of this format. The message contains the path of the
            invalid value, such as ``graph[0].inputs[2].shape``.
        """
        document = JsonValue.parse(text)
        version = document.get("version", str, "")
        return cls(
            tuple(map(parse_op, document.at("graph").items("ops"))),
            version=version,
            engine_kind=document.get("engine_kind", str, "cpu"),
            fpmath_mode=document.get("fpmath_mode", str, "strict"),
        )

    def draw(self, path: str | Path) -> None:
        """Draw the ops, the tensors, and a frame around each partition to an image file.

        Parameters
        ----------
        path : str or Path
            The file to write. Its suffix must be .png, .pdf or .svg.

        Raises
        ------
        ValueError
            If the path has another suffix.
        ImportError
            If matplotlib is not installed.
        """
        title = f"oneDNN {self.version}, {self.engine_kind}"
        draw(Path(path), title, self.ops, self.partitions)

    def __str__(self) -> str:
        """Return one line for the graph and one for each op, tensor and partition."""
        lines = [f"graph of oneDNN {self.version}, {self.engine_kind}, {self.fpmath_mode}"]
        for op in self.ops:
            attrs = ", ".join(f"{name}={value}" for name, value in op.attrs.items())
            lines.append(f"op {op.id}: {op.kind} ({attrs})")
            lines += [
                f"  {side:<4}{tensor.id:>3} {name:<17}{tensor}" for side, name, tensor in op.ports
            ]
        for part in self.partitions:
            ops = ", ".join(map(str, part.op_ids))
            support = "supported" if part.supported else "not supported"
            lines.append(f"partition {part.id}: {part.kind}, op {ops}, {support}")
        return "\n".join(lines)


def graph_from_core(parts: tuple[Sequence[Any], Sequence[Any]]) -> Graph:
    """Convert the tuples of ops and partitions that the C++ core returns to a `Graph`."""
    ops, partitions = parts

    def tensors(rows: Sequence[Any]) -> tuple[LogicalTensor, ...]:
        return tuple(LogicalTensor(*row) for row in rows)

    def attribute(value: Any) -> Any:
        # oneDNN's float32 as the shortest decimal that rounds to it, usually what the user wrote.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    kinds = {op[0]: op[2] for op in ops}
    return Graph(
        tuple(
            GraphOp(
                number,
                name,
                kind,
                {key: attribute(value) for key, value in attrs.items()},
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
