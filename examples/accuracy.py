"""Compares the accuracy of networks that were trained with PyTorch and with onedsl, over seeds.

    python accuracy.py [--seeds 20] [--epochs 6]

Trains a small convolutional network on scikit-learn's digits (1,347 images of 8x8 for training, 450
for the test). For each seed, all ways to train start from the same weights and see the same
batches. The last column is the p-value of Mann and Whitney's test: a small one, such as 0.01, would
mean that the accuracies are another distribution than PyTorch's.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import onedsl.torch


def train(
    seed: int, epochs: int, images: Tensor, labels: Tensor, form: torch.memory_format
) -> tuple[float, float]:
    """Return the loss of the first step, and the accuracy on the last 450 images."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for i, o in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    head = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    model = nn.Sequential(*layers, *head).to(memory_format=form)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    number = epochs * -(-(len(images) - 450) // 64)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, number)
    losses: list[float] = []
    for _ in range(epochs):
        for batch in torch.randperm(len(images) - 450).split(64):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            decay.step()
            losses.append(float(loss.detach()))
    model.eval()
    with torch.no_grad():
        found = model(images[-450:]).argmax(1)
    return losses[0], float((found == labels[-450:]).float().mean())


def main() -> None:
    """Train with each seed in each way, and print the distributions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order], dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target[order])
    ways: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Any]], Any]] = {
        "PyTorch, contiguous": (contextlib.nullcontext, torch.contiguous_format),
        "PyTorch, channels_last": (contextlib.nullcontext, torch.channels_last),
        "onedsl, contiguous": (onedsl.torch.enable, torch.contiguous_format),
        "onedsl, channels_last": (onedsl.torch.enable, torch.channels_last),
    }
    results = {}
    for name, (context, form) in ways.items():
        with context():
            runs = [
                train(seed, options.epochs, images.contiguous(memory_format=form), labels, form)
                for seed in range(options.seeds)
            ]
        results[name] = np.array(runs).T
    first_loss, first_accuracy = results["PyTorch, contiguous"]
    print(f"{'test accuracy of':24}    mean    standard deviation  first loss differs by  p-value")
    for name, (loss, accuracy) in results.items():
        difference = np.abs(loss / first_loss - 1).max()
        p_value = mannwhitneyu(first_accuracy, accuracy).pvalue
        deviation = accuracy.std(ddof=1)
        print(
            f"{name:24} {accuracy.mean():7.2%} {deviation:21.2%} {difference:22.1e} {p_value:8.2f}"
        )


if __name__ == "__main__":
    main()
