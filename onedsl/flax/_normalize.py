"""What the layers of linen and NNX share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..jax import batch_norm, batch_norm_frozen
from ..jax.layers import batch_statistics, evaluate
from ..tensors.spec import DataFormat


def normalize(
    layer: Any,
    src: Any,
    running: tuple[Any, Any] | None,
    scale: Any,
    bias: Any,
    residual: Any,
    *,
    mask: Any,
    axis_name: Any,
) -> tuple[Any, Any, Any]:
    """Return the layer's result and the statistics that it normalized by.

    These are `running`, or those of the batch if `running` is None.
    """
    axes = (layer.axis,) if isinstance(layer.axis, int) else layer.axis
    channel_axes = sorted({axis % src.ndim for axis in axes})
    sizes = [src.shape[axis] for axis in channel_axes]
    data_format, to_tensor, from_tensor = _layout(src, channel_axes)
    options = {
        "epsilon": layer.epsilon,
        "data_format": data_format,
        "activation": layer.activation,
        "clip": layer.clip,
        "negative_slope": layer.negative_slope,
        "residual": None if residual is None else to_tensor(jnp.asarray(residual, src.dtype)),
    }
    affine = [None if array is None else jnp.ravel(array) for array in (scale, bias)]
    if running is None and mask is None and axis_name is None:
        dst, *batch = batch_norm(to_tensor(src), *affine, **options)
        mean, variance = (array.reshape(sizes) for array in batch)
        return from_tensor(dst), mean, variance
    compute: Any = evaluate
    if running is None:
        compute = batch_norm_frozen
        summed = [axis for axis in range(src.ndim) if axis not in channel_axes]
        groups = layer.axis_index_groups
        running = batch_statistics(
            src, summed, mask=mask, axis_name=axis_name, axis_index_groups=groups
        )
    flat = [jnp.ravel(array).astype(jnp.float32) for array in running]
    dst = compute(to_tensor(src), *flat, *affine, **options)
    return from_tensor(dst), *running


def _layout(
    src: jax.Array, channel_axes: list[int]
) -> tuple[DataFormat, Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the data format, and functions that convert tensors to onedsl's shapes and back."""
    rank = src.ndim
    if channel_axes == [rank - 1] and rank > 1:
        return DataFormat.NXC, lambda tensor: tensor, lambda tensor: tensor
    if channel_axes == [1]:
        return DataFormat.NCX, lambda tensor: tensor, lambda tensor: tensor
    # The channel axes become the last axis. A tensor of channels alone gets a batch axis.
    last = range(-len(channel_axes), 0)
    moved = [src.shape[axis] for axis in range(rank) if axis not in channel_axes]
    moved += [src.shape[axis] for axis in channel_axes]
    batch = moved[: -len(channel_axes)] or [1]

    def to_tensor(tensor: Any) -> Any:
        tensor = jnp.moveaxis(tensor, channel_axes, last)
        return tensor.reshape(*batch, -1)

    return (
        DataFormat.NXC,
        to_tensor,
        lambda tensor: jnp.moveaxis(tensor.reshape(moved), last, channel_axes),
    )
