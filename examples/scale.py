"""Estimate the cost of synchronized batch norm in ResNet-50 on up to 1,024 processes.

Two processes with one thread each measure every layer of ResNet-50, forward and backward, with
their own statistics and with synchronized ones, and the time of a message over gloo's loopback.
The times of P processes are computed, not measured. For N images in total and C channels, a step
of a layer takes

    time(P) = compute(N / P) + gather(P, C) + reduce(P, C)

compute is linear in the images and starts at the time of the smallest layer. For two processes an
exchange takes the measured time of an almost empty one, which includes the overhead of PyTorch and
onedsl. For more processes, each further message takes ``latency + bytes / bandwidth``. An exchange
transfers vectors of V = 8 (2 C + 1) bytes:

    ring (gloo):  gather sends P - 1 messages of V, reduce 2 (P - 1) messages of V / P
    tree (MPI):   gather sends log2(P) messages, (P - 1) V bytes; reduce log2(P) messages of V
"""

from __future__ import annotations

import argparse
import collections
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

try:
    import torch
except ImportError:
    sys.exit("scale.py needs PyTorch: pip install 'onedsl[torch]'")

from torch import distributed, multiprocessing, nn

import onedsl.torch
from onedsl.bench.networks import resnet50

PROCESSES = [1 << k for k in range(11)]
SMALLEST = (2, 2)  # channels and side of a layer with a negligible amount of computation


class Network(NamedTuple):
    """A network between processes; latency in seconds, bandwidth in bytes per second."""

    name: str
    latency: float
    bandwidth: float
    tree: bool


ASSUMED = (
    Network("gloo, 25 Gbit/s Ethernet (assumed: 20 us, 3 GB/s)", 20e-6, 3e9, tree=False),
    Network("MPI, 100 Gbit/s InfiniBand (assumed: 2 us, 12 GB/s)", 2e-6, 12e9, tree=True),
)


class Layer(NamedTuple):
    """The measured seconds of one step of a layer on two processes."""

    channels: int
    side: int
    number: int
    """How often ResNet-50 contains the layer."""
    own: float
    """With each process's own statistics."""
    synchronized: float
    threads: float
    """One process with both batches and two threads."""


class Measured(NamedTuple):
    """All measurements."""

    latency: float
    bandwidth: float
    smallest: Layer
    layers: list[Layer]
    images: int
    """Per process."""

    @property
    def exchange(self) -> float:
        """Seconds of an almost empty exchange between two processes."""
        return (self.smallest.synchronized - self.smallest.own) / 2


def shapes() -> dict[tuple[int, int], int]:
    """Count ResNet-50's batch norms by channels and side."""
    found: collections.Counter[tuple[int, int]] = collections.Counter()
    with torch.device("meta"):
        model = resnet50()
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_hook(lambda _, x, y: found.update([tuple(y.shape[1:3])]))
        model(torch.empty(1, 3, 224, 224))
    return dict(found)


def message_seconds(rank: int, numbers: int, times: int) -> float:
    """Return the median time of one message of float64 to the other process."""
    message = torch.zeros(numbers, dtype=torch.float64)
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        for receives in (rank, 1 - rank):
            (distributed.recv if receives else distributed.send)(message, 1 - rank)
        samples.append((time.perf_counter() - start) / 2)
    return statistics.median(samples)


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
    rank: int, shape: tuple[int, int], number: int, images: int, options: argparse.Namespace
) -> Layer:
    """Measure the three variants interleaved, and return their medians."""
    channels, side = shape
    own = Steps(nn.BatchNorm2d(channels), images, side, options.megabytes)
    synchronized = Steps(onedsl.torch.SyncBatchNorm(channels), images, side, options.megabytes)
    whole = Steps(nn.BatchNorm2d(channels), 2 * images, side, options.megabytes)
    samples: list[tuple[float, ...]] = []
    for _ in range(options.rounds + 1):  # the first one warms up
        distributed.barrier()
        seconds = [own.run(), synchronized.run()]
        distributed.barrier()
        if rank == 0:
            torch.set_num_threads(2)
            seconds.append(whole.run())
            torch.set_num_threads(1)
            time.sleep(0.3)  # the second thread still spins on the other process's core
        samples.append(tuple(seconds))
    medians = [statistics.median(times) for times in zip(*samples[1:], strict=True)]
    return Layer(channels, side, number, *medians, *[math.nan] * rank)


def run_process(rank: int, folder: str, options: argparse.Namespace) -> None:
    """Measure in one of the two processes; rank 0 saves the results."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    onedsl.torch.enable()  # so that all variants run the same kernels
    numbers, batch = 1 << 20, options.batch
    latency = message_seconds(rank, 1, 1000)
    measured = Measured(
        latency,
        8 * numbers / (message_seconds(rank, numbers, 20) - latency),
        measure_layer(rank, SMALLEST, 0, 1, options),
        [measure_layer(rank, shape, n, batch, options) for shape, n in shapes().items()],
        batch,
    )
    if rank == 0:
        torch.save(tuple(measured), f"{folder}/measured")
    distributed.destroy_process_group()


def measure(options: argparse.Namespace) -> Measured:
    """Measure with two new processes."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run_process, (folder, options), 2)
        return Measured(*torch.load(f"{folder}/measured", weights_only=False))


def exchanges(measured: Measured, network: Network, processes: int) -> float:
    """Estimate the seconds of all layers' exchanges in a step, two per layer."""
    if processes == 1:
        return 0.0
    others, total = processes - 1, 0.0
    for layer in measured.layers:
        size = 8 * (2 * layer.channels + 1)
        if network.tree:
            rounds = math.ceil(math.log2(processes))
            further, sent = 2 * (rounds - 1), 1.0 * (others + rounds) * size
        else:
            further, sent = 3 * (others - 1), others * size + 2 * others * size / processes
        # The measured exchange already contains the first message.
        seconds = 2 * measured.exchange + further * network.latency + sent / network.bandwidth
        total += layer.number * seconds
    return total


def computation(measured: Measured, images: float) -> float:
    """Estimate the seconds of all layers' steps without exchanges."""
    start = measured.smallest.own
    return sum(
        layer.number * (start + (layer.own - start) * images / measured.images)
        for layer in measured.layers
    )


def measured_table(measured: Measured) -> Table:
    """Return the table of measured times."""
    table = Table(title="Measured: a layer's step on 2 processes of 1 thread", show_edge=False)
    titles = ("channels", "side", "own ms", "synchronized ms", "added us")
    for title in (*titles, "1 process, 2 threads ms", "efficiency"):
        table.add_column(title, justify="right")
    for layer in (measured.smallest, *measured.layers):
        table.add_row(
            str(layer.channels),
            str(layer.side),
            f"{1e3 * layer.own:.2f}",
            f"{1e3 * layer.synchronized:.2f}",
            f"{1e6 * (layer.synchronized - layer.own):.0f}",
            f"{1e3 * layer.threads:.2f}",
            f"{layer.threads / layer.synchronized:.2f}",
        )
    return table


def computed_table(measured: Measured, network: Network, images: int) -> Table:
    """Return the table of computed times on a network."""
    table = Table(title=f"Computed: {network.name}", show_edge=False)
    for title in ("processes", "computation ms", "exchanges ms", "efficiency"):
        table.add_column(title, justify="right")
    for processes in PROCESSES[::2]:
        compute = computation(measured, images / processes)
        exchange = exchanges(measured, network, processes)
        table.add_row(
            str(processes),
            f"{1e3 * compute:.2f}",
            f"{1e3 * exchange:.2f}",
            f"{compute / (compute + exchange):.2f}",
        )
    return table


def draw(path: Path, measured: Measured, networks: list[Network], images: int) -> None:
    """Draw the times of computation and exchanges by the number of processes."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots()
    times = [1e3 * computation(measured, images / p) for p in PROCESSES]
    axes.plot(PROCESSES, times, color="black", linewidth=2.5, label="computation")
    for network in networks:
        times = [1e3 * exchanges(measured, network, p) for p in PROCESSES[1:]]
        axes.plot(PROCESSES[1:], times, linewidth=2.5, label=f"exchanges: {network.name}")
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    axes.set_xticks(PROCESSES, [str(p) for p in PROCESSES])
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("processes")
    axes.set_ylabel("time per training step of all 53 layers (ms)")
    axes.grid(color="#dcdcdc")
    axes.legend(frameon=False)
    figure.suptitle(
        f"Synchronized batch norm of ResNet-50, {images} images (computed, not measured)"
    )
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure on this machine, compute the rest, print and draw both."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--images", type=int, default=4096, help="in total, over all processes")
    parser.add_argument("--batch", type=int, default=16, help="measured images per process")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of each measurement")
    parser.add_argument(
        "--megabytes", type=float, default=128, help="of inputs to alternate between"
    )
    parser.add_argument("--save", type=Path, default=Path("scale.png"), help="the picture's path")
    options = parser.parse_args()
    console = Console(highlight=False)
    measured = measure(options)
    console.print(measured_table(measured))
    loopback = (
        f"gloo, loopback (measured: {1e6 * measured.latency:.0f} us, "
        f"{measured.bandwidth / 1e9:.1f} GB/s)"
    )
    networks = [Network(loopback, measured.latency, measured.bandwidth, tree=False), *ASSUMED]
    for network in networks:
        console.print(computed_table(measured, network, options.images))
    draw(options.save, measured, networks, options.images)
    console.print(f"Picture: {options.save}")


if __name__ == "__main__":
    main()
