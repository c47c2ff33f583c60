"""Whole training steps of networks in PyTorch, without and with onedsl.

A step is the forward pass, the backward pass and the optimizer's update for one batch of random
images. Each way to train runs in processes of its own, because memory allocation, and with it the
number of page faults, differs from process to process. ``python -m onedsl.bench.steps`` is one
such process.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .. import _core
from .timing import NoiseMonitor

NETWORKS = (  # functions of networks.py
    *("mobilenetv2", "resnet50", "resnet18", "densenet121"),
    *("mobilenetv3", "efficientnet_b0", "regnet_y_400mf", "unet"),
)
DTYPES = ("f32", "bf16")
ROUNDS = 5
"""Timed steps of a process, after three that are not timed."""
EAGER, COMPILE = "eager", "compile"
WAYS = (EAGER, "enable", COMPILE, 'compile, backend="onedsl"')

Case = tuple[str, str, str]
"""A network, the dtype of its computations (f32 or bf16), and the data format."""


class Result(NamedTuple):
    """Medians over the processes of each way, by way."""

    case: Case
    seconds: dict[str, float]
    """Seconds of a step."""
    speedups: dict[str, float]
    """Eager's time over the way's, in the same round of processes."""
    over_compile: dict[str, float]
    """The same over torch.compile's time."""
    page_faults: dict[str, float]
    """Page faults of a step that needed no reading from disk."""
    noisy: bool
    """Whether other programs used CPUs that the steps needed."""


def measure(case: Case, batch: int, size: int, processes: int) -> Result:
    """Time the steps of all ways in alternating processes.

    Each of the `processes` processes of a way times steps of a batch of images of `size` x `size`
    pixels. ChildProcessError contains the last line of a failed process's error.
    """
    monitor = NoiseMonitor()
    found: list[dict[str, tuple[float, float]]] = []
    for i in range(processes):
        first = i % len(WAYS)
        order = WAYS[first:] + WAYS[:first]
        found.append({way: _run(case, way, batch, size) for way in order})

    def medians(value: Callable[[dict[str, tuple[float, float]], str], float]) -> dict[str, float]:
        return {way: statistics.median(value(one, way) for one in found) for way in WAYS}

    return Result(
        case,
        medians(lambda one, way: one[way][0]),
        medians(lambda one, way: one[EAGER][0] / one[way][0]),
        medians(lambda one, way: one[COMPILE][0] / one[way][0]),
        medians(lambda one, way: one[way][1]),
        monitor.is_noisy(_core.max_threads()),
    )


def _run(case: Case, way: str, batch: int, size: int) -> tuple[float, float]:
    """Run a process and return what `train` returns there."""
    command = [sys.executable, "-m", __name__, json.dumps([*case, way, batch, size])]
    # There -m finds this onedsl, and not the source tree of the current folder.
    folder = Path(__file__).parents[2]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"exit status {child.returncode}"]
        raise ChildProcessError(f"{' '.join(case)}, {way}: {lines[-1]}")
    seconds, faults = json.loads(child.stdout.splitlines()[-1])
    return seconds, faults


def train(
    network: str, dtype: str, data_format: str, way: str, batch: int, size: int
) -> tuple[float, float]:
    """Train, and return the median seconds and page faults of a timed step."""
    import torch
    from torch import nn

    from . import networks

    torch.manual_seed(0)
    layout = torch.channels_last if data_format == "NXC" else torch.contiguous_format
    classes, *pixels = (2, size, size) if network == "unet" else (100,)
    model = getattr(networks, network)(classes).to(memory_format=layout)
    images = torch.randn(batch, 3, size, size).contiguous(memory_format=layout)
    labels = torch.randint(classes, (batch, *pixels))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    if way == "enable":
        from ..torch import enable

        enable()
    elif way != EAGER:
        model = torch.compile(model, backend="onedsl" if "onedsl" in way else "inductor")
    times, faults = [], []
    for _ in range(3 + ROUNDS):
        begin = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = nn.functional.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begin[0])
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin[1])
    return statistics.median(times[3:]), statistics.median(faults[3:])


if __name__ == "__main__":
    print(json.dumps(train(*json.loads(sys.argv[1]))))
