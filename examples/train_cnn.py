"""Train a small residual network with torch's batch-norm layers, and with onedsl's in their place.

The data are scikit-learn's digits, at twice their size. Both networks start from the same weights
and see the same batches, in both memory formats, in float32 and in bfloat16 by autocast. They take
their steps in turns, so that the times of a step can be compared as its losses can.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError:
    sys.exit("train_cnn.py needs PyTorch: pip install 'torch>=2.13'")

import onedsl
import onedsl.torch

TRAIN_IMAGES = 1400  # of 1797; the others are for the test
WIDTHS = (32, 64, 128)  # channels of the blocks, at 16x16, 8x8 and 4x4 pixels
CLASSES = 10
RATE, MOMENTUM = 0.05, 0.9  # the rate falls to 0 along a cosine

WARM_UP = 3  # steps that are trained but not timed
DISTURBANCE = 0.25  # CPUs that other programs may take: OpenMP's threads wait for the slowest
JUDGED = 10  # losses: later ones part, as they do for torch alone, because rounding errors grow
LOSS_TOLERANCE = {"f32": 0.005, "bf16": 0.05}  # mean difference of the first ones over their mean
LOG_WIDTH = 110  # columns of the table where there is no terminal to ask

# The data


class Images(NamedTuple):
    """Images (N, 1, 16, 16) and their classes."""

    pixels: Tensor
    labels: Tensor

    def pick(self, indices: Any) -> Images:
        """Take some of them."""
        return Images(self.pixels[indices], self.labels[indices])


def load_images(rng: np.random.Generator) -> tuple[Images, Images]:
    """Split the digits into those for the training and those for the test."""
    digits = load_digits()
    pixels = torch.from_numpy(digits.images).float()[:, None]
    pixels = functional.interpolate(pixels, scale_factor=2, mode="bilinear")
    images = Images((pixels - pixels.mean()) / pixels.std(), torch.from_numpy(digits.target))
    order = torch.from_numpy(rng.permutation(len(pixels)))
    return images.pick(order[:TRAIN_IMAGES]), images.pick(order[TRAIN_IMAGES:])


def draw_batches(rng: np.random.Generator, images: Images, size: int, number: int) -> list[Images]:
    """Draw batches at random."""
    picks = (rng.choice(len(images.labels), size, replace=False) for _ in range(number))
    return [images.pick(torch.from_numpy(pick)) for pick in picks]


# The network


class Block(nn.Module):
    """ResNet's block: two convolutions and a shortcut around them, each with batch norm."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(channels_in, channels, 3, stride)
        self.second = convolution(channels, channels, 3)
        self.shortcut: nn.Module = nn.Identity()
        if channels_in != channels:
            self.shortcut = convolution(channels_in, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.second(functional.relu(self.first(x)))
        return functional.relu(y + self.shortcut(x))


def convolution(channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Module:
    """Make a convolution and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(channels),
    )


def new_network(seed: int) -> nn.Module:
    """Draw random weights."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [convolution(1, WIDTHS[0], 3), nn.ReLU()]
    for channels_in, channels in zip(WIDTHS[:1] + WIDTHS, WIDTHS, strict=False):
        layers.append(Block(channels_in, channels, 1 if channels_in == channels else 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], CLASSES))
    return nn.Sequential(*layers, *head)


# The training


class Configuration(NamedTuple):
    """A type to compute in, and where the channels lie in memory."""

    dtype: str
    memory: str

    @property
    def memory_format(self) -> torch.memory_format:
        """The format in torch's words."""
        last = self.memory == "channels_last"
        return torch.channels_last if last else torch.contiguous_format


CONFIGURATIONS = tuple(
    Configuration(dtype, memory)
    for dtype in ("f32", "bf16")
    for memory in ("contiguous", "channels_last")
)


class Step(NamedTuple):
    """What a training step took, in seconds, and its loss."""

    loss: float
    whole: float
    """Forward and backward pass and the optimizer."""
    forward: float
    """Of the batch-norm layers alone."""
    backward: float
    """Of the batch-norm layers alone."""

    @property
    def batch_norm(self) -> float:
        """Both passes of the batch-norm layers."""
        return self.forward + self.backward


class Run(NamedTuple):
    """What one network did."""

    steps: list[Step]
    accuracy: float
    """On the test images, after the training."""

    @property
    def losses(self) -> np.ndarray[Any, Any]:
        """The losses of all steps."""
        return np.array([step.loss for step in self.steps])

    def samples(self, part: str) -> list[float]:
        """Give the seconds of one part, of every step that counts."""
        return [getattr(step, part) for step in self.steps[WARM_UP:] or self.steps]


class Pair(NamedTuple):
    """Both runs of a configuration."""

    torch: Run
    onedsl: Run
    disturbed: bool
    """Whether other programs wanted CPUs that the timings needed."""

    def speed_up(self, part: str = "whole") -> tuple[float, float, float]:
        """Give torch's time over onedsl's: quartiles of the ratios of steps on the same batch."""
        pairs = zip(self.torch.samples(part), self.onedsl.samples(part), strict=True)
        low, middle, high = np.percentile([a / b for a, b in pairs], (25, 50, 75))
        return low, middle, high

    @property
    def apart(self) -> float:
        """How far the losses are from each other."""
        return differ(self.torch, self.onedsl)


Pairs = dict[Configuration, Pair]


def differ(one: Run, other: Run) -> float:
    """Give the mean difference of two runs' first losses over their mean."""
    ours, theirs = one.losses[:JUDGED], other.losses[:JUDGED]
    return float(np.abs(ours - theirs).mean() / theirs.mean())


class Stopwatch:
    """Seconds that the batch-norm layers of a model take."""

    def __init__(self, model: nn.Module) -> None:
        self.forward = self.backward = self.begin = 0.0
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_pre_hook(self.start)
                layer.register_forward_hook(self.stop_forward)

    def start(self, *_: object) -> None:
        """Begin a layer's pass."""
        self.begin = time.perf_counter()

    def stop_forward(self, _layer: nn.Module, _inputs: object, output: Tensor) -> None:
        """End a layer's forward pass, and wait for its backward pass."""
        self.forward += time.perf_counter() - self.begin
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(self.start)
            output.grad_fn.register_hook(self.stop_backward)

    def stop_backward(self, *_: object) -> None:
        """End a layer's backward pass."""
        self.backward += time.perf_counter() - self.begin


class Trainer:
    """A network that learns."""

    def __init__(self, model: nn.Module, configuration: Configuration, steps: int) -> None:
        self.configuration = configuration
        self.model = model.to(memory_format=configuration.memory_format)
        self.optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.watch = Stopwatch(model)
        self.steps: list[Step] = []

    def step(self, batch: Images) -> None:
        """Take one step, and its time."""
        self.watch.forward = self.watch.backward = 0.0
        begin = time.perf_counter()
        loss = functional.cross_entropy(self.logits(batch.pixels), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        whole = time.perf_counter() - begin
        self.schedule.step()
        self.steps.append(Step(loss.item(), whole, self.watch.forward, self.watch.backward))

    def logits(self, pixels: Tensor) -> Tensor:
        """Apply the network."""
        pixels = pixels.contiguous(memory_format=self.configuration.memory_format)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.configuration.dtype == "bf16"):
            logits: Tensor = self.model(pixels)
        return logits.float()

    def finish(self, test: Images) -> Run:
        """Test what was learnt."""
        self.model.eval()
        with torch.no_grad():
            right = self.logits(test.pixels).argmax(1) == test.labels
        return Run(self.steps, right.float().mean().item())


def train(
    configuration: Configuration, seed: int, batches: Sequence[Images], test: Images
) -> Iterator[Pair | None]:
    """Train both networks, step by step in turns; give None after each step, the pair at last."""
    theirs = Trainer(new_network(seed), configuration, len(batches))
    ours = Trainer(onedsl.torch.convert(new_network(seed)), configuration, len(batches))
    begin, others = time.perf_counter(), cpu_seconds_of_others()
    for step, batch in enumerate(batches):
        # Whoever comes second may find the batch in the cache, so they swap.
        for trainer in (theirs, ours) if step % 2 else (ours, theirs):
            trainer.step(batch)
        yield None
    cpus_of_others = (cpu_seconds_of_others() - others) / (time.perf_counter() - begin)
    disturbed = torch.get_num_threads() + cpus_of_others > (os.cpu_count() or 1) + DISTURBANCE
    yield Pair(theirs.finish(test), ours.finish(test), disturbed)


def cpu_seconds_of_others() -> float:
    """Give the CPU seconds that other programs have used since the machine started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


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
        f"Speed-up by onedsl's layers: {min(steps):.2f} to {max(steps):.2f} of a step, "
        f"{min(gradients):.2f} to {max(gradients):.2f} of batch norm's backward pass"
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
DARK_GREY, GRID = "#555555", "#dcdcdc"


def plot(pairs: Pairs, subtitle: str, path: Path) -> None:
    """Draw the losses of every configuration, and where the time of a step goes."""
    figure = Figure(figsize=(13.3, 7.3), dpi=150)  # a slide's width
    losses, bars = np.asarray(figure.subfigures(1, 2, width_ratios=(1.1, 1)))
    panels = losses.subplots(2, 2, sharex=True, sharey=True)
    losses.subplots_adjust(0.075, 0.19, 0.98, 0.8, wspace=0.1, hspace=0.3)
    for axes, (configuration, pair) in zip(panels.flat, pairs.items(), strict=True):
        draw_losses(axes, pair)
        decorate(axes, f"Loss, {' '.join(configuration)}", "y")
    for axes in panels[-1]:
        axes.set_xlabel("step", size=13)
    axes = bars.subplots()
    bars.subplots_adjust(0.33, 0.19, 0.97, 0.8)
    draw_times(axes, pairs)
    decorate(axes, "Milliseconds of a step", "x")
    losses.legend(handles=loss_legend(), loc="lower center", ncols=2, frameon=False, fontsize=13)
    bars.legend(handles=time_legend(), loc="lower center", ncols=3, frameon=False, fontsize=13)
    figure.text(0.012, 0.97, finding(pairs), va="top", size=17, weight="bold")
    figure.text(0.012, 0.905, subtitle, va="top", size=12.5, color=DARK_GREY)
    figure.savefig(path)


def draw_losses(axes: Axes, pair: Pair) -> None:
    """Draw the losses of both runs, the one on the other."""
    axes.plot(pair.torch.losses, color=COLOURS["torch"], linewidth=5, alpha=0.6)
    axes.plot(pair.onedsl.losses, color=COLOURS["onedsl"], linewidth=1.4)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


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
    axes.set_xlim(right=1.5 * axes.dataLim.x1)  # room for the numbers


def decorate(axes: Axes, title: str, grid: Any) -> None:
    """Set what all panels share."""
    axes.set_title(title, loc="left", size=14, weight="bold")
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=12)
    axes.spines[:].set_visible(False)


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


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", 1)[0] if __doc__ else "",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=parse_count, default=80, help="steps of each network")
    parser.add_argument("--batch", type=parse_batch, default=128, help="images in a batch")
    parser.add_argument("--seed", type=parse_count, default=1, help="of the weights and batches")
    parser.add_argument(
        "--threads", type=parse_count, default=torch.get_num_threads(), help="of both libraries"
    )
    parser.add_argument(
        "--save",
        type=parse_path,
        default="train_cnn.png",
        metavar="PATH",
        help="where the picture goes, .png, .pdf or .svg; '' for nowhere",
    )
    return parser.parse_args()


def parse_count(text: str) -> int:
    """Take a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, not {text!r}")
    return int(text)


def parse_batch(text: str) -> int:
    """Take a positive number that there are images for."""
    if parse_count(text) > TRAIN_IMAGES:
        raise argparse.ArgumentTypeError(f"there are {TRAIN_IMAGES} images, fewer than {text}")
    return int(text)


def parse_path(text: str) -> Path | None:
    """Take a path that can be written to later, or nothing."""
    if not text:
        return None
    path = Path(text)
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"must end in .png, .pdf or .svg, not {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


def run_configurations(seed: int, steps: int, batch: int) -> Pairs:
    """Train in every configuration; show progress where a person looks on."""
    rng = np.random.default_rng(seed)
    images, test = load_images(rng)
    batches = draw_batches(rng, images, batch, steps)
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    pairs: Pairs = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=steps * len(CONFIGURATIONS))
        for configuration in CONFIGURATIONS:
            progress.update(task, description=" ".join(configuration))
            for pair in train(configuration, seed, batches, test):
                if pair:
                    pairs[configuration] = pair
                else:
                    progress.advance(task)
        progress.update(task, description="done")
    return pairs


def main() -> int:
    """Run the trainings, and print and save what came out."""
    options = arguments()
    console = Console()
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console = Console(width=LOG_WIDTH)
    torch.set_num_threads(options.threads)
    found = onedsl.capabilities()
    header = (
        f"onedsl {found.onedsl_version} ({found.native_isa}), {found.num_threads} threads; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; "
        f"{options.steps} steps with {options.batch} images"
    )
    console.print(f"{header}\n", highlight=False)
    pairs = run_configurations(options.seed, options.steps, options.batch)
    console.print(results_table(pairs))
    notes = (
        f"Times: medians, without the first {WARM_UP} steps. Speed-up: torch's time over onedsl's, "
        "of the step on\nthe same batch; the median, and the quartiles of the whole step's.\n"
        f"First losses: the first {JUDGED}. Later ones part, as they do for torch alone, because "
        "rounding\nerrors grow.\n"
    )
    console.print(notes, style="dim", highlight=False)
    console.print(closeness(pairs), highlight=False)
    console.print(f"{finding(pairs)}.", style="bold", highlight=False)
    if disturbed := [" ".join(c) for c, pair in pairs.items() if pair.disturbed]:
        warning = f"Other programs kept the CPUs busy, so do not trust {', '.join(disturbed)}."
        console.print(warning, style="bold yellow", highlight=False)
    if options.save:
        plot(pairs, f"{header}.", options.save)
        console.print(f"Picture: {options.save}", highlight=False)

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
