"""Show what goes wrong when the gradients for batch and for frozen statistics are confused.

A small convolutional network learns the digits 0 to 4, with batch statistics. Then it is fine-tuned
on the digits 5 to 9, in small batches. Its batch-norm layers use the batch's statistics or the
frozen ones in the forward pass, and the gradient for the one or for the other in the backward pass.
Two of these four ways are right. All start from the same weights and see the same batches.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import common
import numpy as np
from common import GREY
from frozen_training import (
    BATCH,
    BATCH_CONFUSED,
    BLOWN_UP,
    CHECKED_WEIGHTS,
    EVALUATE_EVERY,
    FINE_TUNING_BATCH,
    FROZEN,
    FROZEN_CONFUSED,
    MODES,
    Mode,
    Run,
    run_seed,
)
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy_network import CLASSES, CONVOLUTIONS, Array
from rich import box
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from onedsl.bench import arguments
from onedsl.bench.table import console, progress

TOLERANCE = 1e-4  # relative L2 error allowed to the right gradients, against finite differences

# What the results say


def pick(runs: Sequence[Run], mode: Mode) -> list[Run]:
    """Give the runs of one mode, one for each seed."""
    return [run for run in runs if run.mode == mode]


def accuracy(runs: Sequence[Run], mode: Mode) -> str:
    """Give the mean accuracy on the test images."""
    return f"{100 * np.mean([run.accuracy for run in pick(runs, mode)]):.0f} %"


def failures(runs: Sequence[Run], mode: Mode) -> str:
    """Count the runs that end worse than guessing."""
    found = pick(runs, mode)
    return f"{sum(run.failed for run in found)} of {len(found)}"


def layer_cosines(runs: Sequence[Run], mode: Mode) -> Array:
    """Give the cosines along the right runs with this mode's forward pass, (steps, layers)."""
    right = Mode(mode.frozen_forward, mode.frozen_forward)
    return np.concatenate([run.cosines for run in pick(runs, right)])


def results_table(runs: Sequence[Run]) -> Table:
    """Make a table with one row per mode."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for title in ("forward", "gradient", ""):
        table.add_column(f"\n{title}", no_wrap=True)
    for title in (
        "error against\nfinite differences",
        "cosine to the\nright one",
        "test\naccuracy",
        "runs that\nfail",
    ):
        table.add_column(title, justify="right")
    for mode in MODES:
        errors = [run.gradient_error for run in pick(runs, mode)]
        table.add_row(
            word(mode.frozen_forward),
            word(mode.frozen_gradient),
            "right" if mode.right else "confused",
            f"{np.median(errors):.1g}",
            "1" if mode.right else f"{np.median(layer_cosines(runs, mode)[:, 0]):.2f}",
            accuracy(runs, mode),
            failures(runs, mode),
            style="green" if mode.right else "red",
            end_section=not mode.right,
        )
    return table


def word(frozen: bool) -> str:
    """Name the statistics."""
    return "frozen" if frozen else "batch"


def finding(runs: Sequence[Run]) -> str:
    """Put into one sentence what the confusion does to frozen layers."""
    if any(run.failed for run in pick(runs, FROZEN_CONFUSED)):
        confused, right = (failures(runs, mode) for mode in (FROZEN_CONFUSED, FROZEN))
        confused += " runs fail"
    else:
        confused, right = (accuracy(runs, mode) for mode in (FROZEN_CONFUSED, FROZEN))
        confused += " test accuracy"
    return f"Frozen layers with the batch gradient: {confused} (right gradient: {right})"


# The picture

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = {
    FROZEN: "#0072B2",
    FROZEN_CONFUSED: "#D55E00",
    BATCH: "#56B4E9",
    BATCH_CONFUSED: "#E69F00",
}
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}  # behind numbers
BAND = (10, 50, 90)  # percentiles: the band's edges and the line in it
HIGHEST_LOSS = 30  # of the axis


def plot(runs: Sequence[Run], subtitle: str, steps: int, path: Path) -> None:
    """Draw the losses of all modes, and how far off the confused gradients are."""
    figure = common.new_figure(finding(runs), subtitle)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    figure.subplots_adjust(0.07, 0.205, 0.985, 0.755, wspace=0.2)
    draw_losses(left, runs, steps)
    draw_cosines(right, runs)
    figure.legend(handles=legend(), loc="lower center", ncols=2, frameon=False, fontsize=14)
    figure.savefig(path)


def draw_losses(axes: Axes, runs: Sequence[Run], steps: int) -> None:
    """Draw the losses, for each mode the median and a band, or every run where some fail."""
    at = [*range(0, steps, EVALUATE_EVERY), steps]
    for mode, colour in COLOURS.items():
        losses = np.minimum([run.losses for run in pick(runs, mode)], BLOWN_UP)
        low, middle, high = np.percentile(losses, BAND, axis=0)
        if any(run.failed for run in pick(runs, mode)):  # a median alone would hide that
            axes.plot(at, losses.T, color=colour, linewidth=1.3, alpha=0.7)
        else:
            axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(at, middle, line(mode), color=colour, linewidth=2.8)
    axes.axhline(math.log(CLASSES), color=GREY, linewidth=1.2, linestyle=":")
    axes.text(steps, math.log(CLASSES) * 1.05, "guessing", ha="right", va="bottom", size=12)
    common.log_losses(axes)
    axes.set_ylim(top=HIGHEST_LOSS)
    axes.set_xlim(0, steps)
    axes.set_xlabel("step of the fine-tuning", size=14)
    common.decorate(axes, "Loss on test images", "y")


def draw_cosines(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw how the confused gradient points, layer by layer, where the right one is at 1."""
    layers = np.arange(len(CONVOLUTIONS))
    for offset, mode in ((-0.12, FROZEN_CONFUSED), (0.12, BATCH_CONFUSED)):
        low, middle, high = np.percentile(layer_cosines(runs, mode), BAND, axis=0)
        colour = COLOURS[mode]
        axes.vlines(layers + offset, low, high, color=colour, linewidth=10, alpha=0.35)
        axes.plot(layers + offset, middle, "o", color=colour, markersize=12)
        for x, y in zip(layers, middle, strict=True):
            place = "left" if offset > 0 else "right"
            label = f"{y:.2f}".replace("-", "\N{MINUS SIGN}")
            axes.text(x + 1.7 * offset, y, label, ha=place, va="center", size=14, bbox=PAPER)
    axes.axhline(1, color=COLOURS[FROZEN], linewidth=2.8)
    axes.text(-0.73, 0.97, "right", va="top", size=13, color=COLOURS[FROZEN])
    axes.axhline(0, color=GREY, linewidth=1.2, linestyle=":")
    axes.set_xticks(layers, [f"layer {layer + 1}" for layer in layers])
    axes.set_xlim(-0.75, len(layers) - 0.4)
    axes.set_ylim(-1.05, 1.05)
    common.decorate(axes, "Cosine to the right gradient", "y")


def line(mode: Mode) -> Literal["-", "--"]:
    """Give the style of a mode's line."""
    return "-" if mode.right else "--"


def legend() -> list[Line2D]:
    """Explain colours and lines."""
    return [
        Line2D(
            [],
            [],
            linestyle=line(mode),
            color=colour,
            linewidth=2.8,
            label=f"{word(mode.frozen_forward)} statistics, {word(mode.frozen_gradient)} gradient"
            f" ({'right' if mode.right else 'confused'})",
        )
        for mode, colour in COLOURS.items()
    ]


# The command


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = common.parser(__doc__)
    parser.add_argument(
        "--seeds", type=arguments.count, default=10, help="networks and splits of the data"
    )
    parser.add_argument(
        "--steps", type=arguments.count, default=200, help="steps of each fine-tuning"
    )
    parser.add_argument(
        "--rate",
        type=arguments.positive,
        default=0.01,
        help="learning rate of the fine-tuning; at lower ones fewer of the confused runs fail",
    )
    parser.add_argument("--save", **arguments.save("frozen_backbone.png"))
    return parser.parse_args()


def main() -> int:
    """Run the fine-tunings, and print and save what came out."""
    chosen, out = options(), console()
    header = (
        f"Digits 0-4, then 5-9; {chosen.steps} steps with {FINE_TUNING_BATCH} images each, "
        f"learning rate {chosen.rate:g}, seeds: {chosen.seeds}"
    )
    out.print(f"{header}\n")
    with threadpool_limits(1):  # for arrays as small as these, threads cost more than they bring
        runs = [
            run
            for seed in progress(range(chosen.seeds), "fine-tuning")
            for run in run_seed(seed, chosen.steps, chosen.rate)
        ]
    out.print(results_table(runs))
    notes = (
        f"Error: relative L2, {CHECKED_WEIGHTS} weights of the first layer before the first step, "
        "median of the seeds.\nCosine: of the first layer's weight gradients, at the weights of "
        "the right runs, median.\nAccuracy: mean of the seeds. To fail is to end with a loss "
        "worse than that of guessing, log(5).\n"
    )
    out.print(notes, style="dim")
    out.print(f"{finding(runs)}.", style="bold")
    if chosen.save:
        bands = (
            f"Thick lines and dots: medians; bands: {BAND[0]} to {BAND[-1]} % of runs and steps; "
            "thin lines: runs. To fail is to end worse than guessing."
        )
        plot(runs, f"{header}.\n{bands}", chosen.steps, chosen.save)
        out.print(f"Picture: {chosen.save}")

    worst = max(run.gradient_error for run in runs if run.mode.right)
    if not worst <= TOLERANCE:
        print(
            f"a right gradient is off by {worst:.2g} from finite differences, more than "
            f"{TOLERANCE:g}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
