"""Fine-tuning the network in NumPy with right and with confused gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import common
import numpy as np
from numpy_network import (
    CLASSES,
    Array,
    Gradients,
    Network,
    Tape,
    backward,
    cross_entropy,
    forward,
    new_head,
    new_network,
    parameters,
)

from onedsl import testing

TEST_IMAGES = 600  # of both tasks, kept away from the training

PRETRAINING_STEPS, PRETRAINING_BATCH, PRETRAINING_RATE = 150, 32, 0.05
FINE_TUNING_BATCH = 8  # small, which is why people freeze the statistics
MOMENTUM = 0.9  # of the optimizer
TRACKING = 0.1  # weight of a batch in the running statistics
EVALUATE_EVERY = 10  # steps
BLOWN_UP = 1e4  # a loss at which a run is stopped

CHECKED_WEIGHTS = 8  # of the first layer, against finite differences
STEP = 1e-6  # of the finite differences, in float64

# The data


class Images(NamedTuple):
    """Images (N, H, W, 1) and their classes, from 0 up."""

    pixels: Array
    labels: Array


class Task(NamedTuple):
    """Digits to tell apart."""

    train: Images
    test: Images


def load_tasks(rng: np.random.Generator) -> tuple[Task, Task]:
    """Split scikit-learn's digits into the classes 0 to 4 and 5 to 9."""
    pixels, labels = common.load_digits()
    order = rng.permutation(len(pixels))
    test, train = (
        Images(pixels[part][..., None], labels[part])
        for part in (order[:TEST_IMAGES], order[TEST_IMAGES:])
    )
    old, new = (
        Task(pick_classes(train, first), pick_classes(test, first)) for first in (0, CLASSES)
    )
    return old, new


def pick_classes(images: Images, first: int) -> Images:
    """Take CLASSES classes, and count them from 0."""
    mask = (first <= images.labels) & (images.labels < first + CLASSES)
    return Images(images.pixels[mask], images.labels[mask] - first)


def draw_batches(rng: np.random.Generator, images: Images, size: int, number: int) -> list[Images]:
    """Draw batches at random."""
    picks = common.draw_picks(rng, len(images.labels), size, number)
    return [Images(images.pixels[pick], images.labels[pick]) for pick in picks]


# The training


class Mode(NamedTuple):
    """Which statistics the forward pass uses, and which gradient the backward pass."""

    frozen_forward: bool
    frozen_gradient: bool

    @property
    def right(self) -> bool:
        """Whether the two fit together."""
        return self.frozen_forward == self.frozen_gradient


FROZEN, FROZEN_CONFUSED = Mode(True, True), Mode(True, False)
BATCH, BATCH_CONFUSED = Mode(False, False), Mode(False, True)
MODES = (FROZEN, FROZEN_CONFUSED, BATCH, BATCH_CONFUSED)


class Run(NamedTuple):
    """What one fine-tuning did."""

    mode: Mode
    gradient_error: float
    """Relative L2 error against finite differences, before the first step."""
    losses: list[float]
    """On the test images, every few steps."""
    accuracy: float
    """On the test images, at the end."""
    cosines: list[list[float]]
    """Every few steps of a right run, between the right and the confused gradient of each layer."""

    @property
    def failed(self) -> bool:
        """Whether it ended worse than guessing, which has a loss of log(CLASSES)."""
        return not self.losses[-1] < math.log(CLASSES)


def run_seed(seed: int, steps: int, rate: float) -> Iterator[Run]:
    """Pretrain one network, and fine-tune it in all modes from there, on the same batches."""
    rng = np.random.default_rng(seed)
    old, new = load_tasks(rng)
    start = new_network(rng)
    batches = draw_batches(rng, old.train, PRETRAINING_BATCH, PRETRAINING_STEPS)
    optimizer = Optimizer(start, PRETRAINING_RATE)
    for batch in batches:
        train_step(start, optimizer, batch, BATCH)
    start = start._replace(head=new_head(rng))
    batches = draw_batches(rng, new.train, FINE_TUNING_BATCH, steps)
    weights = rng.choice(start.layers[0].weight.size, CHECKED_WEIGHTS, replace=False)
    for mode in MODES:
        error = gradient_error(start, batches[0], mode, weights)
        with np.errstate(over="ignore", invalid="ignore"):
            yield fine_tune(copy.deepcopy(start), batches, new.test, mode, rate, error)


def fine_tune(
    network: Network, batches: Sequence[Images], test: Images, mode: Mode, rate: float, error: float
) -> Run:
    """Train on all batches, or until the loss blows up."""
    optimizer = Optimizer(network, rate)
    losses, cosines = [], []
    alive = True
    for step, batch in enumerate(batches):
        if step % EVALUATE_EVERY == 0:
            losses.append(evaluate(network, test)[0] if alive else math.inf)
            if alive and mode.right:
                cosines.append(compare_gradients(network, batch, mode))
        alive = alive and train_step(network, optimizer, batch, mode)
    loss, accuracy = evaluate(network, test)
    losses.append(loss if alive else math.inf)
    return Run(mode, error, np.nan_to_num(losses, nan=math.inf).tolist(), accuracy, cosines)


class Optimizer:
    """Gradient descent with momentum."""

    def __init__(self, network: Network, rate: float) -> None:
        self.parameters = parameters(network)
        self.rate = np.float32(rate)
        self.velocities = [np.zeros_like(parameter) for parameter in self.parameters]

    def step(self, gradients: Gradients) -> None:
        """Change the parameters in place."""
        for parameter, velocity, gradient in zip(
            self.parameters, self.velocities, gradients, strict=True
        ):
            velocity[...] = np.float32(MOMENTUM) * velocity + gradient
            parameter[...] -= self.rate * velocity


def train_step(network: Network, optimizer: Optimizer, batch: Images, mode: Mode) -> bool:
    """Take one step; tell whether there was still a loss to follow."""
    logits, tapes = forward(network, batch.pixels, frozen=mode.frozen_forward)
    loss, diff_logits = cross_entropy(logits, batch.labels)
    if not loss < BLOWN_UP:
        return False
    optimizer.step(backward(network, tapes, diff_logits, frozen=mode.frozen_gradient))
    if not mode.frozen_forward:
        track_statistics(network, tapes)
    return True


def track_statistics(network: Network, tapes: Sequence[Tape]) -> None:
    """Move the running mean and variance towards the batch's."""
    for layer, tape in zip(network.layers, tapes, strict=True):
        for running, now in ((layer.mean, tape.mean), (layer.variance, tape.variance)):
            running[...] += np.float32(TRACKING) * (now - running)


def evaluate(network: Network, test: Images) -> tuple[float, float]:
    """Give loss and accuracy, with the running statistics as in every inference."""
    logits, _ = forward(network, test.pixels, frozen=True)
    loss, _ = cross_entropy(logits, test.labels)
    return loss, float((logits.argmax(1) == test.labels).mean())


def compare_gradients(network: Network, batch: Images, mode: Mode) -> list[float]:
    """Give the cosine between the right and the confused gradient of each layer's weights."""
    logits, tapes = forward(network, batch.pixels, frozen=mode.frozen_forward)
    _, diff_logits = cross_entropy(logits, batch.labels)
    right, confused = (
        backward(network, tapes, diff_logits, frozen=frozen)
        for frozen in (mode.frozen_gradient, not mode.frozen_gradient)
    )
    return [cosine(a, b) for a, b in zip(right[:-1:3], confused[:-1:3], strict=True)]


def cosine(a: Array, b: Array) -> float:
    """Give the cosine of the angle between two arrays; 0 where one of them vanishes."""
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / norms if norms else 0.0


def gradient_error(network: Network, batch: Images, mode: Mode, weights: Array) -> float:
    """Compare the gradient of some weights of the first layer with differences of the loss."""
    logits, tapes = forward(network, batch.pixels, frozen=mode.frozen_forward)
    _, diff_logits = cross_entropy(logits, batch.labels)
    gradients = backward(network, tapes, diff_logits, frozen=mode.frozen_gradient)
    wide = widened(network)
    differences = [
        (shifted_loss(wide, batch, mode, i, STEP) - shifted_loss(wide, batch, mode, i, -STEP))
        / (2 * STEP)
        for i in weights
    ]
    return testing.relative_l2(gradients[0].flat[weights], differences)


def shifted_loss(network: Network, batch: Images, mode: Mode, index: int, shift: float) -> float:
    """Give the loss with one weight of the first layer changed."""
    weight = network.layers[0].weight
    value = weight.flat[index]
    weight.flat[index] = value + shift
    logits, _ = forward(network, batch.pixels, frozen=mode.frozen_forward)
    weight.flat[index] = value
    return cross_entropy(logits, batch.labels)[0]


def widened(network: Network) -> Network:
    """Copy the weights to float64, and with them all that is computed from them."""
    layers = [layer._replace(weight=layer.weight.astype(np.float64)) for layer in network.layers]
    return network._replace(layers=layers)
