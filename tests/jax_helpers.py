"""Helpers of the JAX tests."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import experimental

# JAX 0.6 has it in jax.experimental.
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else experimental.enable_x64


def in_float64(function, *values):
    """Return the results of a function on float64 arrays, as NumPy arrays."""
    with enable_x64(True):
        wide = [None if v is None else jnp.asarray(np.asarray(v, np.float64)) for v in values]
        return jax.tree.map(np.asarray, jax.jit(function)(*wide))
