"""What is shown of training steps: a table, a picture, and a file of all figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from .report import machine_facts
from .steps import PARTS, WAYS, Result
from .table import Column, table

HEAD, ROW, FOOT = 1.3, 0.6, 0.4  # inches
COLORS = ("#8a8a8a", "#0b6e99", "#c8dce6", "#e8e8e8")  # of the parts


def _batch_norm(result: Result, way: str) -> str:
    parts = result.shares[way]
    return f"{100 * parts['batch norm'] / sum(parts.values()):.0f}"


COLUMNS: tuple[Column[Result], ...] = (
    Column("network", lambda result: result.case.network),
    Column("type", lambda result: result.case.dtype),
    Column("memory", lambda result: result.case.memory),
    Column(
        "PyTorch\nms",
        lambda result: f"{1e3 * result.seconds[WAYS[0]]:.0f}{'*' if result.disturbed else ''}",
    ),
    Column("enable", lambda result: f"{result.ratios[WAYS[1]]:.2f}"),
    Column("and\nfuse", lambda result: f"{result.ratios[WAYS[2]]:.2f}"),
    Column("batch\nnorm %", lambda result: _batch_norm(result, WAYS[0])),
    Column("enable\n%", lambda result: _batch_norm(result, WAYS[1])),
    Column("and\nfuse %", lambda result: _batch_norm(result, WAYS[2])),
)


def results_table(results: Sequence[Result], conditions: str) -> Table:
    """Say what was measured."""
    caption = (
        f"{conditions} Times as fast as PyTorch, and batch norm's share of the step. "
        "* Other programs wanted the CPUs."
    )
    return table("A training step", caption, COLUMNS, [results])


def draw(path: Path, results: Sequence[Result], conditions: str) -> None:
    """Draw what the parts of a step take, of PyTorch's step."""
    from matplotlib.figure import Figure  # it is optional

    from .plot import DARK_GREY, GRID, WIDTH

    inches = HEAD + ROW * len(results) + FOOT
    figure = Figure(figsize=(WIDTH, inches), dpi=150)
    axes = figure.add_axes((0.25, FOOT / inches, 0.73, ROW * len(results) / inches))
    height = 0.8 / len(WAYS)
    for row, result in enumerate(results):
        for i, way in enumerate(WAYS):
            parts = result.shares[way]
            scale = 1 / result.ratios[way] / sum(parts.values())
            left = 0.0
            for part, color in zip(PARTS, COLORS, strict=True):
                label = part if row == i == 0 else None
                width = parts[part] * scale
                axes.barh(row + i * height, width, 0.9 * height, left, color=color, label=label)
                left += width
    axes.set_yticks(
        [row + height for row in range(len(results))], [" ".join(r.case) for r in results]
    )
    axes.set_ylim(len(results) - 0.3, -0.3)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PARTS), frameon=False)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=12.5)
    axes.spines[:].set_visible(False)
    title = "What a training step takes, by its parts"
    subtitle = f"From above: PyTorch, which is 1, enable, enable and fuse. {conditions}"
    figure.text(0.012, 1 - 0.15 / inches, title, va="top", size=16, weight="bold")
    figure.text(0.012, 1 - 0.5 / inches, subtitle, va="top", size=12, color=DARK_GREY)
    figure.savefig(path)


def write_json(path: Path, results: Sequence[Result], conditions: str) -> None:
    """Write the machine, the conditions and the steps."""
    steps = [{**r._asdict(), "case": r.case._asdict()} for r in results]
    document = {"machine": machine_facts(), "conditions": conditions, "steps": steps}
    path.write_text(json.dumps(document, indent=1))
