"""Networks for benchmarks: ResNet-18, ResNet-50, MobileNetV2 and DenseNet-121."""

from __future__ import annotations

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


def head(channels: int, classes: int) -> list[nn.Module]:
    """Return the layers that compute the classes' scores."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


class Residual(nn.Module):
    """Layers and a shortcut connection, followed by ReLU."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.layers, self.shortcut, self.relu = layers, shortcut, nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y = self.layers(x)
        y += self.shortcut(x)
        result: Tensor = self.relu(y)
        return result


def resnet(blocks: tuple[int, ...], bottleneck: bool, classes: int) -> nn.Module:
    """Return a residual network (He et al.) with the strides in the 3x3 convolutions."""
    channels_in = 64
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, count in enumerate(blocks):
        width = 64 << stage
        channels = 4 * width if bottleneck else width
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            if bottleneck:
                first = normalized(channels_in, width, 1) + normalized(
                    width, width, 3, stride=stride
                )
            else:
                first = normalized(channels_in, width, 3, stride=stride)
            last = convolution(width, channels, 1 if bottleneck else 3), nn.BatchNorm2d(channels)
            shortcut: nn.Module = nn.Identity()
            if stride > 1 or channels_in != channels:
                shortcut = nn.Sequential(*normalized(channels_in, channels, 1, stride=stride)[:2])
            layers.append(Residual(nn.Sequential(*first, *last), shortcut))
            channels_in = channels
    return nn.Sequential(*layers, *head(channels_in, classes))


def resnet18(classes: int = 1000) -> nn.Module:
    """Return ResNet-18."""
    return resnet((2, 2, 2, 2), False, classes)


def resnet50(classes: int = 1000) -> nn.Module:
    """Return ResNet-50."""
    return resnet((3, 4, 6, 3), True, classes)


class InvertedResidual(nn.Module):
    """A depthwise convolution between two pointwise ones, with a shortcut if shapes agree."""

    def __init__(self, channels_in: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = expansion * channels_in
        self.layers = nn.Sequential(
            *(normalized(channels_in, wide, 1, nn.ReLU6) if expansion > 1 else []),
            *normalized(wide, wide, 3, nn.ReLU6, stride=stride, groups=wide),
            *normalized(wide, channels, 1)[:2],
        )
        self.has_shortcut = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y: Tensor = self.layers(x)
        return x + y if self.has_shortcut else y


def mobilenet_v2(classes: int = 1000) -> nn.Module:
    """Return MobileNetV2 (Sandler et al.) of width 1, without dropout."""
    layers = normalized(3, 32, 3, nn.ReLU6, stride=2)
    channels_in = 32
    for expansion, channels, blocks, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            first = stride if block == 0 else 1
            layers.append(InvertedResidual(channels_in, channels, first, expansion))
            channels_in = channels
    return nn.Sequential(*layers, *normalized(320, 1280, 1, nn.ReLU6), *head(1280, classes))


class DenseLayer(nn.Module):
    """A layer that concatenates its new channels to its input."""

    def __init__(self, channels_in: int, growth: int) -> None:
        super().__init__()
        first = nn.BatchNorm2d(channels_in), nn.ReLU(inplace=True)
        layers = normalized(channels_in, 4 * growth, 1)
        self.layers = nn.Sequential(*first, *layers, convolution(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        return torch.cat((x, self.layers(x)), 1)


def densenet121(classes: int = 1000) -> nn.Module:
    """Return DenseNet-121 (Huang et al.) with growth rate 32."""
    channels, growth = 64, 32
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for block, depth in enumerate((6, 12, 24, 16)):
        if block > 0:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            layers += [convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    return nn.Sequential(
        *layers, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), *head(channels, classes)
    )


NETWORKS = {
    "ResNet-18": resnet18,
    "ResNet-50": resnet50,
    "MobileNetV2": mobilenet_v2,
    "DenseNet-121": densenet121,
}
