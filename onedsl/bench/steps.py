"""Whole training steps of networks in PyTorch, without and with onedsl.

A step is the forward pass, the backward pass and the optimizer's update for one batch of random
images. The steps of all variants are interleaved. This module needs PyTorch, so it is imported only
where it is used.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor, nn

from ..torch import enable, fuse
from .machine import machine_facts
from .measure import NoiseMonitor
from .networks import NETWORKS
from .table import Column, table

CLASSES = 100

# Parts of a step, with substrings of the names of PyTorch's ops and onedsl's autograd functions. An
# op belongs to the first part that matches.
PARTS = {
    "batch norm": ("batch_norm", "BatchNorm"),
    "convolutions": ("convolution", "addmm", "aten::mm", "aten::bmm"),
    "ReLU and additions": ("relu", "threshold", "hardtanh", "aten::add", "aten::cat"),
    "others": ("",),
}


class Variant(NamedTuple):
    """A way to train: a function that prepares the model, and a context manager for the steps."""

    name: str
    prepare: Callable[[nn.Module], nn.Module]
    context: Callable[[], contextlib.AbstractContextManager[Any]]


# The others are compared with the first one.
VARIANTS = (
    Variant("PyTorch", lambda model: model, contextlib.nullcontext),
    Variant("enable", lambda model: model, enable),
    Variant("enable + fuse", fuse, enable),
    Variant("compile", torch.compile, contextlib.nullcontext),
    Variant("compile + fuse", lambda model: torch.compile(fuse(model)), contextlib.nullcontext),
)


class Case(NamedTuple):
    """A network, the dtype of its computations (f32 or bf16), and PyTorch's memory format."""

    network: str
    dtype: str
    memory_format: str


class Result(NamedTuple):
    """Times of a case, by variant.

    Attributes
    ----------
    case : Case
    seconds : dict of str to float
        Median seconds of a step.
    ratios : dict of str to float
        Median over all rounds of the first variant's time over the variant's.
    shares : dict of str to dict of str to float
        Seconds of each part of a step under torch.profiler.
    noisy : bool
        Whether other programs used CPUs that the steps needed.
    """

    case: Case
    seconds: dict[str, float]
    ratios: dict[str, float]
    shares: dict[str, dict[str, float]]
    noisy: bool


def cases(
    networks: Iterable[str], dtypes: Iterable[str], memory_formats: Iterable[str]
) -> list[Case]:
    """Return all combinations of networks, dtypes and memory formats."""
    return list(itertools.starmap(Case, itertools.product(networks, dtypes, memory_formats)))


class _Trainer:
    """A variant of a case, which trains on one batch."""

    def __init__(
        self, case: Case, variant: Variant, model: nn.Module, images: Tensor, labels: Tensor
    ) -> None:
        memory_format: torch.memory_format = getattr(
            torch, case.memory_format.replace("contiguous", "contiguous_format")
        )
        self.variant = variant
        self.autocast = case.dtype == "bf16"
        self.model = variant.prepare(copy.deepcopy(model)).to(memory_format=memory_format)
        self.images, self.labels = images.contiguous(memory_format=memory_format), labels
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, 0.9)

    def step(self) -> None:
        with self.variant.context():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                loss = nn.functional.cross_entropy(self.model(self.images).float(), self.labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def profile(self) -> dict[str, float]:
        """Return the seconds of each part of a step."""
        cpu = [torch.profiler.ProfilerActivity.CPU]
        # Without acc_events, PyTorch 2.11 warns that only one cycle is kept; there is only one.
        with torch.profiler.profile(activities=cpu, acc_events=True) as profiler:
            self.step()
        parts = dict.fromkeys(PARTS, 0.0)
        for event in profiler.key_averages():
            part = next(p for p, ops in PARTS.items() if any(op in event.key for op in ops))
            parts[part] += event.self_cpu_time_total / 1e6
        return parts


def measure(case: Case, batch: int, size: int, rounds: int) -> Result:
    """Time the steps of all variants interleaved.

    Parameters
    ----------
    case : Case
    batch : int
        Number of images.
    size : int
        Height and width of the images in pixels, at least 32.
    rounds : int
        Number of timed steps of each variant.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        If a layer has one value per channel, for example with one image of 32 x 32.
    MemoryError
        If PyTorch cannot allocate a tensor.
    """
    try:
        return _measure(case, batch, size, rounds)
    except RuntimeError as error:
        if "allocate memory" in str(error):
            raise MemoryError(
                f"not enough memory for {batch} images of {size} x {size} pixels"
            ) from error
        raise


def _measure(case: Case, batch: int, size: int, rounds: int) -> Result:
    torch.manual_seed(0)
    data = torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    model = NETWORKS[case.network](CLASSES)
    torch.compiler.reset()  # compiled steps of earlier cases would count towards its cache limit
    trainers = [_Trainer(case, variant, model, *data) for variant in VARIANTS]
    for trainer in trainers:
        trainer.step()
    samples: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    monitor = NoiseMonitor()
    for i in range(rounds):
        # Rotate the order, because a step profits from what the previous one left in cache.
        first = i % len(trainers)
        for trainer in trainers[first:] + trainers[:first]:
            begin = time.perf_counter()
            trainer.step()
            samples[trainer.variant.name].append(time.perf_counter() - begin)
    noisy = monitor.is_noisy(torch.get_num_threads())
    baseline = samples[VARIANTS[0].name]
    return Result(
        case,
        {name: statistics.median(times) for name, times in samples.items()},
        {
            name: statistics.median(a / b for a, b in zip(baseline, times, strict=True))
            for name, times in samples.items()
        },
        {trainer.variant.name: trainer.profile() for trainer in trainers},
        noisy,
    )


def conditions(batch: int, size: int) -> str:
    """Return batch, image size, threads and PyTorch's version in a sentence."""
    return (
        f"{batch} images of {size} x {size}, {torch.get_num_threads()} threads, "
        f"PyTorch {torch.__version__}."
    )


def _speedup_column(name: str) -> Column[Result]:
    return Column(
        "speedup\n" + name.replace(" + ", "\n+ "), lambda result: f"{result.ratios[name]:.2f}"
    )


def _share_column(name: str) -> Column[Result]:
    def cell(result: Result) -> str:
        parts = result.shares[name]
        return f"{parts['batch norm'] / sum(parts.values()):.0%}"

    return Column("BN share\n" + name.replace(" + ", "\n+ "), cell)


def results_table(results: Sequence[Result], conditions: str) -> Table:
    """Build a table of times, speedups and batch norm's share of the step."""
    baseline, *others = (variant.name for variant in VARIANTS)
    columns: list[Column[Result]] = [
        Column("network", lambda result: result.case.network),
        Column("type", lambda result: result.case.dtype),
        Column("memory format", lambda result: result.case.memory_format),
        Column(
            f"{baseline}\nms",
            lambda result: f"{1e3 * result.seconds[baseline]:.0f}{'*' if result.noisy else ''}",
        ),
        *map(_speedup_column, others),
        _share_column(baseline),
    ]
    caption = (
        f"{conditions} Speedup: {baseline}'s time over the variant's. BN share: batch norm's part "
        "of the step's time."
    )
    if any(result.noisy for result in results):
        caption += " *: noisy, because other programs used the CPUs."
    return table("Time of a training step", caption, columns, [results])


HEADER, ROW, FOOTER = 1.5, 0.6, 0.75  # inches
COLORS = ("#0b6e99", "#8a8a8a", "#c8dce6", "#e8e8e8")


def draw(path: Path, results: Sequence[Result], conditions: str) -> None:
    """Draw the time of the steps' parts, relative to PyTorch's step."""
    from matplotlib.figure import Figure  # matplotlib is optional

    from .plot import DARK_GREY, GRID, WIDTH

    inches = HEADER + ROW * len(results) + FOOTER
    figure = Figure(figsize=(WIDTH, inches), dpi=150)
    axes = figure.add_axes((0.25, FOOTER / inches, 0.73, ROW * len(results) / inches))
    height = 0.8 / len(VARIANTS)
    for row, result in enumerate(results):
        for i, variant in enumerate(VARIANTS):
            parts = result.shares[variant.name]
            scale = 1 / result.ratios[variant.name] / sum(parts.values())
            left = 0.0
            for part, color in zip(PARTS, COLORS, strict=True):
                label = part if row == i == 0 else None
                width = parts[part] * scale
                axes.barh(row + i * height, width, 0.9 * height, left, color=color, label=label)
                left += width
    middle = height * (len(VARIANTS) - 1) / 2
    axes.set_yticks(
        [row + middle for row in range(len(results))], [" ".join(r.case) for r in results]
    )
    axes.set_ylim(len(results) - 0.3, -0.3)
    axes.set_xlabel(f"time of a step, relative to {VARIANTS[0].name}", size=12)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PARTS), frameon=False)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=12.5)
    axes.spines[:].set_visible(False)
    names = ", ".join(variant.name for variant in VARIANTS)
    subtitle = f"Bars from top to bottom: {names}. {conditions}"
    figure.text(0.012, 1 - 0.15 / inches, "Time of a training step", va="top", size=16, weight=700)
    figure.text(0.012, 1 - 0.5 / inches, subtitle, va="top", size=12, color=DARK_GREY)
    figure.savefig(path)


def write_json(path: Path, results: Sequence[Result], conditions: str) -> None:
    """Write the machine, the conditions and the results."""
    steps = [{**r._asdict(), "case": r.case._asdict()} for r in results]
    document = {"machine": machine_facts(), "conditions": conditions, "steps": steps}
    path.write_text(json.dumps(document, indent=1))
