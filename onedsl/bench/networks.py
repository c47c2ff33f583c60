"""Networks for benchmarks. Each function returns a model for a number of classes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

Activation = type[nn.Module]


def convolution(channels_in: int, channels: int, size: int, **kwargs: int) -> nn.Conv2d:
    """Return a convolution whose padding keeps the image size if its stride is 1."""
    return nn.Conv2d(channels_in, channels, size, padding=size // 2, bias=False, **kwargs)


def normalized(
    channels_in: int, channels: int, size: int, relu: Activation = nn.ReLU, **kwargs: int
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


class Combined(nn.Sequential):
    """Layers whose output is combined with their input, or with that of a shortcut connection."""

    def __init__(
        self,
        combine: Callable[[Tensor, Tensor], Tensor],
        layers: Iterable[nn.Module],
        shortcut: Iterable[nn.Module] = (),
    ) -> None:
        super().__init__(nn.Sequential(*layers), nn.Sequential(*shortcut))
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        layers, shortcut = self
        return self.combine(layers(x), shortcut(x))


def concatenate(y: Tensor, x: Tensor) -> Tensor:
    """Concatenate the channels of x and y."""
    return torch.cat((x, y), 1)


def excitation(channels: int, squeezed: int, relu: Activation, gate: Activation) -> nn.Module:
    """Return layers that scale each channel of their input."""
    narrow, wide = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
    return Combined(operator.mul, [nn.AdaptiveAvgPool2d(1), narrow, relu(), wide, gate()])


def _resnet(blocks: Sequence[int], bottleneck: bool, classes: int) -> nn.Module:
    """Return a residual network (He et al.) with the strides in the 3x3 convolutions."""
    channels_in = 64
    layers = first_layers()
    for stage, count in enumerate(blocks):
        width = 64 << stage
        channels = 4 * width if bottleneck else width
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            inner = normalized(channels_in, width, 1) if bottleneck else []
            inner += normalized(width if bottleneck else channels_in, width, 3, stride=stride)
            inner += normalized(width, channels, 1 if bottleneck else 3)[:2]
            shortcut = []
            if stride > 1 or channels_in != channels:
                shortcut = normalized(channels_in, channels, 1, stride=stride)[:2]
            layers += [Combined(operator.iadd, inner, shortcut), nn.ReLU(inplace=True)]
            channels_in = channels
    return nn.Sequential(*layers, *head(channels_in, classes))


resnet18 = functools.partial(_resnet, (2, 2, 2, 2), False)
resnet50 = functools.partial(_resnet, (3, 4, 6, 3), True)


def regnet_y_400mf(classes: int) -> nn.Module:
    """Return RegNetY-400MF (Radosavovic et al.)."""
    layers = normalized(3, 32, 3, stride=2)
    channels_in = 32
    for width, blocks in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for block in range(blocks):
            stride = 1 if block else 2
            inner = normalized(channels_in, width, 1)
            inner += normalized(width, width, 3, stride=stride, groups=width // 8)
            inner.append(excitation(width, channels_in // 4, nn.ReLU, nn.Sigmoid))
            inner += normalized(width, width, 1)[:2]
            shortcut = [] if block else normalized(channels_in, width, 1, stride=2)[:2]
            layers += [Combined(operator.iadd, inner, shortcut), nn.ReLU(inplace=True)]
            channels_in = width
    return nn.Sequential(*layers, *head(channels_in, classes))


def inverted_residual(
    channels_in: int,
    wide: int,
    channels: int,
    relu: Activation,
    size: int,
    stride: int,
    gates: Sequence[nn.Module] = (),
) -> nn.Module:
    """Return MobileNetV2's block: expansion, convolution of single channels, and projection."""
    inner = normalized(channels_in, wide, 1, relu) if wide > channels_in else []
    inner += normalized(wide, wide, size, relu, stride=stride, groups=wide)
    inner += [*gates, *normalized(wide, channels, 1)[:2]]
    if stride > 1 or channels_in != channels:
        return nn.Sequential(*inner)
    return Combined(operator.add, inner)


def _inverted_residuals(
    relu: Activation, gated: bool, rows: Sequence[tuple[int, ...]], classes: int
) -> nn.Module:
    """Return a network of inverted residuals.

    A row has the size of the kernels, expansion, channels, number of blocks, and first stride.
    """
    layers = normalized(3, 32, 3, relu, stride=2)
    channels_in = 32
    for size, expansion, channels, blocks, first_stride in rows:
        for block in range(blocks):
            wide, stride = expansion * channels_in, 1 if block else first_stride
            gates = [excitation(wide, channels_in // 4, relu, nn.Sigmoid)] if gated else []
            layers.append(inverted_residual(channels_in, wide, channels, relu, size, stride, gates))
            channels_in = channels
    return nn.Sequential(*layers, *normalized(320, 1280, 1, relu), *head(1280, classes))


# MobileNetV2 (Sandler et al.) of width 1 and EfficientNet-B0 (Tan and Le), without dropout and
# stochastic depth.
mobilenetv2 = functools.partial(_inverted_residuals, nn.ReLU6, False, (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (3, 6, 32, 3, 2), (3, 6, 64, 4, 2), (3, 6, 96, 3, 1),
    (3, 6, 160, 3, 2), (3, 6, 320, 1, 1),
))  # fmt: skip
efficientnet_b0 = functools.partial(_inverted_residuals, nn.SiLU, True, (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2), (3, 6, 320, 1, 1),
))  # fmt: skip


def mobilenetv3(classes: int) -> nn.Module:
    """Return MobileNetV3-Large (Howard et al.), without dropout."""
    layers = normalized(3, 16, 3, nn.Hardswish, stride=2)
    channels_in = 16
    for size, wide, channels, squeezed, relu, stride in (
        (3, 16, 16, 0, nn.ReLU, 1), (3, 64, 24, 0, nn.ReLU, 2), (3, 72, 24, 0, nn.ReLU, 1),
        (5, 72, 40, 24, nn.ReLU, 2), (5, 120, 40, 32, nn.ReLU, 1), (5, 120, 40, 32, nn.ReLU, 1),
        (3, 240, 80, 0, nn.Hardswish, 2), (3, 200, 80, 0, nn.Hardswish, 1),
        (3, 184, 80, 0, nn.Hardswish, 1), (3, 184, 80, 0, nn.Hardswish, 1),
        (3, 480, 112, 120, nn.Hardswish, 1), (3, 672, 112, 168, nn.Hardswish, 1),
        (5, 672, 160, 168, nn.Hardswish, 2), (5, 960, 160, 240, nn.Hardswish, 1),
        (5, 960, 160, 240, nn.Hardswish, 1),
    ):  # fmt: skip
        gates = [excitation(wide, squeezed, nn.ReLU, nn.Hardsigmoid)] if squeezed else []
        layers.append(inverted_residual(channels_in, wide, channels, relu, size, stride, gates))
        channels_in = channels
    layers += normalized(160, 960, 1, nn.Hardswish)
    return nn.Sequential(*layers, *head(960, 1280), nn.Hardswish(), nn.Linear(1280, classes))


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
            layers.append(Combined(concatenate, inner))
            channels += 32
    return nn.Sequential(*layers, *norm(), *head(channels, classes))


def _unet(channels_in: int, channels: int, levels: int) -> nn.Sequential:
    """Return a level of a U-Net: two convolutions, the levels below, and two convolutions."""
    layers = normalized(channels_in, channels, 3) + normalized(channels, channels, 3)
    if levels:
        below = _unet(channels, 2 * channels, levels - 1)
        raised = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        layers.append(Combined(concatenate, [nn.MaxPool2d(2), below, raised]))
        layers += normalized(2 * channels, channels, 3) + normalized(channels, channels, 3)
    return nn.Sequential(*layers)


def unet(classes: int) -> nn.Module:
    """Return a U-Net (Ronneberger et al.) of width 32, padded and with batch norm.

    It returns scores for each pixel. The sizes of the images must be multiples of 16.
    """
    return nn.Sequential(_unet(3, 32, 4), nn.Conv2d(32, classes, 1))
