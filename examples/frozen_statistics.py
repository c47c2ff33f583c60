"""Batch statistics and frozen statistics need different gradients.

In training, mean and variance are computed from the batch, so the gradient also flows through
them: `BatchNormTrainingBackward`. In fine-tuning they are often frozen, so they are constants:
`BatchNormalizationGrad`. The program compares both gradients of src with finite differences of
either forward pass. Only the matching pairs agree.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import onedsl
from onedsl import testing

argparse.ArgumentParser(description=__doc__).parse_args()

EPSILON, STEP = 1e-5, 1e-4

rng = np.random.default_rng(0)
src = rng.normal(0.5, 1.5, (4, 2, 2, 3))  # images (N, H, W, C)
weights = rng.normal(size=src.shape)  # the loss is sum(weights * dst), so diff_dst is weights
gamma = np.array([0.5, 1.0, 2.0])
mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))


def normalize(x: Any, mean: Any, variance: Any) -> Any:
    """Return the output of the layer."""
    return gamma * (x - mean) / np.sqrt(variance + EPSILON)


def batch_loss(x: Any) -> float:
    """Return the loss with the statistics of the batch."""
    return float((weights * normalize(x, x.mean((0, 1, 2)), x.var((0, 1, 2)))).sum())


def frozen_loss(x: Any) -> float:
    """Return the loss with given statistics."""
    return float((weights * normalize(x, mean, variance)).sum())


def finite_differences(loss: Callable[[Any], float]) -> Any:
    """Return the gradient of the loss with respect to src, one element at a time."""
    gradient = np.empty_like(src)
    for index in np.ndindex(src.shape):
        step = np.zeros_like(src)
        step[index] = STEP
        gradient[index] = (loss(src + step) - loss(src - step)) / (2 * STEP)
    return gradient


inputs = [array.astype(np.float32) for array in (src, weights, mean, variance, gamma)]
tensors, statistics = inputs[:2], inputs[2:]
batch = onedsl.BatchNormTrainingBackward(EPSILON)(*inputs).diff_src
# BatchNormalizationGrad takes statistics of src's rank: here of shape (1, 1, 1, C).
broadcast = (array.reshape(1, 1, 1, -1) for array in statistics)
frozen = onedsl.BatchNormalizationGrad(EPSILON)(*tensors, *broadcast).output_gradient

print(f"{'forward pass':<20}{'gradient':<28}error (relative L2)")
for forward, loss in (("batch statistics", batch_loss), ("frozen statistics", frozen_loss)):
    expected = finite_differences(loss)
    for op, gradient in (
        ("BatchNormTrainingBackward", batch),
        ("BatchNormalizationGrad", frozen),
    ):
        print(f"{forward:<20}{op:<28}{testing.relative_l2(gradient, expected):.1e}")
