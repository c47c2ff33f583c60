"""The layers and their gradients in `jax.numpy`, which JAX can differentiate and partition.

The first argument of every layer and gradient is the attributes. The argument ``mesh_axes``
contains the names of the mesh axes over which the elements of a channel are sharded: sums include
all devices along these axes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..operators.attributes import ACTIVATIONS
from ..operators.batch_norm_act_training_backward import BatchNormActGradients
from ._arguments import Attributes
from ._mesh import MeshAxes


def forward(
    attributes: Attributes, src: Array, *others: Array | None, mesh_axes: MeshAxes = ()
) -> tuple[Array, Array, Array]:
    """Compute the training layer; return dst, and mean and variance in f32.

    `others` are gamma, beta and residual.
    """
    axes, shape = summed_axes_and_shape(attributes, src)
    count = elements_per_channel(src, axes, mesh_axes)
    x = to_f32(src)
    mean = _psum(x.sum(axes), mesh_axes) / count
    variance = _psum(((x - mean.reshape(shape)) ** 2).sum(axes), mesh_axes) / count
    return frozen_layer(attributes, src, mean, variance, *others), mean, variance


def frozen_layer(attributes: Attributes, src: Array, *others: Any) -> Array:
    """Compute the layer with the given statistics.

    `others` are mean, variance, gamma, beta and residual.
    """
    value = _activate(attributes, _argument(attributes, src, *others))
    return value.astype(src.dtype)


def _argument(attributes: Attributes, *inputs: Any) -> Array:
    """Compute the argument of the activation, in f32."""
    src, mean, variance, gamma, beta, residual = inputs
    _, shape = summed_axes_and_shape(attributes, src)
    value, _ = _xhat_and_rstd(attributes, src, mean, variance)
    if gamma is not None:
        value = value * to_f32(gamma).reshape(shape)
    if beta is not None:
        value = value + to_f32(beta).reshape(shape)
    return value if residual is None else value + to_f32(residual)


# In these forms, JAX's derivatives at the bounds are those of the kernels.
_ACTIVATIONS: dict[str, Callable[[Array, float], Array]] = {
    "relu": lambda y, clip: jnp.where(y <= 0, 0, jnp.where(y >= clip, clip, y)),
    "leaky_relu": lambda y, slope: jnp.where(y > 0, y, slope * y),
    "silu": lambda y, _: jax.nn.silu(y),
    "hardswish": lambda y, _: y * jnp.where(y <= -3, 0, jnp.where(y >= 3, 6, y + 3)) / 6,
    "gelu": lambda y, _: jax.nn.gelu(y, approximate=False),
    "gelu_tanh": lambda y, _: jax.nn.gelu(y, approximate=True),
}


def _activate(attributes: Attributes, value: Array) -> Array:
    """Compute the activation, if there is one."""
    if attributes.activation is None:
        return value
    parameter = attributes.parameter
    if parameter is None:
        parameter = ACTIVATIONS[attributes.activation].default
    return _ACTIVATIONS[attributes.activation](value, parameter)


def diff_of_argument(attributes: Attributes, diff_dst: Array, *inputs: Any) -> Array:
    """Compute the gradient of the activation's argument in f32, from the inputs of the layer."""
    diff = to_f32(diff_dst)
    if attributes.activation is not None:
        value = _argument(attributes, *inputs)
        _, pull_back = jax.vjp(functools.partial(_activate, attributes), value)
        (diff,) = pull_back(diff)
    return diff


def backward(
    attributes: Attributes,
    *inputs: Any,
    sums: tuple[Array, Array] | None = None,
    mesh_axes: MeshAxes = (),
) -> BatchNormActGradients[Array]:
    """Compute the gradients. `sums` are diff_gamma and diff_beta in f32, if known."""
    src, diff_dst, mean, variance, gamma, beta, residual = inputs
    axes, shape = summed_axes_and_shape(attributes, src)
    xhat, rstd = _xhat_and_rstd(attributes, src, mean, variance)
    dy = diff_of_argument(attributes, diff_dst, src, mean, variance, gamma, beta, residual)
    diff_residual = None if residual is None else dy.astype(src.dtype)
    if sums is None:
        sums = (dy * xhat).sum(axes), dy.sum(axes)
    if attributes.statistics == "batch":
        count = elements_per_channel(src, axes, mesh_axes)
        of_xhat, of_one = (total.reshape(shape) / count for total in sums)
        dy = dy - of_one - xhat * of_xhat
    scale = rstd if gamma is None else to_f32(gamma) * rstd
    diff_src = (scale.reshape(shape) * dy).astype(src.dtype)
    diff_gamma, diff_beta = (total.astype(mean.dtype) for total in sums)
    return BatchNormActGradients(diff_src, diff_gamma, diff_beta, diff_residual)


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
