"""Batch statistics in `jax.numpy`, for the layers of other libraries.

They are those that onedsl's kernels do not compute: of the elements that a mask selects, or of the
arrays of all devices or items along a named axis of JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def batch_statistics(
    src: Any,
    axes: Sequence[int],
    *,
    mask: Any = None,
    axis_name: Any = None,
    axis_index_groups: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the mean and the biased variance over these axes of src in f32.

    `mask` selects elements and broadcasts to src. The mean over a named axis is the mean of the
    means, as in Flax and Equinox.
    """
    axes = tuple(axes)

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
