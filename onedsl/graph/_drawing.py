"""Drawing of graphs: inputs on the left, ops in the middle, outputs on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._parts import GraphOp, Partition

SUFFIXES = (".png", ".pdf", ".svg")

# Colors that color-blind readers can distinguish (Okabe and Ito).
TENSOR, OP, FRAME = "#e8f1f8", "#fbe6d9", "#0072B2"

WIDTH, ROW_HEIGHT, GAP = 12.6, 0.62, 0.6  # inches
COLUMNS = {"in": (0.2, 3.9), "op": (5.0, 7.6), "out": (8.7, 12.4)}  # left and right edges, inches


def draw(path: Path, title: str, ops: Sequence[GraphOp], partitions: Sequence[Partition]) -> None:
    """Draw the ops and partitions of a graph to an image file with one of the `SUFFIXES`."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path must end in {', '.join(SUFFIXES)}, got {path.name!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "matplotlib must be installed to draw a graph: pip install 'onedsl[cli]'",
            name=error.name,
        ) from error

    produced = {tensor.id for op in ops for tensor in op.outputs}
    consumed = {tensor.id for op in ops for tensor in op.inputs}
    ports = {op.id: _external_ports(op, produced, consumed) for op in ops}
    heights = {
        op: ROW_HEIGHT * max(len(sides["in"]), len(sides["out"]), 2) for op, sides in ports.items()
    }
    height = sum(heights.values()) + GAP * (len(heights) + 1) + 0.4

    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    axes.text(0.2, 0.3, title, size=12, weight="bold")

    middles: dict[int, float] = {}
    top = 0.4 + GAP
    for op in ops:
        middles[op.id] = top + heights[op.id] / 2
        _draw_op(axes, op, ports[op.id], top, heights[op.id])
        top += heights[op.id] + GAP
    for op in ops:
        for tensor in op.inputs:
            producer = next((other for other in ops if tensor in other.outputs), None)
            if producer is not None:
                start = middles[producer.id] + heights[producer.id] / 2 - 0.08
                end = middles[op.id] - heights[op.id] / 2 + 0.08
                _draw_link(axes, start, end, f"{tensor.id}: {tensor}")
    for part in partitions:
        tops = [middles[i] - heights[i] / 2 for i in part.op_ids]
        bottoms = [middles[i] + heights[i] / 2 for i in part.op_ids]
        _draw_frame(axes, min(tops), max(bottoms), str(part))
    figure.savefig(path, dpi=110)


def _external_ports(op: GraphOp, produced: set[int], consumed: set[int]) -> dict[str, list[str]]:
    """Return the labels of the op's tensors that no op of the graph produces or consumes.

    The key ``"in"`` has the inputs that no op produces, and ``"out"`` the outputs that no op
    consumes.
    """
    internal = {"in": produced, "out": consumed}
    ports: dict[str, list[str]] = {"in": [], "out": []}
    for side, name, tensor in op.ports:
        if tensor.id not in internal[side]:
            ports[side].append(f"{tensor.id}: {name}\n{tensor}")
    return ports


def _draw_op(
    axes: Any, op: GraphOp, ports: dict[str, list[str]], top: float, height: float
) -> None:
    """Draw an op, boxes for its external tensors, and arrows between them."""
    attrs = "\n".join(f"{name} = {value}" for name, value in op.attrs.items())
    _box(axes, "op", top + 0.08, height - 0.16, f"{op.kind}\n\n{attrs}", OP)
    for side, ends in (("in", ("in", "op")), ("out", ("op", "out"))):
        step = height / max(len(ports[side]), 1)
        for i, text in enumerate(ports[side]):
            middle = top + (i + 0.5) * step
            _box(axes, side, middle - 0.25, 0.5, text, TENSOR)
            arrow = {"arrowstyle": "->", "color": "#555555"}
            axes.annotate(
                "",
                xy=(COLUMNS[ends[1]][0], middle),
                xytext=(COLUMNS[ends[0]][1], middle),
                arrowprops=arrow,
            )


def _box(axes: Any, column: str, top: float, height: float, text: str, color: str) -> None:
    from matplotlib.patches import Rectangle

    left, right = COLUMNS[column]
    box = Rectangle((left, top), right - left, height, facecolor=color, edgecolor="#555555")
    axes.add_patch(box)
    axes.text((left + right) / 2, top + height / 2, text, ha="center", va="center", size=8.5)


def _draw_link(axes: Any, start: float, end: float, label: str) -> None:
    """Draw a labeled arrow between two ops, from the bottom of one to the top of the other."""
    x = sum(COLUMNS["op"]) / 2
    axes.annotate("", xy=(x, end), xytext=(x, start), arrowprops={"arrowstyle": "->"})
    axes.text(x + 0.1, (start + end) / 2, label, size=8.5, va="center")


def _draw_frame(axes: Any, top: float, bottom: float, label: str) -> None:
    """Draw a dashed frame around the ops of a partition."""
    from matplotlib.patches import Rectangle

    left, right = COLUMNS["op"][0] - 0.2, COLUMNS["op"][1] + 0.2
    axes.add_patch(
        Rectangle(
            (left, top - 0.08), right - left, bottom - top + 0.16,
            fill=False, edgecolor=FRAME, linestyle="--", linewidth=1.5,
        )
    )  # fmt: skip
    axes.text(left, top - 0.14, label, size=9, color=FRAME)
