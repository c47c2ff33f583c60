"""Helpers of the JAX tests."""

import jax
import jax.numpy as jnp
import numpy as np
from cases.activations import ACTIVATIONS
from helpers import EPSILON
from jax import experimental

from onedsl import testing

# JAX 0.6 has it in jax.experimental.
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else experimental.enable_x64


def in_float64(function, *values):
    """Return the results of a function on float64 arrays, as NumPy arrays."""
    with enable_x64(True):
        wide = [None if v is None else jnp.asarray(np.asarray(v, np.float64)) for v in values]
        return jax.tree.map(np.asarray, jax.jit(function)(*wide))


AFTER = [({}, True), ({"activation": "silu"}, True)]
AFTER += [(row.attributes, i % 2 == 1) for i, row in enumerate(ACTIVATIONS) if row.name != "silu"]
"""What follows batch norm: options of the layers, and whether a residual is added."""


def activated(y, **attributes):
    """Return JAX's function of an activation, or y."""
    rows = [row for row in ACTIVATIONS if row.attributes == attributes]
    return rows[0].jax(jax.nn, y) if attributes else y


def composed(
    src,
    gamma=None,
    beta=None,
    mean=None,
    variance=None,
    data_format="NXC",
    residual=None,
    **attributes,
):
    """Compute the layer with jax.numpy in src's dtype, as a reference that JAX differentiates.

    Return dst and the statistics, which are src's own unless they are given.

    This is the second formula of the tests, and it is independent of onedsl.testing on purpose: it
    has the forward pass alone, and JAX derives the gradients, also those of higher order. An error
    in the written gradients of onedsl.testing is none of this function.
    """
    channel = src.ndim - 1 if data_format == "NXC" else 1
    axes = tuple(axis for axis in range(src.ndim) if axis != channel)
    shape = tuple(size if axis == channel else 1 for axis, size in enumerate(src.shape))
    if mean is None:
        mean, variance = src.mean(axes), src.var(axes)
    dst = (src - mean.reshape(shape)) / jnp.sqrt(variance + EPSILON).reshape(shape)
    dst = dst if gamma is None else dst * gamma.reshape(shape)
    dst = dst if beta is None else dst + beta.reshape(shape)
    dst = dst if residual is None else dst + residual
    return activated(dst, **attributes), mean, variance


def assert_close(actual, expected, tolerance):
    """Compare the arrays of two pytrees by their relative L2 errors."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert testing.relative_l2(a, b) <= tolerance, testing.relative_l2(a, b)
