"""The layers in `jax.numpy`, and how JAX differentiates them.

Every function takes the op's attributes first, as a static argument.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from .. import _core
from ..operators.batch_norm_training_backward import BatchNormGradients
from ._arguments import Attributes
from ._callback import call_onedsl


def _formulas(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
) -> BatchNormGradients:
    """Write down what the op computes, for JAX to differentiate."""
    axes, shape = _layout(attributes, src)
    x, dy, mu, var = (_wide(array) for array in (src, diff_dst, mean, variance))
    rstd = 1 / jnp.sqrt(var + attributes.epsilon)
    xhat = (x - mu.reshape(shape)) * rstd.reshape(shape)
    diff_beta = dy.sum(axes)
    diff_gamma = (dy * xhat).sum(axes)
    if attributes.statistics is _core.Statistics.batch:
        count = _count(src, axes)
        dy = dy - diff_beta.reshape(shape) / count - xhat * diff_gamma.reshape(shape) / count
    scale = rstd if gamma is None else _wide(gamma) * rstd
    return BatchNormGradients(
        (scale.reshape(shape) * dy).astype(src.dtype),
        diff_gamma.astype(mean.dtype),
        diff_beta.astype(mean.dtype),
    )


def _gradients_jvp(attributes: Attributes, primals: Any, tangents: Any) -> Any:
    _, tangents_out = jax.jvp(functools.partial(_formulas, attributes), primals, tangents)
    return call_onedsl(attributes, *primals), tangents_out


_differentiable = jax.custom_jvp(call_onedsl, nondiff_argnums=(0,))
_differentiable.defjvp(_gradients_jvp)
gradients = jax.jit(_differentiable, static_argnums=0)


def _forward(
    attributes: Attributes, src: jax.Array, gamma: jax.Array | None, beta: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    axes, shape = _layout(attributes, src)
    x = _wide(src)
    mean = x.sum(axes) / _count(src, axes)
    variance = ((x - mean.reshape(shape)) ** 2).sum(axes) / _count(src, axes)
    return _frozen_forward(attributes, src, mean, variance, gamma, beta), mean, variance


def _forward_vjp(attributes: Attributes, src: Any, gamma: Any, beta: Any) -> Any:
    src, gamma, beta = _values((src, gamma, beta))
    dst, mean, variance = _forward(attributes, src, gamma, beta)
    return (dst, mean, variance), (src, mean, variance, gamma, beta)


def _backward(attributes: Attributes, residuals: Any, cotangents: Any) -> Any:
    src, mean, variance, gamma, beta = residuals
    diff_dst, diff_mean, diff_variance = cotangents
    results = gradients(attributes, src, _array(diff_dst), mean, variance, gamma)
    diff_src = results.diff_src
    # A pass over the tensor that is done only where the loss depends on the statistics.
    if not (isinstance(diff_mean, SymbolicZero) and isinstance(diff_variance, SymbolicZero)):
        axes, shape = _layout(attributes, src)
        slope = _array(diff_mean), 2 * _array(diff_variance)
        constant, linear = ((term / _count(src, axes)).reshape(shape) for term in slope)
        through = constant + linear * (_wide(src) - mean.reshape(shape))
        diff_src = (_wide(diff_src) + through).astype(src.dtype)
    return (
        diff_src,
        None if gamma is None else results.diff_gamma,
        None if beta is None else results.diff_beta,
    )


# Zeros are symbolic, so that the pass above can be left out.
_with_vjp = jax.custom_vjp(_forward, nondiff_argnums=(0,))
_with_vjp.defvjp(_forward_vjp, _backward, symbolic_zeros=True)
batch_norm = jax.jit(_with_vjp, static_argnums=0)


def _frozen_forward(
    attributes: Attributes,
    src: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
    beta: jax.Array | None,
) -> jax.Array:
    _, shape = _layout(attributes, src)
    rstd = 1 / jnp.sqrt(_wide(variance) + attributes.epsilon)
    dst = (_wide(src) - _wide(mean).reshape(shape)) * rstd.reshape(shape)
    if gamma is not None:
        dst = dst * _wide(gamma).reshape(shape)
    if beta is not None:
        dst = dst + _wide(beta).reshape(shape)
    return dst.astype(src.dtype)


def _frozen_forward_vjp(attributes: Attributes, *arguments: Any) -> Any:
    return _frozen_forward(attributes, *arguments), arguments


def _frozen_backward(attributes: Attributes, residuals: Any, diff_dst: jax.Array) -> Any:
    src, mean, variance, gamma, beta = residuals
    results = gradients(attributes, src, diff_dst, mean, variance, gamma)
    square = 1 / (_wide(variance) + attributes.epsilon)
    scale = -1 if gamma is None else -_wide(gamma)
    diff_mean = scale * jnp.sqrt(square) * _wide(results.diff_beta)
    diff_variance = scale / 2 * square * _wide(results.diff_gamma)
    return (
        results.diff_src,
        diff_mean.astype(mean.dtype),
        diff_variance.astype(mean.dtype),
        None if gamma is None else results.diff_gamma,
        None if beta is None else results.diff_beta,
    )


_frozen_with_vjp = jax.custom_vjp(_frozen_forward, nondiff_argnums=(0,))
_frozen_with_vjp.defvjp(_frozen_forward_vjp, _frozen_backward)
batch_norm_frozen = jax.jit(_frozen_with_vjp, static_argnums=0)


def _layout(attributes: Attributes, src: jax.Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the axes that are summed, and the shape that a (C,) array takes beside src."""
    data_format = attributes.data_format
    return data_format.summed_axes(src.ndim), data_format.statistics_shape_beside(src.shape)


def _count(src: jax.Array, axes: tuple[int, ...]) -> int:
    """Give the elements a channel; 1 where there are none, as their sums are then 0."""
    count: int = math.prod(src.shape[axis] for axis in axes)
    return max(1, count)


def _wide(array: jax.Array) -> jax.Array:
    return array.astype(jnp.float32)


def _array(cotangent: Any) -> jax.Array:
    zero = isinstance(cotangent, SymbolicZero)
    return jnp.zeros(cotangent.shape, cotangent.dtype) if zero else cotangent


def _values(primals: Any) -> Any:
    """Take what `jax.custom_vjp` with symbolic zeros wraps."""
    return jax.tree.map(lambda primal: primal.value, primals)
