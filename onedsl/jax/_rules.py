"""How JAX differentiates the layers.

Every function takes the op's attributes first, as a static argument.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from . import _formulas, _mesh
from ._arguments import Attributes


def _with_jvp(call: Any, formulas: Any) -> Any:
    """Let JAX differentiate the formulas, as often as it likes, in place of a call."""
    differentiable = jax.custom_jvp(call, nondiff_argnums=(0,))

    def jvp(attributes: Attributes, primals: Any, tangents: Any) -> Any:
        _, tangents_out = jax.jvp(functools.partial(formulas, attributes), primals, tangents)
        return differentiable(attributes, *primals), tangents_out

    differentiable.defjvp(jvp)
    return differentiable


_differentiable = _with_jvp(_mesh.backward, _formulas.backward)
_forward = _with_jvp(_mesh.forward, _formulas.forward)


@functools.partial(jax.jit, static_argnums=0)
def gradients(attributes: Attributes, *inputs: Any) -> Any:
    """Compute the gradients."""
    return _differentiable(attributes, *_mesh.together(attributes, *inputs))


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
        axes, shape = _formulas.layout(attributes, src)
        slope = _array(diff_mean), 2 * _array(diff_variance)
        constant, linear = ((term / _formulas.count_of(src, axes)).reshape(shape) for term in slope)
        through = constant + linear * (_formulas.wide(src) - mean.reshape(shape))
        diff_src = (_formulas.wide(diff_src) + through).astype(src.dtype)
    return (
        diff_src,
        None if gamma is None else results.diff_gamma,
        None if beta is None else results.diff_beta,
    )


# Zeros are symbolic, so that the pass above can be left out.
_with_vjp = jax.custom_vjp(_forward, nondiff_argnums=(0,))
_with_vjp.defvjp(_forward_vjp, _backward, symbolic_zeros=True)


@functools.partial(jax.jit, static_argnums=0)
def batch_norm(attributes: Attributes, *inputs: Any) -> Any:
    """Normalize by the batch's own statistics."""
    return _with_vjp(attributes, *_mesh.together(attributes, *inputs))


def _frozen_forward_vjp(attributes: Attributes, *arguments: Any) -> Any:
    return _formulas.normalize(attributes, *arguments), arguments


def _frozen_backward(attributes: Attributes, residuals: Any, diff_dst: jax.Array) -> Any:
    src, mean, variance, gamma, beta = residuals
    results = gradients(attributes, src, diff_dst, mean, variance, gamma)
    square = 1 / (_formulas.wide(variance) + attributes.epsilon)
    scale = -1 if gamma is None else -_formulas.wide(gamma)
    diff_mean = scale * jnp.sqrt(square) * _formulas.wide(results.diff_beta)
    diff_variance = scale / 2 * square * _formulas.wide(results.diff_gamma)
    return (
        results.diff_src,
        diff_mean.astype(mean.dtype),
        diff_variance.astype(mean.dtype),
        None if gamma is None else results.diff_gamma,
        None if beta is None else results.diff_beta,
    )


_frozen_with_vjp = jax.custom_vjp(_formulas.normalize, nondiff_argnums=(0,))
_frozen_with_vjp.defvjp(_frozen_forward_vjp, _frozen_backward)


@functools.partial(jax.jit, static_argnums=0)
def batch_norm_frozen(attributes: Attributes, *inputs: Any) -> Any:
    """Normalize by given statistics."""
    return _frozen_with_vjp(attributes, *_mesh.together(attributes, *inputs))


def _array(cotangent: Any) -> jax.Array:
    zero = isinstance(cotangent, SymbolicZero)
    return jnp.zeros(cotangent.shape, cotangent.dtype) if zero else cotangent


def _values(primals: Any) -> Any:
    """Take what `jax.custom_vjp` with symbolic zeros wraps."""
    return jax.tree.map(lambda primal: primal.value, primals)
