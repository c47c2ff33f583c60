"""Measure the cost of synchronized batch norm in ResNet-50 on two processes.

Two processes with one thread each (--threads) time a step, forward and backward, of every layer of
ResNet-50 with their own statistics and with synchronized ones. A third time is that of one process
with both batches and the threads of both: the efficiency is this time over that of the synchronized
layer.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time

import torch
from torch import distributed, multiprocessing, nn

import onedsl.torch
from onedsl import bench

LAYERS = (  # channels, height = width, and how often ResNet-50 contains the layer
    *((64, 112, 1), (64, 56, 6), (256, 56, 4), (128, 56, 1), (128, 28, 7), (512, 28, 5)),
    *((256, 28, 1), (256, 14, 11), (1024, 14, 7), (512, 14, 1), (512, 7, 5), (2048, 7, 4)),
)
TITLES = "channels side number own_ms synchronized_ms one_process_ms efficiency".split()  # noqa: SIM905


class Steps:
    """Training steps of a layer that alternate between inputs, so that each is out of cache."""

    def __init__(self, layer: nn.Module, images: int, side: int, megabytes: float) -> None:
        shape = (2, images, layer.num_features, side, side)
        sets = min(64, math.ceil(1e6 * megabytes / (4 * math.prod(shape))))
        memory = torch.channels_last
        self.layer = layer
        self.sets = [
            [t.contiguous(memory_format=memory) for t in torch.randn(shape)] for _ in range(sets)
        ]

    def run(self) -> float:
        """Return the seconds of one step."""
        start = time.perf_counter()
        for src, diff_dst in self.sets:
            self.layer(src.detach().requires_grad_()).backward(diff_dst)
        return (time.perf_counter() - start) / len(self.sets)


def measure_layer(
    rank: int, channels: int, side: int, options: argparse.Namespace
) -> tuple[float, ...]:
    """Measure the three variants interleaved, and return their median seconds."""
    images, megabytes = options.batch, options.megabytes
    own = Steps(nn.BatchNorm2d(channels), images, side, megabytes)
    synchronized = Steps(onedsl.torch.SyncBatchNorm(channels), images, side, megabytes)
    whole = Steps(nn.BatchNorm2d(channels), 2 * images, side, megabytes)
    samples: list[tuple[float, ...]] = []
    # A fixed number of rounds, because both processes must make the same collective calls.
    for _ in range(options.rounds + 1):  # the first one warms up
        distributed.barrier()
        seconds = [own.run(), synchronized.run()]
        distributed.barrier()
        if rank == 0:
            torch.set_num_threads(2 * options.threads)
            seconds.append(whole.run())
            torch.set_num_threads(options.threads)
            time.sleep(0.3)  # the other threads still spin on the other process's cores
        samples.append(tuple(seconds))
    return tuple(statistics.median(times) for times in zip(*samples[1:], strict=True))


def run_process(rank: int, store: str, options: argparse.Namespace) -> None:
    """Measure in one of the two processes; rank 0 prints the results."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(options.threads)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    onedsl.torch.enable()  # so that all variants run the same kernels
    totals = [0.0, 0.0, 0.0]
    for channels, side, number in LAYERS:
        times = measure_layer(rank, channels, side, options)
        if rank == 0:
            totals = [t + number * seconds for t, seconds in zip(totals, times, strict=True)]
            show((channels, side, number), *times)
    if rank == 0:
        show(("all", "", sum(number for *_, number in LAYERS)), *totals)
    distributed.destroy_process_group()


def show(labels: tuple[object, ...], own: float, synchronized: float, whole: float) -> None:
    """Print a row of the table from three times in seconds."""
    numbers = 1e3 * own, 1e3 * synchronized, 1e3 * whole, whole / synchronized
    print(*(f"{label:>15}" for label in labels), *(f"{number:>15.2f}" for number in numbers))


def main() -> None:
    """Measure with two new processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="images per process")
    parser.add_argument("--threads", type=int, default=1, help="threads per process")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of each measurement")
    parser.add_argument("--megabytes", type=float, default=128, help="of inputs to alternate")
    options = parser.parse_args()
    print(*(f"{title:>15}" for title in TITLES))
    monitor = bench.NoiseMonitor()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run_process, (f"file://{folder}/store", options), 2)
    if monitor.is_noisy(2 * options.threads):
        print(bench.noise_warning())


if __name__ == "__main__":
    main()
