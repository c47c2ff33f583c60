"""Show what goes wrong when the gradients for batch and for frozen statistics are confused.

A small convolutional network learns the digits 0 to 4, with batch statistics. Then it is fine-tuned
on the digits 5 to 9, in small batches. Its batch-norm layers use the batch's statistics or the
frozen ones in the forward pass, and the gradient for the one or for the other in the backward pass.
Two of these four ways are right. All start from the same weights and see the same batches.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator
from numpy.lib.stride_tricks import sliding_window_view
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import onedsl
from onedsl import testing

Array = npt.NDArray[Any]
Gradients = list[Array]

EPSILON = 1e-5
BATCH_OP = onedsl.BatchNormTrainingBackward(EPSILON)  # mean and variance are the batch's
FROZEN_OP = onedsl.BatchNormalizationGrad(EPSILON)  # mean and variance are constants

CLASSES = 5  # of either task
TEST_IMAGES = 600  # of both tasks, kept away from the training
CONVOLUTIONS = ((1, 16, 1), (16, 32, 2), (32, 32, 2))  # channels in, channels out, stride

PRETRAINING_STEPS, PRETRAINING_BATCH, PRETRAINING_RATE = 150, 32, 0.05
FINE_TUNING_BATCH = 8  # small, which is why people freeze the statistics
MOMENTUM = 0.9  # of the optimizer
TRACKING = 0.1  # weight of a batch in the running statistics
EVALUATE_EVERY = 10  # steps
BLOWN_UP = 1e4  # a loss at which a run is stopped

CHECKED_WEIGHTS = 8  # of the first layer, against finite differences
STEP = 1e-6  # of the finite differences, in float64
TOLERANCE = 1e-4  # relative L2 error allowed against them
LOG_WIDTH = 110  # columns of the table where there is no terminal to ask

# The data


class Images(NamedTuple):
    """Images (N, H, W, 1) and their classes, from 0 up."""

    pixels: Array
    labels: Array


class Task(NamedTuple):
    """Digits to tell apart."""

    train: Images
    test: Images


def load_tasks(rng: np.random.Generator) -> tuple[Task, Task]:
    """Split scikit-learn's digits into the classes 0 to 4 and 5 to 9."""
    digits = load_digits()
    pixels = digits.images[..., None].astype(np.float32)
    pixels = (pixels - pixels.mean()) / pixels.std()
    order = rng.permutation(len(pixels))
    train = Images(pixels[order[TEST_IMAGES:]], digits.target[order[TEST_IMAGES:]])
    test = Images(pixels[order[:TEST_IMAGES]], digits.target[order[:TEST_IMAGES]])
    old, new = (
        Task(pick_classes(train, first), pick_classes(test, first)) for first in (0, CLASSES)
    )
    return old, new


def pick_classes(images: Images, first: int) -> Images:
    """Take CLASSES classes, and count them from 0."""
    mask = (first <= images.labels) & (images.labels < first + CLASSES)
    return Images(images.pixels[mask], images.labels[mask] - first)


def draw_batches(rng: np.random.Generator, images: Images, size: int, number: int) -> list[Images]:
    """Draw batches at random."""
    picks = (rng.choice(len(images.labels), size, replace=False) for _ in range(number))
    return [Images(images.pixels[pick], images.labels[pick]) for pick in picks]


# The network: three times convolution, batch norm and ReLU, then a mean over the pixels and a
# linear layer


class Layer(NamedTuple):
    """A 3x3 convolution (9 * channels in, channels out) and its batch norm."""

    weight: Array
    gamma: Array
    beta: Array
    mean: Array
    """Running mean."""
    variance: Array
    """Running biased variance."""
    stride: int


class Network(NamedTuple):
    """All layers."""

    layers: list[Layer]
    head: Array


class Tape(NamedTuple):
    """What a layer's forward pass leaves for its backward pass."""

    shape: tuple[int, ...]
    patches: Array
    src: Array
    mean: Array
    variance: Array
    dst: Array


def new_network(rng: np.random.Generator) -> Network:
    """Draw random weights."""
    layers = []
    for channels_in, channels, stride in CONVOLUTIONS:
        weight = rng.standard_normal((9 * channels_in, channels), np.float32)
        weight *= np.float32(math.sqrt(2 / len(weight)))
        zero, one = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        layers.append(Layer(weight, one, zero, zero.copy(), one.copy(), stride))
    return Network(layers, new_head(rng))


def new_head(rng: np.random.Generator) -> Array:
    """Draw the weights of the last layer."""
    channels = CONVOLUTIONS[-1][1]
    weight = rng.standard_normal((channels, CLASSES), np.float32)
    return weight / np.float32(math.sqrt(channels))


def parameters(network: Network) -> list[Array]:
    """List what is trained, in the order of the gradients."""
    trained = [array for layer in network.layers for array in layer[:3]]
    return [*trained, network.head]


def forward(network: Network, pixels: Array, *, frozen: bool) -> tuple[Array, list[Tape]]:
    """Compute the logits."""
    tapes = []
    x = pixels
    for layer in network.layers:
        patches = to_patches(x, layer.stride)
        src = patches @ layer.weight
        mean, variance = layer.mean, layer.variance
        if not frozen:
            mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))
        dst = (src - mean) / np.sqrt(variance + EPSILON) * layer.gamma + layer.beta
        tapes.append(Tape(x.shape, patches, src, mean, variance, dst))
        x = np.maximum(dst, 0)
    return x.mean((1, 2)) @ network.head, tapes


def backward(
    network: Network, tapes: Sequence[Tape], diff_logits: Array, *, frozen: bool
) -> Gradients:
    """Compute the gradients of the parameters, with either of batch norm's gradients."""
    features = np.maximum(tapes[-1].dst, 0)
    gradients = [features.mean((1, 2)).T @ diff_logits]
    diff_x = np.empty_like(features)
    diff_x[:] = (diff_logits @ network.head.T / features[0, ..., 0].size)[:, None, None]
    for layer, tape in zip(reversed(network.layers), reversed(tapes), strict=True):
        diff_dst = diff_x * (tape.dst > 0)
        diff_src, diff_gamma, diff_beta = batch_norm_backward(layer, tape, diff_dst, frozen=frozen)
        diff_weight = np.tensordot(tape.patches, diff_src, ((0, 1, 2), (0, 1, 2)))
        gradients[:0] = [diff_weight, diff_gamma, diff_beta]
        diff_x = from_patches(diff_src @ layer.weight.T, tape.shape, layer.stride)
    return gradients


def batch_norm_backward(
    layer: Layer, tape: Tape, diff_dst: Array, *, frozen: bool
) -> tuple[Array, Array, Array]:
    """Choose between onedsl's two gradients. This is where they are confused."""
    if not frozen:
        return BATCH_OP(tape.src, diff_dst, tape.mean, tape.variance, layer.gamma)
    statistics = (array.reshape(1, 1, 1, -1) for array in (tape.mean, tape.variance, layer.gamma))
    diff_src, diff_gamma, diff_beta = FROZEN_OP(tape.src, diff_dst, *statistics)
    return diff_src, diff_gamma.reshape(-1), diff_beta.reshape(-1)


def to_patches(x: Array, stride: int) -> Array:
    """Copy the 3x3 surroundings of each pixel into a row."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    return windows.reshape(*windows.shape[:3], -1)


def from_patches(patches: Array, shape: tuple[int, ...], stride: int) -> Array:
    """Add the rows up where they came from: the gradient of to_patches."""
    number, height, width, channels = shape
    padded = np.zeros((number, height + 2, width + 2, channels), patches.dtype)
    windows = patches.reshape(*patches.shape[:3], channels, 3, 3)
    for i in range(3):
        for j in range(3):
            padded[:, i : i + height : stride, j : j + width : stride] += windows[..., i, j]
    return padded[:, 1:-1, 1:-1]


def cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Compute the loss and its gradient with respect to the logits."""
    shifted = logits - logits.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    diff_logits = np.exp(logs)
    diff_logits[rows, labels] -= 1
    return float(-logs[rows, labels].mean()), diff_logits / np.float32(len(labels))


# The training


class Mode(NamedTuple):
    """Which statistics the forward pass uses, and which gradient the backward pass."""

    frozen_forward: bool
    frozen_gradient: bool

    @property
    def right(self) -> bool:
        """Whether the two fit together."""
        return self.frozen_forward == self.frozen_gradient


FROZEN, FROZEN_CONFUSED = Mode(True, True), Mode(True, False)
BATCH, BATCH_CONFUSED = Mode(False, False), Mode(False, True)
MODES = (FROZEN, FROZEN_CONFUSED, BATCH, BATCH_CONFUSED)


class Run(NamedTuple):
    """What one fine-tuning did."""

    mode: Mode
    gradient_error: float
    """Relative L2 error against finite differences, before the first step."""
    losses: list[float]
    """On the test images, every few steps."""
    accuracy: float
    """On the test images, at the end."""
    cosines: list[list[float]]
    """Every few steps of a right run, between the right and the confused gradient of each layer."""

    @property
    def failed(self) -> bool:
        """Whether it ended worse than guessing, which has a loss of log(CLASSES)."""
        return not self.losses[-1] < math.log(CLASSES)


def run_seed(seed: int, steps: int, rate: float) -> Iterator[Run]:
    """Pretrain one network, and fine-tune it in all modes from there, on the same batches."""
    rng = np.random.default_rng(seed)
    old, new = load_tasks(rng)
    start = new_network(rng)
    batches = draw_batches(rng, old.train, PRETRAINING_BATCH, PRETRAINING_STEPS)
    optimizer = Optimizer(start, PRETRAINING_RATE)
    for batch in batches:
        train_step(start, optimizer, batch, BATCH)
    start = start._replace(head=new_head(rng))
    batches = draw_batches(rng, new.train, FINE_TUNING_BATCH, steps)
    weights = rng.choice(start.layers[0].weight.size, CHECKED_WEIGHTS, replace=False)
    for mode in MODES:
        error = gradient_error(start, batches[0], mode, weights)
        with np.errstate(over="ignore", invalid="ignore"):
            yield fine_tune(copy.deepcopy(start), batches, new.test, mode, rate, error)


def fine_tune(
    network: Network, batches: Sequence[Images], test: Images, mode: Mode, rate: float, error: float
) -> Run:
    """Train on all batches, or until the loss blows up."""
    optimizer = Optimizer(network, rate)
    losses, cosines = [], []
    alive = True
    for step, batch in enumerate(batches):
        if step % EVALUATE_EVERY == 0:
            losses.append(evaluate(network, test)[0] if alive else math.inf)
            if alive and mode.right:
                cosines.append(compare_gradients(network, batch, mode))
        alive = alive and train_step(network, optimizer, batch, mode)
    loss, accuracy = evaluate(network, test)
    losses.append(loss if alive else math.inf)
    return Run(mode, error, np.nan_to_num(losses, nan=math.inf).tolist(), accuracy, cosines)


class Optimizer:
    """Gradient descent with momentum."""

    def __init__(self, network: Network, rate: float) -> None:
        self.parameters = parameters(network)
        self.rate = np.float32(rate)
        self.velocities = [np.zeros_like(parameter) for parameter in self.parameters]

    def step(self, gradients: Gradients) -> None:
        """Change the parameters in place."""
        for parameter, velocity, gradient in zip(
            self.parameters, self.velocities, gradients, strict=True
        ):
            velocity[...] = np.float32(MOMENTUM) * velocity + gradient
            parameter[...] -= self.rate * velocity


def train_step(network: Network, optimizer: Optimizer, batch: Images, mode: Mode) -> bool:
    """Take one step; tell whether there was still a loss to follow."""
    logits, tapes = forward(network, batch.pixels, frozen=mode.frozen_forward)
    loss, diff_logits = cross_entropy(logits, batch.labels)
    if not loss < BLOWN_UP:
        return False
    optimizer.step(backward(network, tapes, diff_logits, frozen=mode.frozen_gradient))
    if not mode.frozen_forward:
        track_statistics(network, tapes)
    return True


def track_statistics(network: Network, tapes: Sequence[Tape]) -> None:
    """Move the running mean and variance towards the batch's."""
    for layer, tape in zip(network.layers, tapes, strict=True):
        for running, now in ((layer.mean, tape.mean), (layer.variance, tape.variance)):
            running[...] += np.float32(TRACKING) * (now - running)


def evaluate(network: Network, test: Images) -> tuple[float, float]:
    """Give loss and accuracy, with the running statistics as in every inference."""
    logits, _ = forward(network, test.pixels, frozen=True)
    loss, _ = cross_entropy(logits, test.labels)
    return loss, float((logits.argmax(1) == test.labels).mean())


def compare_gradients(network: Network, batch: Images, mode: Mode) -> list[float]:
    """Give the cosine between the right and the confused gradient of each layer's weights."""
    logits, tapes = forward(network, batch.pixels, frozen=mode.frozen_forward)
    _, diff_logits = cross_entropy(logits, batch.labels)
    right, confused = (
        backward(network, tapes, diff_logits, frozen=frozen)
        for frozen in (mode.frozen_gradient, not mode.frozen_gradient)
    )
    return [cosine(a, b) for a, b in zip(right[:-1:3], confused[:-1:3], strict=True)]


def cosine(a: Array, b: Array) -> float:
    """Give the cosine of the angle between two arrays; 0 where one of them vanishes."""
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / norms if norms else 0.0


def gradient_error(network: Network, batch: Images, mode: Mode, weights: Array) -> float:
    """Compare the gradient of some weights of the first layer with differences of the loss."""
    logits, tapes = forward(network, batch.pixels, frozen=mode.frozen_forward)
    _, diff_logits = cross_entropy(logits, batch.labels)
    gradients = backward(network, tapes, diff_logits, frozen=mode.frozen_gradient)
    wide = widened(network)
    differences = [
        (shifted_loss(wide, batch, mode, i, STEP) - shifted_loss(wide, batch, mode, i, -STEP))
        / (2 * STEP)
        for i in weights
    ]
    return testing.relative_l2(gradients[0].flat[weights], differences)


def shifted_loss(network: Network, batch: Images, mode: Mode, index: int, shift: float) -> float:
    """Give the loss with one weight of the first layer changed."""
    weight = network.layers[0].weight
    value = weight.flat[index]
    weight.flat[index] = value + shift
    logits, _ = forward(network, batch.pixels, frozen=mode.frozen_forward)
    weight.flat[index] = value
    return cross_entropy(logits, batch.labels)[0]


def widened(network: Network) -> Network:
    """Copy the weights to float64, and with them all that is computed from them."""
    layers = [layer._replace(weight=layer.weight.astype(np.float64)) for layer in network.layers]
    return network._replace(layers=layers)


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
DARK_GREY, GREY, GRID = "#555555", "#8a8a8a", "#dcdcdc"
BAND = (10, 50, 90)  # percentiles: the band's edges and the line in it
HIGHEST_LOSS = 30  # of the axis


def plot(runs: Sequence[Run], subtitle: str, steps: int, path: Path) -> None:
    """Draw the losses of all modes, and how far off the confused gradients are."""
    figure = Figure(figsize=(13.3, 7.3), dpi=150)  # a slide's width
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    figure.subplots_adjust(0.07, 0.205, 0.985, 0.755, wspace=0.2)
    draw_losses(left, runs, steps)
    draw_cosines(right, runs)
    figure.text(0.012, 0.97, finding(runs), va="top", size=19, weight="bold")
    figure.text(0.012, 0.905, subtitle, va="top", size=12.5, color=DARK_GREY)
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
    axes.set_yscale("log")
    axes.set_ylim(top=HIGHEST_LOSS)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0, steps)
    axes.set_xlabel("step of the fine-tuning", size=14)
    decorate(axes, "Loss on test images")


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
    decorate(axes, "Cosine to the right gradient")


def decorate(axes: Axes, title: str) -> None:
    """Set what both panels share."""
    axes.set_title(title, loc="left", size=16, weight="bold", pad=12)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=13)
    axes.spines[:].set_visible(False)


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


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", 1)[0] if __doc__ else "",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=parse_count, default=10, help="networks and splits of the data"
    )
    parser.add_argument("--steps", type=parse_count, default=200, help="steps of each fine-tuning")
    parser.add_argument(
        "--rate",
        type=parse_rate,
        default=0.01,
        help="learning rate of the fine-tuning; at lower ones fewer of the confused runs fail",
    )
    parser.add_argument(
        "--save",
        type=parse_path,
        default="frozen_backbone.png",
        metavar="PATH",
        help="where the picture goes, .png, .pdf or .svg; '' for nowhere",
    )
    return parser.parse_args()


def parse_count(text: str) -> int:
    """Take a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, not {text!r}")
    return int(text)


def parse_rate(text: str) -> float:
    """Take a positive rate."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return rate


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


def run_seeds(seeds: int, steps: int, rate: float) -> list[Run]:
    """Fine-tune from every seed in every mode; show progress where a person looks on."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    runs = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=seeds * len(MODES))
        for seed in range(seeds):
            for run in run_seed(seed, steps, rate):
                runs.append(run)
                progress.advance(task)
    return runs


def main() -> int:
    """Run the fine-tunings, and print and save what came out."""
    options = arguments()
    console = Console()
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console = Console(width=LOG_WIDTH)
    header = (
        f"Digits 0-4, then 5-9; {options.steps} steps with {FINE_TUNING_BATCH} images each, "
        f"learning rate {options.rate:g}, seeds: {options.seeds}"
    )
    console.print(f"{header}\n", highlight=False)
    with threadpool_limits(1):  # for arrays as small as these, threads cost more than they bring
        runs = run_seeds(options.seeds, options.steps, options.rate)
    console.print(results_table(runs))
    notes = (
        f"Error: relative L2, {CHECKED_WEIGHTS} weights of the first layer before the first step, "
        "median of the seeds.\nCosine: of the first layer's weight gradients, at the weights of "
        "the right runs, median.\nAccuracy: mean of the seeds. To fail is to end with a loss "
        "worse than that of guessing, log(5).\n"
    )
    console.print(notes, style="dim", highlight=False)
    console.print(f"{finding(runs)}.", style="bold", highlight=False)
    if options.save:
        bands = (
            f"Thick lines and dots: medians; bands: {BAND[0]} to {BAND[-1]} % of runs and steps; "
            "thin lines: runs. To fail is to end worse than guessing."
        )
        plot(runs, f"{header}.\n{bands}", options.steps, options.save)
        console.print(f"Picture: {options.save}", highlight=False)

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
