"""Differentiation rules of the layers and of the gradient.

The first argument of every function is the attributes, a static argument of JAX.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from ..operators.batch_norm_act_training_backward import BatchNormActGradients
from . import _call, _formulas, _mesh
from ._arguments import Attributes


def _with_jvp(call: Any, formulas: Any) -> Any:
    """Return the call, differentiable to any order by JAX's derivatives of `formulas`.

    `formulas` is a function in `jax.numpy` that computes the same results as the call.
    """
    differentiable = jax.custom_jvp(call, nondiff_argnums=(0,))

    def jvp(attributes: Attributes, primals: Any, tangents: Any) -> Any:
        _, tangents_out = jax.jvp(functools.partial(formulas, attributes), primals, tangents)
        return differentiable(attributes, *primals), tangents_out

    differentiable.defjvp(jvp)
    return differentiable


def _summing_backward(attributes: Attributes, *inputs: Any, mesh_axes: _mesh.MeshAxes) -> Any:
    """Compute the gradients if this device has only some elements of each channel.

    onedsl computes diff_gamma and diff_beta for this device's elements. They are added over the
    devices, and `jax.numpy` computes diff_src from the totals. For batch statistics, the diff_src
    that onedsl computed is discarded; it costs one of six passes over memory of src's size.
    """
    src, diff_dst, mean, *_ = inputs
    local_attributes = attributes
    if attributes.activation is None:  # these sums do not depend on the kind of the statistics
        local_attributes = dataclasses.replace(attributes, statistics="frozen")
    # Convert to f32, so that the sums over devices are f32.
    others = *jax.tree.map(_formulas.to_f32, inputs[2:6]), inputs[6]
    local = _call.backward(local_attributes, src, diff_dst, *others)
    sums = jax.lax.psum((local.diff_gamma, local.diff_beta), mesh_axes)
    if attributes.statistics == "frozen":
        return BatchNormActGradients(local.diff_src, *(s.astype(mean.dtype) for s in sums))
    return _formulas.backward(attributes, *inputs, sums=sums, mesh_axes=mesh_axes)


_differentiable_backward = _with_jvp(
    _mesh.partitioned(_call.backward, _summing_backward), _formulas.backward
)
_differentiable_forward = _with_jvp(
    _mesh.partitioned(_call.forward, _formulas.forward), _formulas.forward
)


def _jitted(name: str, call: Any) -> Any:
    """Return a jitted call that matches the shardings of the arrays first; JAX shows its name."""

    def matched(attributes: Attributes, *inputs: Any) -> Any:
        return call(attributes, *_mesh.match_shardings(attributes, *inputs))

    matched.__name__ = name
    return jax.jit(matched, static_argnums=0)


gradients = _jitted("batch_norm_backward", _differentiable_backward)


def _forward_rule(attributes: Attributes, *primals: Any) -> Any:
    """Return the results of the training layer, and the residuals for `_backward_rule`."""
    # With symbolic_zeros=True, jax.custom_vjp wraps each argument.
    src, *others = jax.tree.map(lambda primal: primal.value, primals)
    dst, mean, variance = _differentiable_forward(attributes, src, *others)
    return (dst, mean, variance), (src, mean, variance, *others)


def _backward_rule(attributes: Attributes, residuals: Any, cotangents: Any) -> Any:
    """Return the gradients of the training layer, by src, gamma, beta and residual."""
    src, mean, variance, gamma, beta, residual = residuals
    diff_dst, diff_mean, diff_variance = cotangents
    diff_dst = _instantiate(diff_dst)
    has_activation = attributes.activation is not None
    recomputed = (beta, residual) if has_activation else (None, None)
    results = gradients(attributes, src, diff_dst, mean, variance, gamma, *recomputed)
    diff_residual = results.diff_residual if has_activation else diff_dst
    diff_src = results.diff_src
    # Only a loss that depends on the statistics needs this further pass over the tensor.
    if not (isinstance(diff_mean, SymbolicZero) and isinstance(diff_variance, SymbolicZero)):
        axes, shape = _formulas.summed_axes_and_shape(attributes, src)
        count = _formulas.elements_per_channel(src, axes)
        constant = (_instantiate(diff_mean) / count).reshape(shape)
        slope = (2 * _instantiate(diff_variance) / count).reshape(shape)
        through_statistics = constant + slope * (_formulas.to_f32(src) - mean.reshape(shape))
        diff_src = (_formulas.to_f32(diff_src) + through_statistics).astype(src.dtype)
    return (
        diff_src,
        None if gamma is None else results.diff_gamma,
        None if beta is None else results.diff_beta,
        None if residual is None else diff_residual,
    )


# With symbolic_zeros, a cotangent is a SymbolicZero if the loss does not depend on that result.
_training_layer = jax.custom_vjp(_differentiable_forward, nondiff_argnums=(0,))
_training_layer.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)


batch_norm = _jitted("batch_norm", _training_layer)


def _frozen_forward_rule(attributes: Attributes, *arguments: Any) -> Any:
    """Return the result of the frozen layer, and the residuals for `_frozen_backward_rule`."""
    return _formulas.frozen_layer(attributes, *arguments), arguments


def _frozen_backward_rule(attributes: Attributes, residuals: Any, diff_dst: jax.Array) -> Any:
    """Return the gradients with respect to all six arrays of the frozen layer."""
    src, mean, variance, gamma, beta, residual = residuals
    diff = _formulas.diff_of_argument(attributes, diff_dst, *residuals).astype(src.dtype)
    alone = attributes.without_activation
    results = gradients(alone, src, diff, mean, variance, gamma, None, None)
    rstd_squared = 1 / (_formulas.to_f32(variance) + attributes.epsilon)
    scale = -1 if gamma is None else -_formulas.to_f32(gamma)
    diff_mean = scale * jnp.sqrt(rstd_squared) * _formulas.to_f32(results.diff_beta)
    diff_variance = scale / 2 * rstd_squared * _formulas.to_f32(results.diff_gamma)
    return (
        results.diff_src,
        diff_mean.astype(mean.dtype),
        diff_variance.astype(mean.dtype),
        None if gamma is None else results.diff_gamma,
        None if beta is None else results.diff_beta,
        None if residual is None else diff,
    )


_frozen_layer = jax.custom_vjp(_formulas.frozen_layer, nondiff_argnums=(0,))
_frozen_layer.defvjp(_frozen_forward_rule, _frozen_backward_rule)


batch_norm_frozen = _jitted("batch_norm_frozen", _frozen_layer)
evaluation = _jitted("batch_norm_evaluation", _formulas.frozen_layer)


def _instantiate(cotangent: Any) -> jax.Array:
    """Return the cotangent as an array; a symbolic zero becomes an array of zeros."""
    is_zero = isinstance(cotangent, SymbolicZero)
    return jnp.zeros(cotangent.shape, cotangent.dtype) if is_zero else cotangent
