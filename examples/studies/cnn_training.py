"""Training a small residual network with torch's batch-norm layers and with onedsl's, in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import onedsl.torch
from onedsl.bench import Watch

TRAIN_IMAGES = 1400  # of 1797; the others are for the test
WIDTHS = (32, 64, 128)  # channels of the blocks, at 16x16, 8x8 and 4x4 pixels
CLASSES = 10
RATE, MOMENTUM = 0.05, 0.9  # the rate falls to 0 along a cosine

WARM_UP = 3  # steps that are trained but not timed
JUDGED = 10  # losses: later ones part, as they do for torch alone, because rounding errors grow

# The data


class Images(NamedTuple):
    """Images (N, 1, 16, 16) and their classes."""

    pixels: Tensor
    labels: Tensor

    def pick(self, indices: Any) -> Images:
        """Take some of them."""
        return Images(self.pixels[indices], self.labels[indices])


def load_images(rng: np.random.Generator) -> tuple[Images, Images]:
    """Split the digits into those for the training and those for the test."""
    digits, labels = common.load_digits()
    pixels = functional.interpolate(
        torch.from_numpy(digits)[:, None], scale_factor=2, mode="bilinear"
    )
    images = Images(pixels / pixels.std(), torch.from_numpy(labels))
    order = torch.from_numpy(rng.permutation(len(digits)))
    return images.pick(order[:TRAIN_IMAGES]), images.pick(order[TRAIN_IMAGES:])


def draw_batches(rng: np.random.Generator, images: Images, size: int, number: int) -> list[Images]:
    """Draw batches at random."""
    picks = common.draw_picks(rng, len(images.labels), size, number)
    return [images.pick(torch.from_numpy(pick)) for pick in picks]


# The network


class Block(nn.Module):
    """ResNet's block: two convolutions and a shortcut around them, each with batch norm."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(channels_in, channels, 3, stride)
        self.second = convolution(channels, channels, 3)
        self.shortcut: nn.Module = nn.Identity()
        if channels_in != channels:
            self.shortcut = convolution(channels_in, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.second(functional.relu(self.first(x)))
        return functional.relu(y + self.shortcut(x))


def convolution(channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Module:
    """Make a convolution and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(channels),
    )


def new_network(seed: int) -> nn.Module:
    """Draw random weights."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [convolution(1, WIDTHS[0], 3), nn.ReLU()]
    for channels_in, channels in zip(WIDTHS[:1] + WIDTHS, WIDTHS, strict=False):
        layers.append(Block(channels_in, channels, 1 if channels_in == channels else 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], CLASSES))
    return nn.Sequential(*layers, *head)


# The training


class Configuration(NamedTuple):
    """A type to compute in, and where the channels lie in memory."""

    dtype: str
    memory: str

    @property
    def memory_format(self) -> torch.memory_format:
        """The format in torch's words."""
        last = self.memory == "channels_last"
        return torch.channels_last if last else torch.contiguous_format


CONFIGURATIONS = tuple(
    Configuration(dtype, memory)
    for dtype in ("f32", "bf16")
    for memory in ("contiguous", "channels_last")
)


class Step(NamedTuple):
    """What a training step took, in seconds, and its loss."""

    loss: float
    whole: float
    """Forward and backward pass and the optimizer."""
    forward: float
    """Of the batch-norm layers alone."""
    backward: float
    """Of the batch-norm layers alone."""

    @property
    def batch_norm(self) -> float:
        """Both passes of the batch-norm layers."""
        return self.forward + self.backward


class Run(NamedTuple):
    """What one network did."""

    steps: list[Step]
    accuracy: float
    """On the test images, after the training."""

    @property
    def losses(self) -> np.ndarray[Any, Any]:
        """The losses of all steps."""
        return np.array([step.loss for step in self.steps])

    def samples(self, part: str) -> list[float]:
        """Give the seconds of one part, of every step that counts."""
        return [getattr(step, part) for step in self.steps[WARM_UP:] or self.steps]


class Pair(NamedTuple):
    """Both runs of a configuration."""

    torch: Run
    onedsl: Run
    disturbed: bool
    """Whether other programs wanted CPUs that the timings needed."""

    def speed_up(self, part: str = "whole") -> tuple[float, float, float]:
        """Give torch's time over onedsl's: quartiles of the ratios of steps on the same batch."""
        pairs = zip(self.torch.samples(part), self.onedsl.samples(part), strict=True)
        low, middle, high = np.percentile([a / b for a, b in pairs], (25, 50, 75))
        return low, middle, high

    @property
    def apart(self) -> float:
        """How far the losses are from each other."""
        return differ(self.torch, self.onedsl)


Pairs = dict[Configuration, Pair]


def differ(one: Run, other: Run) -> float:
    """Give the mean difference of two runs' first losses over their mean."""
    ours, theirs = one.losses[:JUDGED], other.losses[:JUDGED]
    return float(np.abs(ours - theirs).mean() / theirs.mean())


class Stopwatch:
    """Seconds that the batch-norm layers of a model take."""

    def __init__(self, model: nn.Module) -> None:
        self.forward = self.backward = self.begin = 0.0
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_pre_hook(self.start)
                layer.register_forward_hook(self.stop_forward)

    def start(self, *_: object) -> None:
        """Begin a layer's pass."""
        self.begin = time.perf_counter()

    def stop_forward(self, _layer: nn.Module, _inputs: object, output: Tensor) -> None:
        """End a layer's forward pass, and wait for its backward pass."""
        self.forward += time.perf_counter() - self.begin
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(self.start)
            output.grad_fn.register_hook(self.stop_backward)

    def stop_backward(self, *_: object) -> None:
        """End a layer's backward pass."""
        self.backward += time.perf_counter() - self.begin


class Trainer:
    """A network that learns."""

    def __init__(self, model: nn.Module, configuration: Configuration, steps: int) -> None:
        self.configuration = configuration
        self.model = model.to(memory_format=configuration.memory_format)
        self.optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.watch = Stopwatch(model)
        self.steps: list[Step] = []

    def step(self, batch: Images) -> None:
        """Take one step, and its time."""
        self.watch.forward = self.watch.backward = 0.0
        begin = time.perf_counter()
        loss = functional.cross_entropy(self.logits(batch.pixels), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        whole = time.perf_counter() - begin
        self.schedule.step()
        self.steps.append(Step(loss.item(), whole, self.watch.forward, self.watch.backward))

    def logits(self, pixels: Tensor) -> Tensor:
        """Apply the network."""
        pixels = pixels.contiguous(memory_format=self.configuration.memory_format)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.configuration.dtype == "bf16"):
            logits: Tensor = self.model(pixels)
        return logits.float()

    def finish(self, test: Images) -> Run:
        """Test what was learnt."""
        self.model.eval()
        with torch.no_grad():
            right = self.logits(test.pixels).argmax(1) == test.labels
        return Run(self.steps, right.float().mean().item())


def train(configuration: Configuration, seed: int, batches: Sequence[Images], test: Images) -> Pair:
    """Train both networks, step by step in turns."""
    theirs = Trainer(new_network(seed), configuration, len(batches))
    ours = Trainer(onedsl.torch.convert(new_network(seed)), configuration, len(batches))
    watch = Watch()
    for step, batch in enumerate(batches):
        # Whoever comes second may find the batch in the cache, so they swap.
        for trainer in (theirs, ours) if step % 2 else (ours, theirs):
            trainer.step(batch)
    disturbed = watch.disturbed(torch.get_num_threads())
    return Pair(theirs.finish(test), ours.finish(test), disturbed)
