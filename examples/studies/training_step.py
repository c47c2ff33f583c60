"""What onedsl gains of whole training steps of networks that are trained everywhere.

Each step is a forward and a backward pass and the optimizer's, of one batch of random images. The
steps of PyTorch, of PyTorch under ``onedsl.torch.enable()`` and of the network after
``onedsl.torch.fuse()``, under ``enable()`` as well, are taken in turns.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import common
from matplotlib.axes import Axes
from rich.table import Table

try:
    import torch
except ImportError:
    sys.exit("training_step.py needs PyTorch: pip install 'torch>=2.13'")

from networks import NETWORKS
from torch import Tensor, nn

import onedsl.torch
from onedsl.bench import Watch
from onedsl.bench.table import console, progress

WAYS = ("PyTorch", "enable", "enable and fuse")
PARTS = ("convolutions", "batch norm", "ReLU and sums", "others")
COLORS = ("#8a8a8a", "#0b6e99", "#c8dce6", "#dcdcdc")
CLASSES = 100

# Parts of a step by the names of PyTorch's ops, and of onedsl's functions.
OPS = {
    "batch norm": ("batch_norm", "_BatchNormReLU"),
    "convolutions": ("convolution", "addmm", "aten::mm", "aten::bmm"),
    "ReLU and sums": ("relu", "threshold", "hardtanh", "aten::add", "aten::cat"),
}


class Case(NamedTuple):
    """A network, a type to compute in, and where the channels lie in memory."""

    network: str
    dtype: str
    memory: str


class Result(NamedTuple):
    """What a case took."""

    case: Case
    seconds: dict[str, float]
    """Median seconds of a step, by way."""
    ratios: dict[str, float]
    """Median of PyTorch's seconds over the way's, in the same round."""
    shares: dict[str, dict[str, float]]
    """Seconds of a step's parts, by way."""
    disturbed: bool
    """Whether other programs wanted CPUs that the timings needed."""


class Trainer:
    """A network that learns one batch."""

    def __init__(self, case: Case, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        last = case.memory == "channels_last"
        memory = torch.channels_last if last else torch.contiguous_format
        self.autocast = case.dtype == "bf16"
        self.model = model.to(memory_format=memory)
        self.images, self.labels = images.contiguous(memory_format=memory), labels
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)

    def step(self) -> None:
        """Take one step."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = nn.functional.cross_entropy(self.model(self.images).float(), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measure(case: Case, batch: int, size: int, rounds: int) -> Result:
    """Take the ways' steps in turns."""
    torch.manual_seed(0)
    model = NETWORKS[case.network](CLASSES)
    data = torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    plain = Trainer(case, model, *data)
    fused = Trainer(case, onedsl.torch.fuse(copy.deepcopy(model)), *data)
    trainers = dict(zip(WAYS, (plain, plain, fused), strict=True))
    samples: dict[str, list[float]] = {way: [] for way in WAYS}

    def run(way: str, take: Callable[[Trainer], Any]) -> Any:
        with contextlib.nullcontext() if way == WAYS[0] else onedsl.torch.enable():
            return take(trainers[way])

    for way in WAYS:
        run(way, Trainer.step)
    watch = Watch()
    for at in range(rounds):
        # Whoever comes second finds more in the cache, so they swap.
        for way in WAYS[at % len(WAYS) :] + WAYS[: at % len(WAYS)]:
            begin = time.perf_counter()
            run(way, Trainer.step)
            samples[way].append(time.perf_counter() - begin)
    disturbed = watch.disturbed(torch.get_num_threads())
    ratios = {
        way: statistics.median(a / b for a, b in zip(samples[WAYS[0]], times, strict=True))
        for way, times in samples.items()
    }
    seconds = {way: statistics.median(times) for way, times in samples.items()}
    shares = {way: run(way, profile) for way in WAYS}
    return Result(case, seconds, ratios, shares, disturbed)


def profile(trainer: Trainer) -> dict[str, float]:
    """Tell what the parts of a step take, in seconds, by torch.profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        trainer.step()
    parts = dict.fromkeys(PARTS, 0.0)
    for event in profiler.key_averages():
        part = next((p for p, names in OPS.items() if any(n in event.key for n in names)), "others")
        parts[part] += event.self_cpu_time_total / 1e6
    return parts


def table(results: Sequence[Result], caption: str) -> Table:
    """Say what was measured."""
    made = Table(title="A training step", caption=caption, show_edge=False)
    for title in ("network", "type", "memory"):
        made.add_column(title)
    for title in ("PyTorch ms", "enable", "and fuse", "batch norm %", "enable %", "and fuse %"):
        made.add_column(title, justify="right")
    for result in results:
        shares = [
            f"{100 * parts['batch norm'] / sum(parts.values()):.0f}"
            for parts in result.shares.values()
        ]
        ratios = [f"{result.ratios[way]:.2f}" for way in WAYS[1:]]
        mark = "*" if result.disturbed else ""
        made.add_row(*result.case, f"{1e3 * result.seconds[WAYS[0]]:.0f}{mark}", *ratios, *shares)
    return made


def draw(path: Path, results: Sequence[Result], caption: str) -> None:
    """Draw what the parts of a step take, of PyTorch's step."""
    figure = common.new_figure(
        "What a training step takes, by its parts", f"PyTorch's step is 1. {caption}"
    )
    axes: Axes = figure.add_axes((0.3, 0.07, 0.68, 0.76))
    height = 0.8 / len(WAYS)
    for row, result in enumerate(results):
        for i, way in enumerate(WAYS):
            parts = result.shares[way]
            scale = 1 / result.ratios[way] / sum(parts.values())
            left = 0.0
            for part, color in zip(PARTS, COLORS, strict=True):
                width = parts[part] * scale
                label = part if row == i == 0 else None
                axes.barh(row + i * height, width, 0.9 * height, left, color=color, label=label)
                left += width
    axes.set_yticks(
        [row + height for row in range(len(results))], [" ".join(r.case) for r in results]
    )
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.09), ncols=len(PARTS), frameon=False)
    common.decorate(axes, "", "x")
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print and draw what was measured."""
    parser = common.parser(__doc__)
    parser.add_argument("--batch", type=common.positive, default=16, help="images of a step")
    parser.add_argument(
        "--size", type=common.positive, default=224, help="pixels of an image's side"
    )
    parser.add_argument("--rounds", type=common.positive, default=20, help="steps of each way")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--dtypes", nargs="+", choices=("f32", "bf16"), default=("f32", "bf16"))
    parser.add_argument(
        "--memories",
        nargs="+",
        choices=("contiguous", "channels_last"),
        default=("contiguous", "channels_last"),
    )
    parser.add_argument("--plot", type=Path, help="where to draw the parts of the steps")
    options = parser.parse_args(arguments)
    cases = [
        Case(network, dtype, memory)
        for network in options.networks
        for dtype in options.dtypes
        for memory in options.memories
    ]
    results = [
        measure(case, options.batch, options.size, options.rounds)
        for case in progress(cases, "steps")
    ]
    caption = (
        f"{options.batch} images of {options.size} x {options.size}, {torch.get_num_threads()} "
        f"threads, PyTorch {torch.__version__}. Ratios are PyTorch's time over that of the way."
    )
    console().print(table(results, caption + " * Other programs wanted the CPUs."))
    if options.plot:
        draw(options.plot, results, caption)


if __name__ == "__main__":
    main()
