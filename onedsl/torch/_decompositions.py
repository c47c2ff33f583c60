"""Batch norm in training and its gradient as PyTorch's own operators, for inductor to fuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _compiled_ops as ops


def _channel_axes(src: Tensor) -> tuple[list[int], list[int]]:
    """Return the axes of the sums, and the shape of a vector of channels next to src."""
    return [i for i in range(src.ndim) if i != 1], [1, -1] + [1] * (src.ndim - 2)


def _batch_norm(
    src: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes, shape = _channel_axes(src)
    x = src.to(torch.float32)
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    dst = (x - mean) * torch.rsqrt(variance + eps)
    if weight is not None:
        dst = dst * weight.view(shape)
    if bias is not None:
        dst = dst + bias.view(shape)
    return dst.to(src.dtype), mean.flatten(), variance.flatten()


def _batch_norm_backward(
    diff_dst: Tensor,
    src: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    axes, shape = _channel_axes(src)
    count = src.numel() // src.shape[1]
    d = diff_dst.to(torch.float32)
    centered = src.to(torch.float32) - mean.view(shape)
    inverse_stddev = torch.rsqrt(variance + eps)
    diff_bias = d.sum(axes)
    diff_weight = (d * centered).sum(axes) * inverse_stddev
    scale = inverse_stddev if weight is None else inverse_stddev * weight
    slope = diff_weight * inverse_stddev / count
    diff_src = (d - (diff_bias / count).view(shape) - centered * slope.view(shape)) * scale.view(
        shape
    )
    return diff_src.to(src.dtype), diff_weight, diff_bias


DECOMPOSITIONS: dict[Any, Callable[..., tuple[Tensor, ...]]] = {
    ops.batch_norm_training: _batch_norm,
    ops.batch_norm_training_backward: _batch_norm_backward,
}
