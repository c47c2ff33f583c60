"""What synchronized batch norm costs on up to 1,024 processes: a model of ResNet-50's layers.

Two processes of one thread each measure on this machine: what a layer takes, forward and backward,
with its own statistics and with those of both; and what a message takes over gloo's loopback. For P
processes the rest is computed, not measured. With N images in all, and C channels, a layer takes

    time(P) = compute(N / P) + gather(P, C) + reduce(P, C)

where compute grows with the images, from what the smallest layer takes. An exchange takes what two
processes were measured to take for one of next to no bytes, with all that PyTorch and onedsl do for
it, and for more processes ``hop + bytes / bandwidth`` of the network for each message. It is one of
V = 8 (2 C + 1) bytes:

    by rings (gloo):  gather is P - 1 messages of V, reduce 2 (P - 1) messages of V / P
    by trees (MPI):   gather is log2(P) messages and (P - 1) V bytes, reduce log2(P) messages of V
"""

from __future__ import annotations

import collections
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import common
from matplotlib.axes import Axes
from rich.table import Table

try:
    import torch
except ImportError:
    sys.exit("scale.py needs PyTorch: pip install 'torch>=2.13'")

from torch import distributed, multiprocessing, nn

import onedsl.torch
from onedsl.bench import arguments
from onedsl.bench.networks import resnet50
from onedsl.bench.table import console

PROCESSES = [1 << k for k in range(11)]
SMALLEST = (2, 2)  # (C, side) of a layer that computes nothing worth mentioning


class Network(NamedTuple):
    """What carries messages between processes."""

    name: str
    hop: float
    """Seconds of a message."""
    bandwidth: float
    """Bytes in a second."""
    trees: bool
    """Whether exchanges go by trees, or by rings."""


ETHERNET = Network("gloo, 25 Gbit/s Ethernet (stated: 20 us, 3 GB/s)", 20e-6, 3e9, False)
INFINIBAND = Network("MPI, 100 Gbit/s InfiniBand (stated: 2 us, 12 GB/s)", 2e-6, 12e9, True)


class Layer(NamedTuple):
    """What two processes measured of a layer; seconds are those of a step, forward and backward."""

    channels: int
    side: int
    number: int
    """How many of it ResNet-50 has."""
    megabytes: float
    """Of the input's part of one process."""
    own: float
    """Seconds with each process's own statistics."""
    synchronized: float
    """Seconds with those of both."""
    threads: float
    """Seconds of one process that has both batches and two threads."""


class Plan(NamedTuple):
    """How to measure."""

    batch: int
    """Images a process."""
    rounds: int
    cycle: float
    """Megabytes that a layer's steps go through before they come to the same ones again."""


class Measured(NamedTuple):
    """What two processes measured."""

    hop: float
    bandwidth: float
    smallest: Layer
    layers: list[Layer]
    images: int

    @property
    def call(self) -> float:
        """Seconds of an exchange of two processes that carries next to nothing."""
        return (self.smallest.synchronized - self.smallest.own) / 2


# What is measured


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
    """Time a message of float64 to the other process, half of its way there and back."""
    message = torch.zeros(numbers, dtype=torch.float64)
    samples = []
    for _ in range(times):
        begin = time.perf_counter()
        for receives in (rank, 1 - rank):
            (distributed.recv if receives else distributed.send)(message, 1 - rank)
        samples.append((time.perf_counter() - begin) / 2)
    return statistics.median(samples)


class Steps:
    """Steps of a layer on inputs that take turns, so that each comes from memory."""

    def __init__(self, layer: nn.Module, images: int, side: int, cycle: float) -> None:
        shape = (2, images, layer.num_features, side, side)
        sets = min(64, math.ceil(1e6 * cycle / (4 * math.prod(shape))))
        memory = torch.channels_last
        self.layer = layer
        self.sets = [
            [t.contiguous(memory_format=memory) for t in torch.randn(shape)] for _ in range(sets)
        ]

    def run(self) -> float:
        """Give the seconds of one."""
        begin = time.perf_counter()
        for src, diff_dst in self.sets:
            x = src.detach().requires_grad_()
            self.layer(x).backward(diff_dst)
        return (time.perf_counter() - begin) / len(self.sets)


def measure_layer(rank: int, shape: tuple[int, int], number: int, images: int, plan: Plan) -> Layer:
    """Take the three ways in turns, and of each the median."""
    channels, side = shape
    own = Steps(nn.BatchNorm2d(channels), images, side, plan.cycle)
    synchronized = Steps(onedsl.torch.SyncBatchNorm(channels), images, side, plan.cycle)
    whole = Steps(nn.BatchNorm2d(channels), 2 * images, side, plan.cycle)
    samples: list[tuple[float, ...]] = []
    for _ in range(plan.rounds + 1):
        distributed.barrier()
        seconds = [own.run(), synchronized.run()]
        distributed.barrier()
        if rank == 0:
            torch.set_num_threads(2)
            seconds.append(whole.run())
            torch.set_num_threads(1)
            time.sleep(0.3)  # the second thread spins for a while, on the other process's core
        samples.append(tuple(seconds))
    medians = [statistics.median(times) for times in zip(*samples[1:], strict=True)]
    megabytes = 4e-6 * images * channels * side * side
    return Layer(channels, side, number, megabytes, *medians, *[math.nan] * rank)


def work(rank: int, folder: str, plan: Plan) -> None:
    """Be one of the two processes, and let the first one leave what was measured."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    onedsl.torch.enable()  # the other ways run the same kernels
    big = 1 << 20
    hop = message_seconds(rank, 1, 1000)
    measured = Measured(
        hop,
        8 * big / (message_seconds(rank, big, 20) - hop),
        measure_layer(rank, SMALLEST, 0, 1, plan),
        [measure_layer(rank, shape, n, plan.batch, plan) for shape, n in shapes().items()],
        plan.batch,
    )
    if rank == 0:
        torch.save(tuple(measured), f"{folder}/measured")
    distributed.destroy_process_group()


def measure(plan: Plan) -> Measured:
    """Let two processes measure."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder, plan), 2)
        return Measured(*torch.load(f"{folder}/measured", weights_only=False))


# What is computed of it


def exchange(measured: Measured, network: Network, processes: int, channels: int) -> float:
    """Compute the seconds of a step's two exchanges of one layer, or of several merged ones."""
    if processes == 1:
        return 0.0
    size = 8 * (2 * channels + 1)
    others = processes - 1
    if network.trees:
        rounds = math.ceil(math.log2(processes))
        further, sent = 2 * (rounds - 1), 1.0 * (others + rounds) * size
    else:
        further, sent = 3 * (others - 1), others * size + 2 * others * size / processes
    # What two processes send is in what a call was measured to take.
    return 2 * measured.call + further * network.hop + sent / network.bandwidth


def compute(measured: Measured, layer: Layer, images: float) -> float:
    """Compute the seconds of a layer's step on some images, without exchanges."""
    start = measured.smallest.own
    return start + (layer.own - start) * images / measured.images


class Scaled(NamedTuple):
    """What ResNet-50's batch norms take on some processes, in seconds, computed."""

    processes: int
    computing: float
    exchanging: float
    merged: float
    """Exchanges, where those that do not wait for each other are merged."""
    one: float
    """One pair of exchanges for all layers: what no network allows, and none can be below."""

    @property
    def efficiency(self) -> float:
        """Share of the time that is computing."""
        return self.computing / (self.computing + self.exchanging)


MERGED = {256: 1, 512: 1, 1024: 1, 2048: 1}
"""Shortcuts with a batch norm, by channels: it and the block's last one can share an exchange."""


def scale(measured: Measured, network: Network, processes: int, images: int) -> Scaled:
    """Compute what all batch norms take, with so many images in all."""
    layers = measured.layers

    def exchanges(channels: int) -> float:
        return exchange(measured, network, processes, channels)

    all_of_them = sum(layer.number * exchanges(layer.channels) for layer in layers)
    saved = sum(n * (2 * exchanges(c) - exchanges(2 * c)) for c, n in MERGED.items())
    return Scaled(
        processes,
        sum(layer.number * compute(measured, layer, images / processes) for layer in layers),
        all_of_them,
        all_of_them - saved,
        exchanges(sum(layer.number * layer.channels for layer in layers)),
    )


# What is told


def layers_table(measured: Measured) -> Table:
    """Say what two processes measured."""
    made = Table(title="Measured: a layer's step on 2 processes of 1 thread", show_edge=False)
    for title in ("channels", "side", "MB a process", "own ms", "synchronized ms", "added us"):
        made.add_column(title, justify="right")
    made.add_column("1 process, 2 threads ms", justify="right")
    made.add_column("efficiency", justify="right")
    for layer in (measured.smallest, *measured.layers):
        made.add_row(
            str(layer.channels),
            str(layer.side),
            f"{layer.megabytes:.2g}",
            f"{1e3 * layer.own:.2f}",
            f"{1e3 * layer.synchronized:.2f}",
            f"{1e6 * (layer.synchronized - layer.own):.0f}",
            f"{1e3 * layer.threads:.2f}",
            f"{layer.threads / layer.synchronized:.2f}",
        )
    return made


def scale_table(name: str, rows: Sequence[Scaled]) -> Table:
    """Say what was computed for a network."""
    made = Table(title=f"Computed: {name}", show_edge=False)
    for title in ("processes", "computing ms", "exchanges ms", "efficiency", "merged ms", "one ms"):
        made.add_column(title, justify="right")
    for row in rows:
        made.add_row(
            str(row.processes),
            *(f"{1e3 * seconds:.2f}" for seconds in (row.computing, row.exchanging)),
            f"{row.efficiency:.2f}",
            *(f"{1e3 * seconds:.2f}" for seconds in (row.merged, row.one)),
        )
    return made


COLORS = ("#8a8a8a", "#0b6e99", "#d55e00")


def draw(
    path: Path, measured: Measured, networks: Sequence[Network], images: int, caption: str
) -> None:
    """Draw computing beside exchanging, and the layers that most of the exchanging is for."""
    figure = common.new_figure(
        "Synchronized batch norm of ResNet-50 on many processes: computed, not measured", caption
    )
    left, right = figure.add_axes((0.06, 0.1, 0.42, 0.68)), figure.add_axes((0.55, 0.1, 0.42, 0.68))
    draw_times(left, measured, networks, images)
    draw_layers(right, measured, networks, images)
    figure.savefig(path)


def finding(network: Network, rows: Sequence[Scaled]) -> str:
    """Say from where on exchanges take longer than computing, and what merging them would gain."""
    longer = next((f"from {r.processes}" for r in rows if r.exchanging > r.computing), "on no")
    last = rows[-1]
    return (
        f"{network.name}: {longer} processes on, exchanges take longer than computing. "
        f"On {last.processes}, merging those of shortcuts and blocks would save "
        f"{100 * (1 - last.merged / last.exchanging):.0f} % of their time."
    )


def draw_times(axes: Axes, measured: Measured, networks: Sequence[Network], images: int) -> None:
    """Draw the seconds of all layers by the number of processes."""
    rows = [scale(measured, networks[0], p, images) for p in PROCESSES]
    computing = [1e3 * row.computing for row in rows]
    axes.plot(PROCESSES, computing, color="black", linewidth=2.5, label="computing")
    for network, color in zip(networks, COLORS, strict=True):
        times = [1e3 * scale(measured, network, p, images).exchanging for p in PROCESSES[1:]]
        axes.plot(PROCESSES[1:], times, color=color, linewidth=2.5, label=network.name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    common.decorate(axes, "All 53 layers, ms a step", "y")
    axes.legend(frameon=False, fontsize=9)
    mark_processes(axes)


def draw_layers(axes: Axes, measured: Measured, networks: Sequence[Network], images: int) -> None:
    """Draw the efficiency of the layers that have most and least to compute."""
    ends = sorted(measured.layers, key=lambda layer: layer.own)
    for layer, style in ((ends[-1], "-"), (ends[0], "--")):
        for network, color in zip(networks, COLORS, strict=True):
            shares = []
            for p in PROCESSES:
                seconds = compute(measured, layer, images / p)
                shares.append(
                    100 * seconds / (seconds + exchange(measured, network, p, layer.channels))
                )
            axes.plot(PROCESSES, shares, style, color=color, linewidth=2.5)
        axes.plot(
            [],
            [],
            style,
            color="black",
            label=f"{layer.channels} channels of {layer.side} x {layer.side}",
        )
    common.decorate(axes, "Computing, % of a layer's step", "y")
    axes.legend(frameon=False, fontsize=10)
    mark_processes(axes)


def mark_processes(axes: Axes) -> None:
    """Make a logarithmic axis of the numbers of processes."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(PROCESSES, [str(p) for p in PROCESSES])
    axes.set_xlabel("processes")


def main() -> None:
    """Measure here, compute the rest, and print and draw it."""
    parser = common.parser(__doc__)
    parser.add_argument("--images", type=arguments.count, default=4096, help="images in all, N")
    parser.add_argument(
        "--batch", type=arguments.count, default=16, help="images a process, where it is measured"
    )
    parser.add_argument("--rounds", type=arguments.count, default=7, help="of each measurement")
    parser.add_argument(
        "--cycle",
        type=arguments.positive,
        default=128,
        help="megabytes that steps go through before they come to the same again: above the cache",
    )
    parser.add_argument("--save", **arguments.save("scale.png"))
    chosen = parser.parse_args()
    out = console()
    measured = measure(Plan(chosen.batch, chosen.rounds, chosen.cycle))
    out.print(layers_table(measured))
    loopback = f"gloo, loopback (measured: {1e6 * measured.hop:.0f} us, "
    loopback += f"{measured.bandwidth / 1e9:.1f} GB/s)"
    networks = (
        Network(loopback, measured.hop, measured.bandwidth, False),
        *(ETHERNET, INFINIBAND),
    )
    for network in networks:
        rows = [scale(measured, network, p, chosen.images) for p in PROCESSES]
        out.print(scale_table(network.name, rows[::2]))
        out.print(f"{finding(network, rows)}\n")
    if chosen.save:
        caption = (
            f"{chosen.images} images in all, f32, channels_last; computing as measured here on one "
            f"thread with {chosen.batch} images.\nAn exchange takes {1e6 * measured.call:.0f} us, "
            "as between two processes here, and further messages of the network."
        )
        draw(chosen.save, measured, networks, chosen.images, caption)
        out.print(f"Picture: {chosen.save}")


if __name__ == "__main__":
    main()
