"""A small network in NumPy: three times convolution, batch norm and ReLU, then a linear layer.

Its batch norms use either statistics, and either of onedsl's two gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

import onedsl

Array = npt.NDArray[Any]
Gradients = list[Array]

EPSILON = 1e-5
BATCH_OP = onedsl.BatchNormTrainingBackward(EPSILON)  # mean and variance are the batch's
FROZEN_OP = onedsl.BatchNormalizationGrad(EPSILON)  # mean and variance are constants

CLASSES = 5
CONVOLUTIONS = ((1, 16, 1), (16, 32, 2), (32, 32, 2))  # channels in, channels out, stride


class Layer(NamedTuple):
    """A 3x3 convolution (9 * channels in, channels out) and its batch norm."""

    weight: Array
    gamma: Array
    beta: Array
    mean: Array
    """Running mean."""
    variance: Array
    """Running biased variance."""
    stride: int


class Network(NamedTuple):
    """All layers."""

    layers: list[Layer]
    head: Array


class Tape(NamedTuple):
    """What a layer's forward pass leaves for its backward pass."""

    shape: tuple[int, ...]
    patches: Array
    src: Array
    mean: Array
    variance: Array
    dst: Array


def new_network(rng: np.random.Generator) -> Network:
    """Draw random weights."""
    layers = []
    for channels_in, channels, stride in CONVOLUTIONS:
        weight = rng.standard_normal((9 * channels_in, channels), np.float32)
        weight *= np.float32(math.sqrt(2 / len(weight)))
        zero, one = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        layers.append(Layer(weight, one, zero, zero.copy(), one.copy(), stride))
    return Network(layers, new_head(rng))


def new_head(rng: np.random.Generator) -> Array:
    """Draw the weights of the last layer."""
    channels = CONVOLUTIONS[-1][1]
    weight = rng.standard_normal((channels, CLASSES), np.float32)
    return weight / np.float32(math.sqrt(channels))


def parameters(network: Network) -> list[Array]:
    """List what is trained, in the order of the gradients."""
    trained = [array for layer in network.layers for array in layer[:3]]
    return [*trained, network.head]


def forward(network: Network, pixels: Array, *, frozen: bool) -> tuple[Array, list[Tape]]:
    """Compute the logits."""
    tapes = []
    x = pixels
    for layer in network.layers:
        patches = to_patches(x, layer.stride)
        src = patches @ layer.weight
        mean, variance = layer.mean, layer.variance
        if not frozen:
            mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))
        dst = (src - mean) / np.sqrt(variance + EPSILON) * layer.gamma + layer.beta
        tapes.append(Tape(x.shape, patches, src, mean, variance, dst))
        x = np.maximum(dst, 0)
    return x.mean((1, 2)) @ network.head, tapes


def backward(
    network: Network, tapes: Sequence[Tape], diff_logits: Array, *, frozen: bool
) -> Gradients:
    """Compute the gradients of the parameters, with either of batch norm's gradients."""
    features = np.maximum(tapes[-1].dst, 0)
    gradients = [features.mean((1, 2)).T @ diff_logits]
    diff_x = np.empty_like(features)
    diff_x[:] = (diff_logits @ network.head.T / features[0, ..., 0].size)[:, None, None]
    for layer, tape in zip(reversed(network.layers), reversed(tapes), strict=True):
        diff_dst = diff_x * (tape.dst > 0)
        diff_src, diff_gamma, diff_beta = batch_norm_backward(layer, tape, diff_dst, frozen=frozen)
        diff_weight = np.tensordot(tape.patches, diff_src, ((0, 1, 2), (0, 1, 2)))
        gradients[:0] = [diff_weight, diff_gamma, diff_beta]
        diff_x = from_patches(diff_src @ layer.weight.T, tape.shape, layer.stride)
    return gradients


def batch_norm_backward(
    layer: Layer, tape: Tape, diff_dst: Array, *, frozen: bool
) -> tuple[Array, Array, Array]:
    """Choose between onedsl's two gradients. This is where they are confused."""
    if not frozen:
        return BATCH_OP(tape.src, diff_dst, tape.mean, tape.variance, layer.gamma)
    statistics = (array.reshape(1, 1, 1, -1) for array in (tape.mean, tape.variance, layer.gamma))
    diff_src, diff_gamma, diff_beta = FROZEN_OP(tape.src, diff_dst, *statistics)
    return diff_src, diff_gamma.reshape(-1), diff_beta.reshape(-1)


def to_patches(x: Array, stride: int) -> Array:
    """Copy the 3x3 surroundings of each pixel into a row."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    return windows.reshape(*windows.shape[:3], -1)


def from_patches(patches: Array, shape: tuple[int, ...], stride: int) -> Array:
    """Add the rows up where they came from: the gradient of to_patches."""
    number, height, width, channels = shape
    padded = np.zeros((number, height + 2, width + 2, channels), patches.dtype)
    windows = patches.reshape(*patches.shape[:3], channels, 3, 3)
    for i in range(3):
        for j in range(3):
            padded[:, i : i + height : stride, j : j + width : stride] += windows[..., i, j]
    return padded[:, 1:-1, 1:-1]


def cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Compute the loss and its gradient with respect to the logits."""
    shifted = logits - logits.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    diff_logits = np.exp(logs)
    diff_logits[rows, labels] -= 1
    return float(-logs[rows, labels].mean()), diff_logits / np.float32(len(labels))
