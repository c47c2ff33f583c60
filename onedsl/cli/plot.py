"""Picture of ``onedsl bench``: a panel for each dtype, a line for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..bench import COLORS, MIN_BYTES, Row

MARKERS = {"PyTorch": "s", "oneDNN": "D", "onedsl": "o"}


def draw(path: Path, rows: Sequence[Row], title: str, subtitle: str) -> None:
    """Draw the minimum time of the algorithm as a fraction of each implementation's time."""
    names = [f"{row.operation} {row.layer} {row.data_format}" for row in rows]
    labels, panels = list(dict.fromkeys(names)), list(dict.fromkeys(row.dtype for row in rows))
    height = 2.6 + 0.33 * max(len(labels), 6)  # inches
    figure = Figure(figsize=(13.3, height), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    legend = {}
    for axes, panel in zip(all_axes, panels, strict=True):
        for implementation, marker in MARKERS.items():
            points = [
                (row.floor_share(implementation), labels.index(name))
                for row, name in zip(rows, names, strict=True)
                if row.dtype == panel and implementation in row.seconds
                if row.tensor_bytes >= MIN_BYTES
            ]
            if points:
                (legend[implementation],) = axes.plot(
                    *zip(*points, strict=True), marker, color=COLORS[implementation]
                )
        axes.set_title(panel, loc="left", weight="bold")
        floor = axes.axvline(1, color="#555555", linewidth=1, linestyle=":")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.grid(color="#dcdcdc")
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    all_axes[0].set_xlim(0)
    all_axes[0].set_yticks(range(len(labels)), labels)
    all_axes[0].set_ylim(len(labels) - 0.5, -0.5)
    figure.suptitle(title, x=0.01, ha="left", size=15, weight="bold")
    figure.supxlabel(
        "minimum time of the algorithm at this machine's memory bandwidth, % of the time"
        f" (right is faster)\n{subtitle}",
        size=11,
    )
    legend["minimum time"] = floor
    figure.legend(legend.values(), legend.keys(), loc="outside upper right", ncols=4, frameon=False)
    figure.savefig(path, dpi=90)
