"""Networks for benchmarks. Each function returns a model for a number of classes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn


def convolution(channels_in: int, channels: int, size: int, **kwargs: int) -> nn.Conv2d:
    """Return a convolution whose padding keeps the image size if its stride is 1."""
    return nn.Conv2d(channels_in, channels, size, padding=size // 2, bias=False, **kwargs)


def normalized(
    channels_in: int, channels: int, size: int, relu: type[nn.Module] = nn.ReLU, **kwargs: int
) -> list[nn.Module]:
    """Return a convolution, batch norm and ReLU."""
    layer = convolution(channels_in, channels, size, **kwargs)
    return [layer, nn.BatchNorm2d(channels), relu(inplace=True)]


def first_layers() -> list[nn.Module]:
    """Return the first layers of ResNet and DenseNet."""
    return [*normalized(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, 1)]


def head(channels: int, classes: int) -> list[nn.Module]:
    """Return the layers that compute the classes' scores."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


class Residual(nn.Module):
    """Layers and a shortcut connection, followed by ReLU."""

    def __init__(self, layers: list[nn.Module], shortcut: list[nn.Module]) -> None:
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), nn.Sequential(*shortcut)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y = self.layers(x)
        y += self.shortcut(x)
        result: Tensor = self.relu(y)
        return result


def _resnet(blocks: tuple[int, ...], bottleneck: bool, classes: int) -> nn.Module:
    """Return a residual network (He et al.) with the strides in the 3x3 convolutions."""
    channels_in = 64
    layers = first_layers()
    for stage, count in enumerate(blocks):
        width = 64 << stage
        channels = 4 * width if bottleneck else width
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            if bottleneck:
                inner = normalized(channels_in, width, 1)
                inner += normalized(width, width, 3, stride=stride)
            else:
                inner = normalized(channels_in, width, 3, stride=stride)
            inner += normalized(width, channels, 1 if bottleneck else 3)[:2]
            shortcut = []
            if stride > 1 or channels_in != channels:
                shortcut = normalized(channels_in, channels, 1, stride=stride)[:2]
            layers.append(Residual(inner, shortcut))
            channels_in = channels
    return nn.Sequential(*layers, *head(channels_in, classes))


resnet18 = functools.partial(_resnet, (2, 2, 2, 2), False)
resnet50 = functools.partial(_resnet, (3, 4, 6, 3), True)


class Sum(nn.Sequential):
    """Layers whose output is added to their input."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y: Tensor = super().forward(x)
        return x + y


def mobilenetv2(classes: int) -> nn.Module:
    """Return MobileNetV2 (Sandler et al.) of width 1, without dropout."""
    layers = normalized(3, 32, 3, nn.ReLU6, stride=2)
    channels_in = 32
    for expansion, channels, blocks, first_stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            stride, wide = first_stride if block == 0 else 1, expansion * channels_in
            inner = normalized(channels_in, wide, 1, nn.ReLU6) if expansion > 1 else []
            inner += normalized(wide, wide, 3, nn.ReLU6, stride=stride, groups=wide)
            inner += normalized(wide, channels, 1)[:2]
            has_shortcut = stride == 1 and channels_in == channels
            layers.append((Sum if has_shortcut else nn.Sequential)(*inner))
            channels_in = channels
    return nn.Sequential(*layers, *normalized(320, 1280, 1, nn.ReLU6), *head(1280, classes))


class Concatenation(nn.Sequential):
    """Layers whose output is concatenated to their input."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        return torch.cat((x, super().forward(x)), 1)


def densenet121(classes: int) -> nn.Module:
    """Return DenseNet-121 (Huang et al.) with growth rate 32."""

    def norm() -> list[nn.Module]:
        return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]

    channels = 64
    layers = first_layers()
    for block, depth in enumerate((6, 12, 24, 16)):
        if block > 0:
            layers += [*norm(), convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(depth):
            inner = [*norm(), *normalized(channels, 128, 1), convolution(128, 32, 3)]
            layers.append(Concatenation(*inner))
            channels += 32
    return nn.Sequential(*layers, *norm(), *head(channels, classes))
