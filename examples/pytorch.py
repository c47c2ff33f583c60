"""Train with PyTorch and onedsl: eager mode and torch.compile, and what they gain.

Nothing in the model is changed: `enable` replaces PyTorch's kernels of batch norm, and
``torch.compile(model, backend="onedsl")`` compiles with inductor and onedsl's batch norm.

With ``--network NAME``, the script trains a network of the package transformers without onedsl,
with random weights and images. ``python -m onedsl.torch --compare pytorch.py --network resnet50``
times its steps without and with onedsl, and with ``--compile`` those of the compiled network.
"""

import argparse
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import onedsl.torch
from onedsl import bench

BATCH, SIZE = 16, 64
STEPS = 6  # the first ones, whose losses are printed

# The name of a configuration of transformers, and what differs from its default.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet50": ("ResNet", {}),
    "resnet18": (
        "ResNet",
        {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]},
    ),
    "mobilenetv2": ("MobileNetV2", {}),
    "efficientnet_b0": (
        "EfficientNet",
        {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
    ),
    "regnet_y_400mf": (
        "RegNet",
        {"depths": [1, 3, 6, 6], "hidden_sizes": [48, 104, 208, 440], "groups_width": 8},
    ),
}


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


def train(model: nn.Module, context: Callable[[], Any], losses: list[float]) -> Callable[[], None]:
    """Return a function that trains a step in a context and appends its loss."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step() -> None:
        with context():
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    return step


def new_network(name: str, classes: int) -> nn.Module:
    """Return a network with random weights."""
    import transformers  # of the extra `examples`

    kind, changes = NETWORKS[name]
    config = getattr(transformers, f"{kind}Config")(num_labels=classes, **changes)
    model: nn.Module = transformers.AutoModelForImageClassification.from_config(config)
    return model


def train_network(options: argparse.Namespace) -> None:
    """Train a network without onedsl."""
    torch.manual_seed(0)
    layout = torch.channels_last if options.format == "NXC" else torch.contiguous_format
    model = new_network(options.network, 100).train().to(memory_format=layout)
    images = torch.randn(options.batch, 3, options.size, options.size).to(memory_format=layout)
    labels = torch.randint(100, (options.batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    compiled = torch.compile(model) if options.compile else model
    for _ in range(options.steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = nn.functional.cross_entropy(compiled(images).logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{options.network}: loss {loss.item():.3f} after {options.steps} steps")


def compare_four_ways() -> None:
    """Train in four ways, with interleaved steps, and print the times and the losses."""
    steps: dict[str, Callable[[], None]] = {}
    losses: dict[str, list[float]] = {}
    for name, backend, context in (
        ("PyTorch", None, contextlib.nullcontext),
        # The other ways have made tensors, so it is too late for huge pages.
        ("onedsl.torch.enable()", None, functools.partial(onedsl.torch.enable, huge_pages=False)),
        ("torch.compile(model)", "inductor", contextlib.nullcontext),
        ('torch.compile(model, backend="onedsl")', "onedsl", contextlib.nullcontext),
    ):
        model = torch.compile(new_model(), backend=backend) if backend else new_model()
        losses[name] = []
        steps[name] = train(model, context, losses[name])
    times = bench.time_calls(steps)
    print(f"{'':<38}{'ms a step':>10}   loss of each step")
    for name, seconds in times.seconds.items():
        first = losses[name][:STEPS]
        torch.testing.assert_close(first, losses["PyTorch"][:STEPS], rtol=1e-3, atol=1e-3)
        print(f"{name:<38}{seconds * 1e3:10.1f}   {' '.join(f'{loss:.5f}' for loss in first)}")
    if times.noisy:
        print(bench.noise_warning())


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train with PyTorch and onedsl.")
    parser.add_argument("--network", choices=NETWORKS, help="train this network, without onedsl")
    parser.add_argument("--compile", action="store_true", help="compile the network")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="bf16: by autocast")
    parser.add_argument("--format", choices=("NXC", "NCX"), default="NXC", help="memory layout")
    parser.add_argument("--batch", type=int, default=16, help="images of a step")
    parser.add_argument("--size", type=int, default=112, help="their height and width")
    parser.add_argument("--steps", type=int, default=20, help="steps, at least 1")
    options = parser.parse_args()
    if options.network:
        train_network(options)
    else:
        compare_four_ways()


if __name__ == "__main__":
    main()
