"""oneDNN's graphs, open to look at: ops, logical tensors, partitions, and the JSON of its dumps.

A `Graph` is what ``compiled.graph`` shows of what oneDNN made, and what `Graph.from_json` reads
from a file: one of benchdnn's ``inputs/graph``, one of `Graph.to_json`, or one that oneDNN wrote
with ``ONEDNN_GRAPH_DUMP=graph``, or ``subgraph``. Only builds with ``ONEDNN_ENABLE_GRAPH_DUMP``
write any; the PyPI wheels are none. `BatchNormTrainingBackward.to_json` and ``from_json`` are the
same for an operator.

Examples
--------
>>> op = onedsl.BatchNormTrainingBackward(epsilon=1e-5)
>>> graph = onedsl.graph.Graph.from_json(op.to_json(onedsl.TensorSpec((8, 7, 7, 64))))
>>> graph.ops[0].kind, graph.ops[0].outputs[1].shape
('BatchNormTrainingBackward', (64,))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from ._json import Place, read_op
from ._parts import GraphOp, LogicalTensor, Partition

__docformat__ = "numpy"
__all__ = ["Graph", "GraphOp", "LogicalTensor", "Partition"]


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
            document = Place(json.loads(text), "the document")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a graph's JSON: {error}") from None
        version = document.get("version", str, "")
        return cls(
            tuple(read_op(place) for place in document.items_of("graph", "ops")),
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
        from ._drawing import draw

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
