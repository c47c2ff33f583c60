"""Picture of effective memory bandwidths: a panel for each type, a line for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

# Okabe and Ito's colors, which color-blind readers can distinguish.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#8a8a8a"
DARK_GREY, GRID, STRIPE = "#555555", "#dcdcdc", "#f3f3f3"

MARKER: dict[str, Any] = {"linestyle": "", "markersize": 8}
# Inches. The width is that of a slide.
WIDTH, HEADER, FOOTER, LINE, MIN_HEIGHT = 13.3, 1.25, 1.2, 0.33, 2.2


class Mark(NamedTuple):
    """How an implementation is drawn.

    Attributes
    ----------
    label, color, marker : str
    offset : float
        Distance below the middle of the line. A line joins marks with the same offset.
    """

    label: str
    color: str
    marker: str
    offset: float = 0.0


def plot(
    path: Path,
    shares: Mapping[tuple[str, str], Mapping[str, float]],
    marks: Mapping[str, Mark],
    title: str,
    subtitle: str,
    ylabel: str = "",
) -> None:
    """Draw effective memory bandwidths as fractions of the triad's.

    Parameters
    ----------
    path : Path
        File to write: .png, .pdf or .svg.
    shares : mapping of (panel, label of the line) to mapping of mark to fraction
    marks : mapping
        The legend omits marks that are not drawn.
    title, subtitle, ylabel : str
    """
    panels = list(dict.fromkeys(panel for panel, _ in shares))
    labels = list(dict.fromkeys(label for _, label in shares))
    drawn = {name for line in shares.values() for name in line}
    largest = max(share for line in shares.values() for share in line.values())
    marks = {name: mark for name, mark in marks.items() if name in drawn}

    height = HEADER + FOOTER + max(LINE * len(labels), MIN_HEIGHT)
    figure = Figure(figsize=(WIDTH, height))
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    left = ((0.7 if ylabel else 0.3) + 0.085 * max(map(len, labels))) / WIDTH
    figure.subplots_adjust(left, FOOTER / height, 0.985, 1 - HEADER / height, wspace=0.08)
    for axes, panel in zip(all_axes, panels, strict=True):
        for y, label in enumerate(labels):
            if y % 2 == 0:
                axes.axhspan(y - 0.5, y + 0.5, color=STRIPE, linewidth=0, zorder=0)
            _draw_line(axes, y, shares.get((panel, label), {}), marks)
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
    all_axes[0].set_ylabel(ylabel, size=12)

    def from_top(inches: float) -> float:
        return 1 - inches / height

    figure.text(0.012, from_top(0.15), title, va="top", size=18, weight="bold")
    figure.text(0.012, from_top(0.52), subtitle, va="top", size=11.5, color=DARK_GREY)
    xlabel = "effective memory bandwidth, % of this machine's triad (each tensor counted once)"
    figure.text(0.56, 0.5 / height, xlabel, ha="center", va="bottom", size=12)
    handles = [
        Line2D([], [], marker=mark.marker, color=mark.color, label=mark.label, **MARKER)
        for mark in marks.values()
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(marks), frameon=False, fontsize=12)
    figure.savefig(path, dpi=90)


def _draw_line(axes: Axes, y: int, shares: Mapping[str, float], marks: Mapping[str, Mark]) -> None:
    for offset in {mark.offset for mark in marks.values()}:
        joined = [shares[name] for name in shares if marks[name].offset == offset]
        axes.plot(joined, [y + offset] * len(joined), color=GRID, linewidth=2, zorder=1)
    for name, share in shares.items():
        mark = marks[name]
        axes.plot(share, y + mark.offset, mark.marker, color=mark.color, **MARKER)
