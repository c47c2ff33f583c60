"""What the layers of other libraries compute by `jax.numpy` alone.

These are batch statistics that onedsl's kernels do not compute, those of the elements that a mask
selects, or of the arrays of all devices or items along a named axis of JAX; and evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import _rules
from ._arguments import FROZEN_LAYER, check, parse_attributes


def evaluate(
    src: Any,
    mean: Any,
    variance: Any,
    gamma: Any,
    beta: Any,
    *,
    residual: Any,
    epsilon: float,
    data_format: Any,
    activation: Any,
    **parameters: Any,
) -> jax.Array:
    """Compute what `batch_norm_frozen` computes.

    JAX differentiates it in forward and reverse mode.
    """
    attributes = parse_attributes(epsilon, data_format, "frozen", activation, **parameters)
    inputs = src, mean, variance, gamma, beta, residual
    others = check(FROZEN_LAYER, attributes.data_format, *inputs)
    dst: jax.Array = _rules.evaluation(attributes, src, *others)
    return dst


def batch_statistics(
    src: Any,
    axes: Sequence[int],
    *,
    mask: Any = None,
    axis_name: Any = None,
    axis_index_groups: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the mean and the biased variance over these axes of src in f32.

    `mask` selects elements where it is not 0, and broadcasts to src. The mean over a named axis is
    the mean of the means, as in Flax and Equinox.
    """
    axes = tuple(axes)
    mask = None if mask is None else jnp.asarray(mask, bool)

    def mean_of(values: jax.Array) -> jax.Array:
        mean = values.mean(axes, keepdims=True, where=mask)
        if axis_name is None:
            return mean
        result: jax.Array = jax.lax.pmean(mean, axis_name, axis_index_groups=axis_index_groups)
        return result

    x = jnp.asarray(src, jnp.float32)
    mean = mean_of(x)
    variance = mean_of((x - mean) ** 2)
    return mean.squeeze(axes), variance.squeeze(axes)
