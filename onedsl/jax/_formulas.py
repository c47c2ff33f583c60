"""The layers and their gradients in `jax.numpy`, for JAX to differentiate and to split.

Every function takes the op's attributes first. ``devices`` are the axes of a mesh over which the
elements of a channel are split, so that sums run over those devices too.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from .. import _core
from ..operators.batch_norm_training_backward import BatchNormGradients
from ._arguments import Attributes

Devices = tuple[str, ...]


def forward(
    attributes: Attributes,
    src: jax.Array,
    gamma: jax.Array | None,
    beta: jax.Array | None,
    devices: Devices = (),
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize by the batch's own statistics: dst, mean, variance."""
    axes, shape = layout(attributes, src)
    count = count_of(src, axes, devices)
    x = wide(src)
    mean = over(devices, x.sum(axes)) / count
    variance = over(devices, ((x - mean.reshape(shape)) ** 2).sum(axes)) / count
    return normalize(attributes, src, mean, variance, gamma, beta), mean, variance


def normalize(
    attributes: Attributes,
    src: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
    beta: jax.Array | None,
) -> jax.Array:
    """Normalize by given statistics."""
    _, shape = layout(attributes, src)
    rstd = 1 / jnp.sqrt(wide(variance) + attributes.epsilon)
    dst = (wide(src) - wide(mean).reshape(shape)) * rstd.reshape(shape)
    if gamma is not None:
        dst = dst * wide(gamma).reshape(shape)
    if beta is not None:
        dst = dst + wide(beta).reshape(shape)
    return dst.astype(src.dtype)


def backward(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
) -> BatchNormGradients:
    """Compute the gradients."""
    axes, shape = layout(attributes, src)
    mu, var, dy = wide(mean), wide(variance), wide(diff_dst)
    xhat = (wide(src) - mu.reshape(shape)) / jnp.sqrt(var + attributes.epsilon).reshape(shape)
    diff_gamma, diff_beta = (dy * xhat).sum(axes), dy.sum(axes)
    return BatchNormGradients(
        diff_src(attributes, src, diff_dst, mean, variance, gamma, diff_gamma, diff_beta),
        diff_gamma.astype(mean.dtype),
        diff_beta.astype(mean.dtype),
    )


def diff_src(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
    diff_gamma: jax.Array,
    diff_beta: jax.Array,
    devices: Devices = (),
) -> jax.Array:
    """Compute the gradient of src from the sums, which are f32."""
    axes, shape = layout(attributes, src)
    rstd = 1 / jnp.sqrt(wide(variance) + attributes.epsilon)
    dy = wide(diff_dst)
    if attributes.statistics is _core.Statistics.batch:
        count = count_of(src, axes, devices)
        xhat = (wide(src) - wide(mean).reshape(shape)) * rstd.reshape(shape)
        dy = dy - diff_beta.reshape(shape) / count - xhat * diff_gamma.reshape(shape) / count
    scale = rstd if gamma is None else wide(gamma) * rstd
    return (scale.reshape(shape) * dy).astype(src.dtype)


def layout(attributes: Attributes, src: jax.Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the axes that are summed, and the shape that a (C,) array takes beside src."""
    data_format = attributes.data_format
    return data_format.summed_axes(src.ndim), data_format.statistics_shape_beside(src.shape)


def count_of(src: jax.Array, axes: tuple[int, ...], devices: Devices = ()) -> int:
    """Give the elements a channel; 1 where there are none, as their sums are then 0."""
    sizes = [src.shape[axis] for axis in axes]
    count: int = over(devices, 1 if 0 in sizes else math.prod(sizes))
    return count


def over(devices: Devices, value: Any) -> Any:
    """Sum over devices."""
    return jax.lax.psum(value, devices) if devices else value


def wide(array: jax.Array) -> jax.Array:
    """Take it in f32."""
    return array.astype(jnp.float32)
