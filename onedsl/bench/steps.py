"""Whole training steps of networks, by PyTorch alone and with onedsl.

Each step is a forward and a backward pass and the optimizer's, of one batch of random images. The
steps of PyTorch, of PyTorch under ``onedsl.torch.enable()`` and of the network after
``onedsl.torch.fuse()``, under ``enable()`` as well, are taken in turns.

It needs PyTorch, and is imported only where it is asked for.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..torch import enable, fuse
from .machine import Watch
from .networks import NETWORKS

WAYS = ("PyTorch", "enable", "enable and fuse")
PARTS = ("convolutions", "batch norm", "ReLU and sums", "others")
DTYPES = ("f32", "bf16")
MEMORIES = ("contiguous", "channels_last")
CLASSES = 100

# Parts of a step by the names of PyTorch's ops, and of onedsl's functions.
_OPS = {
    "batch norm": ("batch_norm", "_BatchNormReLU"),
    "convolutions": ("convolution", "addmm", "aten::mm", "aten::bmm"),
    "ReLU and sums": ("relu", "threshold", "hardtanh", "aten::add", "aten::cat"),
}


class Case(NamedTuple):
    """A network, a type to compute in, and where the channels lie in memory."""

    network: str
    dtype: str
    """f32 or bf16."""
    memory: str
    """contiguous or channels_last."""


def cases(networks: Iterable[str], dtypes: Iterable[str], memories: Iterable[str]) -> list[Case]:
    """List all cases of some networks, types and places of the channels."""
    return list(itertools.starmap(Case, itertools.product(networks, dtypes, memories)))


class Result(NamedTuple):
    """What a case took."""

    case: Case
    seconds: dict[str, float]
    """Median seconds of a step, by way."""
    ratios: dict[str, float]
    """Median of PyTorch's seconds over the way's, in the same round."""
    shares: dict[str, dict[str, float]]
    """Seconds of a step's parts under torch.profiler, by way."""
    disturbed: bool
    """Whether other programs wanted CPUs that the timings needed."""


class _Trainer:
    """A network that learns one batch."""

    def __init__(self, case: Case, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        last = case.memory == "channels_last"
        memory = torch.channels_last if last else torch.contiguous_format
        self.autocast = case.dtype == "bf16"
        self.model = model.to(memory_format=memory)
        self.images, self.labels = images.contiguous(memory_format=memory), labels
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)

    def step(self) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = nn.functional.cross_entropy(self.model(self.images).float(), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measure(case: Case, batch: int, size: int, rounds: int) -> Result:
    """Take the ways' steps in turns.

    Parameters
    ----------
    case : Case
    batch : int
        Images of a step.
    size : int
        Pixels of an image's side; 32 or more.
    rounds : int
        Steps of each way that count.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        If a layer has but one value a channel, as with one image of 32 x 32.
    """
    torch.manual_seed(0)
    model = NETWORKS[case.network](CLASSES)
    data = torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    plain = _Trainer(case, model, *data)
    fused = _Trainer(case, fuse(copy.deepcopy(model)), *data)
    trainers = dict(zip(WAYS, (plain, plain, fused), strict=True))
    samples: dict[str, list[float]] = {way: [] for way in WAYS}

    def run(way: str, take: Callable[[_Trainer], Any]) -> Any:
        with contextlib.nullcontext() if way == WAYS[0] else enable():
            return take(trainers[way])

    for way in WAYS:
        run(way, _Trainer.step)
    watch = Watch()
    for at in range(rounds):
        # Whoever comes second finds more in the cache, so they swap.
        for way in WAYS[at % len(WAYS) :] + WAYS[: at % len(WAYS)]:
            begin = time.perf_counter()
            run(way, _Trainer.step)
            samples[way].append(time.perf_counter() - begin)
    disturbed = watch.disturbed(torch.get_num_threads())
    ratios = {
        way: statistics.median(a / b for a, b in zip(samples[WAYS[0]], times, strict=True))
        for way, times in samples.items()
    }
    seconds = {way: statistics.median(times) for way, times in samples.items()}
    shares = {way: run(way, _profile) for way in WAYS}
    return Result(case, seconds, ratios, shares, disturbed)


def _profile(trainer: _Trainer) -> dict[str, float]:
    """Tell what the parts of a step take, in seconds, by torch.profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        trainer.step()
    parts = dict.fromkeys(PARTS, 0.0)
    for event in profiler.key_averages():
        part = next((p for p, ops in _OPS.items() if any(op in event.key for op in ops)), "others")
        parts[part] += event.self_cpu_time_total / 1e6
    return parts


def conditions(batch: int, size: int) -> str:
    """Say in a sentence what the steps were taken with."""
    return (
        f"{batch} images of {size} x {size}, {torch.get_num_threads()} threads, "
        f"PyTorch {torch.__version__}."
    )
