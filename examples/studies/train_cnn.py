"""Train a small residual network with torch's batch-norm layers, and with onedsl's in their place.

The data are scikit-learn's digits, at twice their size. Both networks start from the same weights
and see the same batches, in both memory formats, in float32 and in bfloat16 by autocast. They take
their steps in turns, so that the times of a step can be compared as its losses can.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import common
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

try:
    import torch
except ImportError:
    sys.exit("train_cnn.py needs PyTorch: pip install 'torch>=2.13'")

from cnn_training import (
    CONFIGURATIONS,
    JUDGED,
    TRAIN_IMAGES,
    WARM_UP,
    Pair,
    Pairs,
    Run,
    differ,
    draw_batches,
    load_images,
    train,
)

import onedsl
from onedsl.bench import arguments
from onedsl.bench.table import console, progress

# The mean difference of the first losses over their mean
LOSS_TOLERANCE = {"f32": 0.005, "bf16": 0.05}

# What the results say


def results_table(pairs: Pairs) -> Table:
    """Make a table with two rows per configuration."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for title in ("\n", "\nlayers"):
        table.add_column(title, no_wrap=True)
    for title in (
        "step\nms",
        "batch norm\nforward",
        "ms\nbackward",
        "of the\nstep",
        "speed-up\nbackward",
        "\nstep",
        "\nquartiles",
        "last\nloss",
        "test\naccuracy",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for configuration, pair in pairs.items():
        low, middle, high = pair.speed_up()
        ratios = f"{pair.speed_up('backward')[1]:.2f}", f"{middle:.2f}", f"{low:.2f}-{high:.2f}"
        dtype, memory = configuration
        table.add_row(dtype, "torch", *times(pair.torch), "", "", "", *learnt(pair.torch))
        table.add_row(
            *(memory, "onedsl", *times(pair.onedsl), *ratios, *learnt(pair.onedsl)),
            end_section=True,
        )
    return table


def times(run: Run) -> Iterator[str]:
    """Write a run's median times and the share of batch norm."""
    for part in ("whole", "forward", "backward"):
        yield f"{1e3 * median(run.samples(part)):.1f}"
    yield f"{100 * share(run):.0f} %"


def share(run: Run) -> float:
    """Give batch norm's share of a step."""
    return median(run.samples("batch_norm")) / median(run.samples("whole"))


def learnt(run: Run) -> tuple[str, str]:
    """Write what a run ended with."""
    return f"{run.losses[-1]:.3f}", f"{100 * run.accuracy:.1f} %"


def finding(pairs: Pairs) -> str:
    """Put the speed-ups into one sentence."""
    steps, gradients = (
        [pair.speed_up(part)[1] for pair in pairs.values()] for part in ("whole", "backward")
    )
    return (
        f"With onedsl's layers a step is {min(steps):.2f} to {max(steps):.2f} times as fast, "
        f"batch norm's gradient {min(gradients):.2f} to {max(gradients):.2f} times"
    )


def closeness(pairs: Pairs) -> str:
    """Say how close the losses are, and how close torch's own are in its two memory formats."""
    lines = []
    for dtype in LOSS_TOLERANCE:
        same = {c.memory: pair for c, pair in pairs.items() if c.dtype == dtype}
        apart = max(pair.apart for pair in same.values())
        formats = differ(*(pair.torch for pair in same.values()))
        lines.append(
            f"The first losses of torch and onedsl differ by {100 * apart:.2g} % in {dtype}, "
            f"those of torch's two formats by {100 * formats:.2g} %."
        )
    return "\n".join(lines)


# The picture

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = {"torch": "#E69F00", "onedsl": "#0072B2"}
PARTS = {"forward": "#56B4E9", "backward": "#D55E00", "the rest": "#dcdcdc"}


def plot(pairs: Pairs, subtitle: str, path: Path) -> None:
    """Draw the losses of every configuration, and where the time of a step goes."""
    figure = common.new_figure(finding(pairs), subtitle)
    losses, bars = np.asarray(figure.subfigures(1, 2, width_ratios=(1.1, 1)))
    panels = losses.subplots(2, 2, sharex=True, sharey=True)
    losses.subplots_adjust(0.075, 0.19, 0.98, 0.8, wspace=0.1, hspace=0.3)
    for axes, (configuration, pair) in zip(panels.flat, pairs.items(), strict=True):
        draw_losses(axes, pair)
        common.decorate(axes, f"Loss, {' '.join(configuration)}", "y")
    for axes in panels[-1]:
        axes.set_xlabel("step", size=13)
    axes = bars.subplots()
    bars.subplots_adjust(0.36, 0.19, 0.97, 0.8)
    draw_times(axes, pairs)
    common.decorate(axes, "Milliseconds of a step", "x")
    losses.legend(handles=loss_legend(), loc="lower center", ncols=2, frameon=False, fontsize=13)
    bars.legend(handles=time_legend(), loc="lower center", ncols=3, frameon=False, fontsize=13)
    figure.savefig(path)


def draw_losses(axes: Axes, pair: Pair) -> None:
    """Draw the losses of both runs, the one on the other."""
    axes.plot(pair.torch.losses, color=COLOURS["torch"], linewidth=5, alpha=0.6)
    axes.plot(pair.onedsl.losses, color=COLOURS["onedsl"], linewidth=1.4)
    common.log_losses(axes)


def draw_times(axes: Axes, pairs: Pairs) -> None:
    """Draw a bar per run, from its parts, and write the speed-ups beside them."""
    labels = {}
    for row, (configuration, pair) in enumerate(pairs.items()):
        for y, name, run in ((2.7 * row, "torch", pair.torch), (2.7 * row + 1, "", pair.onedsl)):
            labels[y] = f"{' '.join(configuration)}, torch" if name else "onedsl"
            left = 0.0
            forward, backward, whole = (
                1e3 * median(run.samples(part)) for part in ("forward", "backward", "whole")
            )
            widths = (forward, backward, whole - forward - backward)
            for width, colour in zip(widths, PARTS.values(), strict=True):
                axes.barh(y, width, 0.9, left, color=colour)
                left += width
            note = f" {whole:.0f}" if name else f" {whole:.0f}  ({pair.speed_up()[1]:.2f}x)"
            axes.text(left, y, note, va="center", size=13, weight="normal" if name else "bold")
    axes.set_yticks(list(labels), list(labels.values()))
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlim(right=1.5 * axes.dataLim.x1)  # room for the numbers


def loss_legend() -> list[Line2D]:
    """Explain the lines."""
    return [
        Line2D([], [], color=COLOURS["torch"], linewidth=5, alpha=0.6, label="torch's layers"),
        Line2D([], [], color=COLOURS["onedsl"], linewidth=1.4, label="onedsl's"),
    ]


def time_legend() -> list[Patch]:
    """Explain the parts of the bars."""
    labels = ("batch norm, forward", "backward", "the rest")
    return [Patch(color=c, label=s) for c, s in zip(PARTS.values(), labels, strict=True)]


# The command


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--steps", type=arguments.count, default=80, help="steps of each network")
    parser.add_argument("--batch", type=parse_batch, default=128, help="images in a batch")
    parser.add_argument("--seed", type=arguments.count, default=1, help="of weights and batches")
    parser.add_argument(
        "--threads", type=arguments.count, default=torch.get_num_threads(), help="of both libraries"
    )
    parser.add_argument("--save", **arguments.save("train_cnn.png"))
    return parser.parse_args()


def parse_batch(text: str) -> int:
    """Take a positive number that there are images for."""
    if arguments.count(text) > TRAIN_IMAGES:
        raise argparse.ArgumentTypeError(f"there are {TRAIN_IMAGES} images, fewer than {text}")
    return int(text)


def main() -> int:
    """Run the trainings, and print and save what came out."""
    chosen, out = options(), console()
    torch.set_num_threads(chosen.threads)
    found = onedsl.capabilities()
    header = (
        f"onedsl {found.onedsl_version} ({found.native_isa}), {found.num_threads} threads; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; "
        f"{chosen.steps} steps with {chosen.batch} images"
    )
    out.print(f"{header}\n")
    rng = np.random.default_rng(chosen.seed)
    images, test = load_images(rng)
    batches = draw_batches(rng, images, chosen.batch, chosen.steps)
    pairs = {
        configuration: train(configuration, chosen.seed, batches, test)
        for configuration in progress(CONFIGURATIONS, "training")
    }
    out.print(results_table(pairs))
    notes = (
        f"Times: medians, without the first {WARM_UP} steps. Speed-up: torch's time over onedsl's, "
        "of the step on\nthe same batch; the median, and the quartiles of the whole step's.\n"
        f"First losses: the first {JUDGED}. Later ones part, as they do for torch alone, because "
        "rounding\nerrors grow.\n"
    )
    out.print(notes, style="dim")
    out.print(closeness(pairs))
    out.print(f"{finding(pairs)}.", style="bold")
    if disturbed := [" ".join(c) for c, pair in pairs.items() if pair.disturbed]:
        warning = f"Other programs kept the CPUs busy, so do not trust {', '.join(disturbed)}."
        out.print(warning, style="bold yellow")
    if chosen.save:
        plot(pairs, f"{header}.", chosen.save)
        out.print(f"Picture: {chosen.save}")

    failures = [
        f"{' '.join(configuration)}: the first losses differ by {100 * pair.apart:.2g} %"
        for configuration, pair in pairs.items()
        if not pair.apart <= LOSS_TOLERANCE[configuration.dtype]
    ]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
