"""The forward pass in training, which updates running statistics by PyTorch's formula."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ..operators import (
    batch_norm_forward_training,
    batch_norm_relu_forward_training,
    batch_norm_relu_training_backward,
)
from ..operators._schema import OpSchema
from ..tensors.dtypes import DTYPES

_AUTO = _core.Backend.auto
# PyTorch's statistics are f32, whatever the tensors are.
_SCHEMAS: dict[_core.Operation, OpSchema] = {
    module.SCHEMA.operation: dataclasses.replace(
        module.SCHEMA, types=dict.fromkeys(DTYPES, ("f32",))
    )
    for module in (
        batch_norm_forward_training,
        batch_norm_relu_forward_training,
        batch_norm_relu_training_backward,
    )
}


@functools.lru_cache(maxsize=256)
def operator(
    operation: _core.Operation, epsilon: float, clip: float | None = None
) -> _core.Operator:
    """Return the core's operator for PyTorch's shapes and f32 statistics, cached."""
    return _SCHEMAS[operation].core_operator(
        epsilon,
        _core.StatisticsShape.channel_second,
        {"clip": math.inf if clip is None else clip},
        allow_requires_grad=True,  # autograd is handled by the callers
    )


def is_laid_out(src: Tensor) -> bool:
    """Return whether the result of PyTorch's batch norm would have the strides of src."""
    return bool(
        src.is_contiguous()
        or (src.ndim == 4 and src.is_contiguous(memory_format=torch.channels_last))
        or (src.ndim == 5 and src.is_contiguous(memory_format=torch.channels_last_3d))
    )


def affine(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return weight and bias, a missing one as ones or zeros: the core needs both or neither."""
    if weight is None:
        return (None if bias is None else torch.ones_like(bias)), bias
    return weight, (torch.zeros_like(weight) if bias is None else bias)


def normalize(
    operation: _core.Operation,
    src: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    *more: Any,
    clip: float | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Compute dst, the batch's mean and its biased variance, and update the running statistics.

    Return None without writing anything if the arguments are not supported: other dtypes and memory
    layouts, statistics that are not f32, fewer than two values per channel, eps = 0.
    """
    if src.ndim < 2 or eps <= 0 or src.numel() <= src.shape[1] or not is_laid_out(src):
        return None
    vectors = (weight, bias, running_mean, running_var)
    if src.dtype is not torch.float32 and all(t is None for t in vectors):
        return None  # PyTorch rounds the statistics to src's dtype
    weight, bias = affine(weight, bias)
    mean, variance = running_mean, running_var
    if mean is None and variance is None:
        mean = variance = src.new_zeros(src.shape[1], dtype=torch.float32)
    inputs = (src, mean, variance, weight, bias, *more)
    results = operator(operation, eps, clip).run(inputs, True, None, _AUTO)
    if results is None:
        return None
    dst, _, _, mean, variance = results
    if running_mean is not None:
        count = src.numel() // src.shape[1]
        _core.update_running(running_mean, running_var, mean, variance, momentum, count)
    return dst, mean, variance
