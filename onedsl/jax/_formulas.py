"""The layers and their gradients in `jax.numpy`, which JAX can differentiate and partition.

The first argument of every layer and gradient is the attributes. The argument ``mesh_axes``
contains the names of the mesh axes over which the elements of a channel are sharded: sums include
all devices along these axes.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..operators.batch_norm_training_backward import BatchNormGradients
from ._arguments import Attributes
from ._mesh import MeshAxes


def forward(
    attributes: Attributes, src: Array, *affine: Array | None, mesh_axes: MeshAxes = ()
) -> tuple[Array, Array, Array]:
    """Normalize by the batch statistics; return dst, and mean and variance in f32."""
    axes, shape = summed_axes_and_shape(attributes, src)
    count = elements_per_channel(src, axes, mesh_axes)
    x = to_f32(src)
    mean = _psum(x.sum(axes), mesh_axes) / count
    variance = _psum(((x - mean.reshape(shape)) ** 2).sum(axes), mesh_axes) / count
    return normalize(attributes, src, mean, variance, *affine), mean, variance


def normalize(attributes: Attributes, *inputs: Any) -> Array:
    """Normalize by the given statistics."""
    src, mean, variance, gamma, beta = inputs
    _, shape = summed_axes_and_shape(attributes, src)
    dst, _ = _xhat_and_rstd(attributes, src, mean, variance)
    if gamma is not None:
        dst = dst * to_f32(gamma).reshape(shape)
    if beta is not None:
        dst = dst + to_f32(beta).reshape(shape)
    return dst.astype(src.dtype)


def backward(
    attributes: Attributes,
    *inputs: Any,
    sums: tuple[Array, Array] | None = None,
    mesh_axes: MeshAxes = (),
) -> BatchNormGradients[Array]:
    """Compute diff_src, diff_gamma and diff_beta. `sums` are the last two in f32, if known."""
    src, diff_dst, mean, variance, gamma = inputs
    axes, shape = summed_axes_and_shape(attributes, src)
    xhat, rstd = _xhat_and_rstd(attributes, src, mean, variance)
    dy = to_f32(diff_dst)
    if sums is None:
        sums = (dy * xhat).sum(axes), dy.sum(axes)
    if attributes.statistics == "batch":
        count = elements_per_channel(src, axes, mesh_axes)
        diff_gamma, diff_beta = (total.reshape(shape) / count for total in sums)
        dy = dy - diff_beta - xhat * diff_gamma
    scale = rstd if gamma is None else to_f32(gamma) * rstd
    diff_src = (scale.reshape(shape) * dy).astype(src.dtype)
    return BatchNormGradients(diff_src, *(total.astype(mean.dtype) for total in sums))


def _xhat_and_rstd(
    attributes: Attributes, src: Array, mean: Array, variance: Array
) -> tuple[Array, Array]:
    """Compute xhat = (src - mean) * rstd and rstd = 1 / sqrt(variance + epsilon), in f32."""
    _, shape = summed_axes_and_shape(attributes, src)
    rstd = 1 / jnp.sqrt(to_f32(variance) + attributes.epsilon)
    return (to_f32(src) - to_f32(mean).reshape(shape)) * rstd.reshape(shape), rstd


def summed_axes_and_shape(
    attributes: Attributes, src: Array
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes over which statistics are summed, and src's shape with size 1 in these axes.

    An array of shape (C,) that is reshaped to the second result broadcasts to src.
    """
    data_format = attributes.data_format
    return data_format.summed_axes(src.ndim), data_format.broadcast_shape(src.shape)


def elements_per_channel(src: Array, axes: tuple[int, ...], mesh_axes: MeshAxes = ()) -> int:
    """Return the number of elements per channel, on all devices along the mesh axes.

    The result for an empty src is 1 per device instead of 0, so that 0 / count is 0.
    """
    sizes = [src.shape[axis] for axis in axes]
    count: int = _psum(1 if 0 in sizes else math.prod(sizes), mesh_axes)
    return count


def _psum(value: Any, mesh_axes: MeshAxes) -> Any:
    """Return the sum of a value over all devices along the mesh axes."""
    return jax.lax.psum(value, mesh_axes) if mesh_axes else value


def to_f32(array: Array) -> Array:
    """Convert an array to f32."""
    return array.astype(jnp.float32)
