"""Drawing of graphs: inputs on the left, ops in the middle, outputs on the right."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..runtime.text import printable
from ._parts import GraphOp, Partition

SUFFIXES = (".png", ".pdf", ".svg")

# Colors that color-blind readers can distinguish (Okabe and Ito).
TENSOR, OP, PARTITION = "#e8f1f8", "#fbe6d9", "#0072B2"
DEFECT = "#c00000"

WIDTH, ROW_HEIGHT, GAP = 12.6, 0.62, 0.7  # inches
ROW_LINES = 4  # of text
LINE_HEIGHT = 0.17  # inches, of a line about a defect
MAX_HEIGHT = 100  # inches
COLUMNS = {"in": (0.2, 3.9), "op": (5.0, 7.6), "out": (8.7, 12.4)}  # left and right edges, inches


def draw(
    path: Path,
    title: str,
    ops: Sequence[GraphOp],
    partitions: Sequence[Partition],
    problem: str,
    changes: Sequence[str],
    added: Mapping[int, str],
) -> None:
    """Draw the ops and partitions of a graph to an image file with one of the `SUFFIXES`.

    `problem` is why there are no partitions, or "". `added` describes tensors that a call neither
    passes nor returns, by id.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path must end in {', '.join(SUFFIXES)}, got {path.name!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "matplotlib must be installed to draw a graph: pip install 'onedsl[plot]'",
            name=error.name,
        ) from error

    lines = _head(problem, changes)
    drawn = _drawn_ops(ops, partitions)
    height = GAP + LINE_HEIGHT * len(lines) + sum(each.height for each in drawn)
    if height > MAX_HEIGHT:
        raise ValueError(
            f"graph must fit in {MAX_HEIGHT} inches to be drawn, got {height:.0f} for {len(ops)} "
            "ops. Draw a part of it, such as Graph(graph.ops[:10]), or print it"
        )
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    _text(axes, 0.2, 0.3, title, 100, size=12, weight="bold")
    top = GAP
    for line, color in lines:
        _text(axes, 0.2, top - 0.12, line, 150, size=9, color=color)
        top += LINE_HEIGHT
    bottoms: dict[int, float] = {}
    for each in drawn:
        _paint(axes, each, top, added, bottoms)
        top += each.height
    figure.savefig(path, dpi=110)


# ---- Measuring ----


def _head(problem: str, changes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the lines below the title, with their colors."""
    texts = (problem, DEFECT), *((change, PARTITION) for change in changes)
    return [
        (line, color)
        for text, color in texts
        for line in textwrap.wrap(text, 150, max_lines=4, placeholder=" …")
    ]


class _DrawnOp(NamedTuple):
    """An op, and what is written about its partition."""

    op: GraphOp
    label: str
    """At the op's box."""
    defects: Sequence[str]
    """Lines above the box."""

    @property
    def box_height(self) -> float:
        attribute_rows = math.ceil((len(self.op.attrs) + 2) / ROW_LINES)
        return ROW_HEIGHT * max(len(self.op.inputs), len(self.op.outputs), 2, attribute_rows)

    @property
    def height(self) -> float:
        return LINE_HEIGHT * len(self.defects) + self.box_height + GAP


def _drawn_ops(ops: Sequence[GraphOp], partitions: Sequence[Partition]) -> list[_DrawnOp]:
    """Return the ops with the texts about their partitions."""
    labels: dict[int, str] = {}
    defects: dict[int, list[str]] = {}  # with the label, at the partition's first op
    for part in partitions:
        label, *lines = str(part).split("\n")
        labels |= dict.fromkeys(part.op_ids, label)
        if lines:
            first = part.op_ids[0]
            del labels[first]
            wrapped = [row for line in lines for row in textwrap.wrap(line.strip(), 150)]
            defects[first] = [label, *wrapped]
    return [_DrawnOp(op, labels.get(op.id, ""), defects.get(op.id, ())) for op in ops]


# ---- Painting ----


def _paint(
    axes: Any, drawn: _DrawnOp, top: float, added: Mapping[int, str], bottoms: dict[int, float]
) -> None:
    """Paint an op with its tensors, and arrows from the ops that compute its inputs.

    `bottoms` has the lower edge of the op that computes a tensor, by the tensor's id.
    """
    op, (left, right) = drawn.op, COLUMNS["op"]
    for line in drawn.defects:
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the arrows
        _text(axes, 0.2, top - 0.12, line, 150, size=9, color=DEFECT, bbox=white)
        top += LINE_HEIGHT
    bottom = top + drawn.box_height
    attrs = (f"{name} = {value}" for name, value in op.attrs.items())
    _box(axes, "op", top, bottom, OP, op.kind, "", *attrs)
    _text(axes, left, top - 0.08, drawn.label, 100, size=9, color=PARTITION)
    arrows = {"in": (COLUMNS["in"][1], left), "out": (right, COLUMNS["out"][0])}
    for side, (start, end) in arrows.items():
        ports = [(name, tensor) for port_side, name, tensor in op.ports if port_side == side]
        for i, (name, tensor) in enumerate(ports):
            y = top + (i + 0.5) * (bottom - top) / len(ports)
            note = added.get(tensor.id, "")
            label = f"{tensor.id}: {name}{note and f', {note}'}"
            dashes = "--" if note else "-"
            _box(axes, side, y - 0.25, y + 0.25, TENSOR, label, str(tensor), linestyle=dashes)
            _arrow(axes, (start, y), (end, y))
    for tensor in op.inputs:
        if tensor.id in bottoms:  # an earlier op computes it
            _arrow(axes, (right - 0.3, bottoms[tensor.id]), (right - 0.3, top - 0.25))
    bottoms |= dict.fromkeys((tensor.id for tensor in op.outputs), bottom)


def _box(
    axes: Any,
    column: str,
    top: float,
    bottom: float,
    color: str,
    *lines: str,
    linestyle: str = "-",
) -> None:
    from matplotlib.patches import Rectangle

    left, right = COLUMNS[column]
    corner, size = (left, top), (right - left, bottom - top)
    box = Rectangle(corner, *size, facecolor=color, edgecolor="#555555", linestyle=linestyle)
    axes.add_patch(box)
    center = (left + right) / 2, (top + bottom) / 2
    width = int(13 * (right - left))  # in characters
    _text(axes, *center, "\n".join(lines), width, ha="center", va="center", size=8.5)


def _text(axes: Any, x: float, y: float, text: str, width: int, **style: Any) -> None:
    """Draw text as it is, also if it has the syntax of mathematical formulas."""
    lines = map(printable, text.split("\n"))
    shown = [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]
    axes.text(x, y, "\n".join(shown), parse_math=False, usetex=False, **style)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "->", "color": "#555555"})
