"""Train with PyTorch and onedsl: eager mode and torch.compile, and what they gain.

Nothing in the model is changed: `enable` replaces PyTorch's kernels of batch norm, and
``torch.compile(model, backend="onedsl")`` compiles with inductor and onedsl's batch norm.
"""

import contextlib
import statistics
import time

import torch
from torch import nn

import onedsl.torch
from onedsl import bench

BATCH, SIZE, STEPS = 16, 64, 6
WARM_UP = 2  # steps that are not timed


def convolution(channels_in: int, channels: int, stride: int) -> list[nn.Module]:
    """Return a convolution, a batch norm and a ReLU."""
    layer = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
    return [layer, nn.BatchNorm2d(channels), nn.ReLU()]


def new_model() -> nn.Module:
    """Return a small network, always with the same weights."""
    torch.manual_seed(0)
    layers = convolution(3, 32, 1) + convolution(32, 32, 2) + convolution(32, 64, 1)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model.to(memory_format=torch.channels_last)


def train(model: nn.Module) -> tuple[list[float], float, bool]:
    """Return the losses of some steps, the median seconds of the last, and if they are noisy."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, seconds = [], []
    for step in range(STEPS):
        if step == WARM_UP:
            monitor = bench.NoiseMonitor()
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return losses, statistics.median(seconds[WARM_UP:]), monitor.is_noisy(torch.get_num_threads())


def main() -> None:
    """Train in four ways and print the times and the losses."""
    print(f"{'':<38}{'ms a step':>10}   loss of each step")
    first: list[float] = []
    any_noisy = False
    for name, backend, context in (
        ("PyTorch", None, contextlib.nullcontext()),
        ("onedsl.torch.enable()", None, onedsl.torch.enable()),
        ("torch.compile(model)", "inductor", contextlib.nullcontext()),
        ('torch.compile(model, backend="onedsl")', "onedsl", contextlib.nullcontext()),
    ):
        model = new_model()
        with context:
            losses, seconds, noisy = train(
                torch.compile(model, backend=backend) if backend else model
            )
        first = first or losses
        torch.testing.assert_close(losses, first, rtol=1e-3, atol=1e-3)
        print(f"{name:<38}{seconds * 1e3:10.1f}   {' '.join(f'{x:.5f}' for x in losses)}")
        any_noisy |= noisy
    if any_noisy:
        print(bench.noise_warning())


if __name__ == "__main__":
    main()
