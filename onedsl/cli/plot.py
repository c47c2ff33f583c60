"""Picture of ``onedsl bench``: a panel for each dtype, a line for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..bench import Row

# Okabe and Ito's colors, which color-blind readers can distinguish.
MARKS = {"PyTorch": ("#8a8a8a", "s"), "oneDNN": ("#0072B2", "D"), "onedsl": ("#D55E00", "o")}
DARK_GREY, GRID, STRIPE = "#555555", "#dcdcdc", "#f3f3f3"
# Inches. The width is that of a slide.
WIDTH, HEADER, FOOTER, LINE, MIN_HEIGHT = 13.3, 1.35, 1.2, 0.33, 2.2


def draw(path: Path, rows: Sequence[Row], title: str, subtitle: str) -> None:
    """Draw the minimum time of the algorithm as a fraction of each implementation's time."""
    shares = {
        (row.dtype, f"{row.operation} {row.layer} {row.data_format}"): {
            name: row.floor_share(name) for name in MARKS if name in row.seconds
        }
        for row in rows
    }
    panels = list(dict.fromkeys(panel for panel, _ in shares))
    labels = list(dict.fromkeys(label for _, label in shares))
    largest = max(share for line in shares.values() for share in line.values())
    height = HEADER + FOOTER + max(LINE * len(labels), MIN_HEIGHT)
    figure = Figure(figsize=(WIDTH, height))
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    left = (0.3 + 0.085 * max(map(len, labels))) / WIDTH
    figure.subplots_adjust(left, FOOTER / height, 0.985, 1 - HEADER / height, wspace=0.08)
    for axes, panel in zip(all_axes, panels, strict=True):
        for y, label in enumerate(labels):
            line = shares.get((panel, label), {})
            if y % 2 == 0:
                axes.axhspan(y - 0.5, y + 0.5, color=STRIPE, linewidth=0, zorder=0)
            axes.plot(line.values(), [y] * len(line), color=GRID, linewidth=2, zorder=1)
            for name, share in line.items():
                color, marker = MARKS[name]
                axes.plot(share, y, marker, color=color, markersize=8)
        axes.set_title(panel, loc="left", size=14, weight="bold")
        axes.axvline(1, color=DARK_GREY, linewidth=1, linestyle=":")
        axes.set_xlim(0, 1.08 * max(1, largest))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.grid(axis="x", color=GRID)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelsize=11)
        axes.spines[:].set_visible(False)
    all_axes[0].set_yticks(range(len(labels)), labels)
    all_axes[0].set_ylim(len(labels) - 0.5, -0.5)
    figure.text(0.012, 1 - 0.15 / height, title, va="top", size=18, weight="bold")
    figure.text(0.012, 1 - 0.52 / height, subtitle, va="top", size=11, color=DARK_GREY)
    axis = "minimum time of the algorithm at this machine's memory bandwidth, % of the time"
    figure.text(0.56, 0.5 / height, axis, ha="center", size=12)
    handles = [
        Line2D([], [], linestyle="", marker=marker, markersize=8, color=color, label=name)
        for name, (color, marker) in MARKS.items()
        if any(name in line for line in shares.values())
    ]
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=12)
    figure.savefig(path, dpi=90)
