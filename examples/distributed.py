"""Train on several processes, with synchronized batch norm and without.

    torchrun --nproc-per-node 2 examples/distributed.py

A small network learns scikit-learn's digits in batches of 4 images per process. The statistics of 4
images are noisy, so batch norm works better with the statistics of all processes' images. Both
trainings start from the same weights and use the same images.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import sklearn.datasets
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor, distributed, nn

import onedsl.torch

BATCH, TEST = 4, 360
BLUE, VERMILION, DARK_GREY, GRID = "#0072B2", "#D55E00", "#555555", "#dcdcdc"
COLORS = {"statistics of each process": BLUE, "synchronized statistics": VERMILION}


def load() -> tuple[Tensor, Tensor]:
    """Return the digits, shuffled, with mean 0 and standard deviation 1, and their classes."""
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = torch.tensor(digits.images[order], dtype=torch.float32)[:, None]
    return (pixels - pixels.mean()) / pixels.std(), torch.tensor(digits.target[order])


def network() -> nn.Module:
    """Return four convolutions with batch norm; the last one has one pixel per image."""
    layers: list[nn.Module] = []
    for channels_in, channels, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2), (64, 64, 2)):
        convolution = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def train(synchronized: bool, steps: int, seed: int) -> tuple[list[float], float]:
    """Return the loss of each step, over all processes' images, and the final accuracy."""
    images, labels = load()
    torch.manual_seed(seed)
    model = network()
    if synchronized:
        model = onedsl.torch.SyncBatchNorm.convert_sync_batchnorm(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    rank, world = distributed.get_rank(), distributed.get_world_size()
    picks = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        # All processes draw the same images, and each one uses its part.
        drawn = torch.randperm(len(images) - TEST, generator=picks)[: world * BATCH]
        mine = TEST + drawn[rank * BATCH : (rank + 1) * BATCH]
        loss = nn.functional.cross_entropy(parallel(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world
        distributed.all_reduce(mean)
        losses.append(mean.item())
    with torch.no_grad():
        right = model.eval()(images[:TEST]).argmax(1) == labels[:TEST]
    return losses, right.float().mean().item()


def smooth(losses: list[float], width: int) -> list[float]:
    """Return exponential moving averages."""
    averages, average, weight = [], 0.0, 0.0
    for loss in losses:
        average += (loss - average) / width
        weight += (1 - weight) / width
        averages.append(average / weight)
    return averages


Results = dict[str, list[tuple[list[float], float]]]


def draw(path: Path, results: Results, title: str) -> None:
    """Draw the losses of all trainings, and their mean with and without synchronization."""
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots()
    for (label, color), runs in zip(COLORS.items(), results.values(), strict=True):
        losses = [smooth(losses, 1 + len(losses) // 25) for losses, _ in runs]
        axes.plot(np.transpose(losses), color=color, linewidth=0.8, alpha=0.4)
        axes.plot(np.exp(np.log(losses).mean(0)), color=color, linewidth=2.5, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, smoothed")
    axes.legend(frameon=False)
    axes.grid(color=GRID)
    axes.tick_params(which="both", length=0, labelcolor=DARK_GREY)
    axes.spines[:].set_visible(False)
    figure.suptitle(title, weight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Train with and without synchronization; process 0 prints and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400, help="steps of each training")
    parser.add_argument("--seeds", type=int, default=3, help="number of trainings")
    parser.add_argument("--save", default="distributed.png", help="the picture; '' for none")
    chosen = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("start this program with: torchrun --nproc-per-node 2 examples/distributed.py")
    distributed.init_process_group("gloo")
    results: Results = {
        label: [train(synchronized, chosen.steps, seed) for seed in range(chosen.seeds)]
        for label, synchronized in zip(COLORS, (False, True), strict=True)
    }
    if distributed.get_rank() == 0:
        last = max(1, chosen.steps // 10)
        print(f"{'batch norm with':<30} {'loss of the last 10 %':>23} {'test accuracy':>14}")
        for label, runs in results.items():
            loss = np.mean([losses[-last:] for losses, _ in runs])
            accuracy = np.mean([accuracy for _, accuracy in runs])
            print(f"{label:<30} {loss:23.3f} {accuracy:14.1%}")
        if chosen.save:
            world = distributed.get_world_size()
            title = f"Digits in batches of {BATCH} images per process, {world} processes"
            draw(Path(chosen.save), results, title)
            print(f"Picture: {chosen.save}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
