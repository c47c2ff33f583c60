"""ResNet-50, MobileNetV2 and DenseNet-121, with the names that their papers use."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def convolution(channels_in: int, channels: int, size: int, **kwargs: int) -> nn.Conv2d:
    """Return a convolution whose padding keeps the image size if its stride is 1."""
    return nn.Conv2d(channels_in, channels, size, padding=size // 2, bias=False, **kwargs)


# ResNet-50: He et al., Deep Residual Learning for Image Recognition


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut connection."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels = 4 * width
        self.conv1, self.bn1 = convolution(channels_in, width, 1), nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = convolution(width, channels, 1), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                convolution(channels_in, channels, 1, stride=stride), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        result: Tensor = self.relu(y)
        return result


def resnet50(classes: int = 1000) -> nn.Module:
    """Return ResNet-50 with the strides in the 3x3 convolutions."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            layers.append(Bottleneck(channels, width, stride))
            channels = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


# MobileNetV2: Sandler et al., Inverted Residuals and Linear Bottlenecks


def normalized(channels_in: int, channels: int, size: int, **kwargs: int) -> list[nn.Module]:
    """Return a convolution, batch norm and ReLU6."""
    return [
        convolution(channels_in, channels, size, **kwargs),
        nn.BatchNorm2d(channels),
        nn.ReLU6(inplace=True),
    ]


class InvertedResidual(nn.Module):
    """A depthwise convolution between two pointwise ones."""

    def __init__(self, channels_in: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = expansion * channels_in
        self.layers = nn.Sequential(
            *(normalized(channels_in, wide, 1) if expansion > 1 else []),
            *normalized(wide, wide, 3, stride=stride, groups=wide),
            convolution(wide, channels, 1),
            nn.BatchNorm2d(channels),
        )
        self.has_shortcut = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y: Tensor = self.layers(x)
        return x + y if self.has_shortcut else y


def mobilenet_v2(classes: int = 1000) -> nn.Module:
    """Return MobileNetV2 of width 1, without dropout."""
    layers = normalized(3, 32, 3, stride=2)
    channels_in = 32
    for expansion, channels, blocks, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for block in range(blocks):
            layers.append(
                InvertedResidual(channels_in, channels, stride if block == 0 else 1, expansion)
            )
            channels_in = channels
    layers += normalized(channels_in, 1280, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes))


# DenseNet-121: Huang et al., Densely Connected Convolutional Networks


class DenseLayer(nn.Module):
    """A layer that concatenates its new channels to its input."""

    def __init__(self, channels_in: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels_in),
            nn.ReLU(inplace=True),
            convolution(channels_in, 4 * growth, 1),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            convolution(4 * growth, growth, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        return torch.cat((x, self.layers(x)), 1)


def densenet121(classes: int = 1000) -> nn.Module:
    """Return DenseNet-121 with growth rate 32."""
    channels, growth = 64, 32
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, 2, 3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for depth in (6, 12, 24, 16):
        if len(layers) > 4:
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
                convolution(channels, channels // 2, 1),
                nn.AvgPool2d(2),
            ]
            channels //= 2
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


NETWORKS = {"ResNet-50": resnet50, "MobileNetV2": mobilenet_v2, "DenseNet-121": densenet121}
