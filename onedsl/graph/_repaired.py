"""The graphs of ``backend="onednn"``, and what it changed in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .. import _core
from ..tensors.spec import DataFormat, TensorSpec
from ._convert import ops_from_core
from ._graph import Graph

_ADDED = {"gamma": "gamma = 1 added", "beta": "beta = 0 added"}


def repaired_graph(
    nodes: Sequence[_core.Node],
    spec: TensorSpec,
    stats_dtype: str,
    data_format: DataFormat,
    inputs: Collection[str],
    outputs: Collection[str],
) -> Graph:
    """Return the graph that oneDNN runs for a call with the given inputs and outputs.

    The names of inputs and outputs are those of oneDNN's documentation.
    """
    ops = ops_from_core(nodes)
    norm = next(op for op in ops if op.kind.startswith("BatchNorm"))
    src, mean = norm.inputs[0], norm.inputs[-1]
    changes = []
    used_format = str(norm.attrs["data_format"])
    if (src.shape, src.strides, used_format) != (spec.shape, spec.strides, str(data_format)):
        change = f"reshaped to {'x'.join(map(str, src.shape or ()))}"
        changes.append(change if used_format == data_format else f"{change} in {used_format}")
    if mean.dtype != stats_dtype:
        changes.append(f"statistics converted from {stats_dtype} to {mean.dtype}")
    given = {name for side, name, _ in norm.ports if side == "in"}
    changes += [text for name, text in _ADDED.items() if name in given and name not in inputs]
    computed = [name for side, name, _ in norm.ports if side == "out"]
    if dropped := [n for n in computed if n.startswith("diff_") and n not in outputs]:
        changes.append(f"{' and '.join(dropped)} computed and dropped")
    return Graph(ops, tuple(changes))
