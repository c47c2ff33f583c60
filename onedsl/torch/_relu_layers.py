"""Layers of batch norm and ReLU, with or without an addition between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import _core
from ..operators import _attributes
from ..operators.batch_norm_relu_training_backward import SCHEMA as BACKWARD
from ._layers import begin_step, in_fx
from ._op import op
from ._training import affine, normalize, operator

_FORWARD = _core.Operation.relu_forward_training
_BACKWARD = BACKWARD.operation
_AUTO = _core.Backend.auto

Outputs = tuple[Tensor, Tensor, Tensor]
"""dst, the batch's mean and its biased variance."""


class _BatchNormReLU(torch.autograd.Function):
    """The backward pass for outputs that `normalize` has computed.

    The mask of the ReLU follows from dst, which is saved only if there is a residual. Otherwise the
    core recomputes dst from src, bitwise equal.
    """

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        outputs: Outputs,
        eps: float,
        clip: float | None,
    ) -> Tensor:
        dst, mean, variance = outputs
        ctx.eps, ctx.clip = eps, clip
        saved = None if residual is None else dst
        ctx.save_for_backward(src, weight, bias, mean, variance, saved)
        return dst

    @staticmethod
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        src, weight, bias, mean, variance, dst = ctx.saved_tensors
        _, weight_needed, bias_needed, residual_needed, *_ = ctx.needs_input_grad
        gamma, beta = affine(weight, bias)
        gradients: tuple[Any, ...] | None
        if torch.is_grad_enabled():
            gradients = _differentiable(
                src, diff_dst, mean, variance, gamma, beta, dst, ctx.eps, ctx.clip
            )
        else:
            if diff_dst.stride() != src.stride():
                diff_dst = torch.empty_like(src).copy_(diff_dst)
            inputs = (src, diff_dst, mean, variance, gamma, beta, dst)
            gradients = operator(_BACKWARD, ctx.eps, ctx.clip).run(
                inputs, residual_needed, None, _AUTO
            )
            if gradients is None:
                raise AssertionError("the core rejected valid arguments of the backward pass")
        diff_src, diff_weight, diff_bias, diff_residual = gradients
        return (
            diff_src,
            diff_weight if weight_needed else None,
            diff_bias if bias_needed else None,
            diff_residual if residual_needed else None,
            None,
            None,
            None,
        )


def _differentiable(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    dst: Tensor | None,
    eps: float,
    clip: float | None,
) -> tuple[Tensor, ...]:
    """Compute the gradients with operators that can be differentiated again."""
    if dst is None:
        with torch.no_grad():
            dst = nn.functional.batch_norm(src, mean, variance, gamma, beta, eps=eps)
    mask = dst <= 0 if clip is None else (dst <= 0) | (dst >= clip)
    diff = diff_dst.masked_fill(mask, 0)
    return (*op(src, diff, mean, variance, gamma, eps, "NCX", "batch", True), diff)


def _is_observed(*tensors: Tensor | None) -> bool:
    """Return whether a compiler, dispatch mode or transform must intercept PyTorch's operators."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or any(t is not None and type(t) is not Tensor for t in tensors)
    )


class ReLULayer(nn.modules.batchnorm._BatchNorm):
    """Base class of the layers that include a ReLU."""

    clip: float | None

    def __init__(self, num_features: int, *, clip: float | None = None, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        self.clip = _attributes.parse_clip(clip)

    def extra_repr(self) -> str:
        """Return the attributes, for ``repr``."""
        clip = "" if self.clip is None else f", clip={self.clip}"
        return f"{super().extra_repr()}{clip}"

    def _run(self, src: Tensor, residual: Tensor | None = None) -> Tensor:
        self._check_input_dim(src)
        mean, variance, training, momentum = begin_step(self)
        weight, bias, eps, clip = self.weight, self.bias, self.eps, self.clip
        if training and not _is_observed(src, residual):
            outputs = normalize(
                _FORWARD, src, weight, bias, mean, variance, momentum, eps, residual, clip=clip
            )
            if outputs is not None:
                dst: Tensor = _BatchNormReLU.apply(src, weight, bias, residual, outputs, eps, clip)
                return dst
        dst = nn.functional.batch_norm(src, mean, variance, weight, bias, training, momentum, eps)
        if residual is not None:
            dst = dst + residual
        return nn.functional.relu(dst) if clip is None else nn.functional.hardtanh(dst, 0, clip)


class _ReLU(ReLULayer):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Compute ``relu(batch_norm(input))``."""
        if isinstance(input, torch.fx.Proxy):
            return in_fx(self, input)
        return self._run(input)


class _AddReLU(ReLULayer):
    def forward(self, input: Tensor, residual: Tensor) -> Tensor:  # noqa: A002
        """Compute ``relu(batch_norm(input) + residual)``."""
        if isinstance(input, torch.fx.Proxy):
            return in_fx(self, input, residual)
        return self._run(input, residual)


class BatchNormReLU1d(_ReLU, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d followed by a ReLU, as one layer.

    Parameters
    ----------
    num_features : int
        Number of channels.
    clip : float, optional
        Upper bound of the ReLU: 6.0 for ReLU6. By default there is no bound.
    **kwargs
        Arguments of the layer without the ReLU: eps, momentum, affine, track_running_stats, ...

    Notes
    -----
    Parameters, buffers and their names are those of the layer without the ReLU. In training, one
    kernel computes both, and autograd saves only the input, so the ReLU needs no memory even if it
    is not in place. PyTorch's own functions run in evaluation, in compiled models, and for
    arguments that onedsl's kernels do not support.
    """


class BatchNormReLU2d(_ReLU, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d followed by a ReLU, as one layer: see `BatchNormReLU1d`."""


class BatchNormReLU3d(_ReLU, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d followed by a ReLU, as one layer: see `BatchNormReLU1d`."""


class BatchNormAddReLU1d(_AddReLU, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d, an addition and a ReLU, as one layer.

    It is called with two tensors of the same shape, as at the end of a residual block, and returns
    ``relu(batch_norm(input) + residual)``. Everything else is as in `BatchNormReLU1d`.
    """


class BatchNormAddReLU2d(_AddReLU, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d, an addition and a ReLU, as one layer: see `BatchNormAddReLU1d`."""


class BatchNormAddReLU3d(_AddReLU, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d, an addition and a ReLU, as one layer: see `BatchNormAddReLU1d`."""


for _class in (
    BatchNormReLU1d,
    BatchNormReLU2d,
    BatchNormReLU3d,
    BatchNormAddReLU1d,
    BatchNormAddReLU2d,
    BatchNormAddReLU3d,
):
    _class.__module__ = "onedsl.torch"  # the name in saved models
