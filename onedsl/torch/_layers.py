"""Batch-norm layers with PyTorch's forward pass and onedsl's backward pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._op import TRAINING_OPERATOR, core_operator, op, run

TYPES = (torch.float32, torch.bfloat16, torch.float16)


class _BatchNorm(torch.autograd.Function):
    """PyTorch's forward pass and onedsl's backward pass.

    torch.func is not supported: it requires setup_context, which adds 26 microseconds to a call.
    """

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        dst, mean, inverse_stddev = torch.native_batch_norm(
            src, weight, bias, running_mean, running_var, training, momentum, eps
        )
        ctx.training, ctx.eps = training, eps
        if training:
            ctx.save_for_backward(src, mean, inverse_stddev, weight)
        else:
            ctx.save_for_backward(src, running_mean, running_var, weight)
        return dst

    @staticmethod
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        # In training the third tensor is the inverse standard deviation, otherwise the variance.
        src, mean, invstd_or_variance, weight = ctx.saved_tensors
        gamma = weight
        if mean.dtype is not torch.float32:
            mean, invstd_or_variance = mean.float(), invstd_or_variance.float()
            gamma = None if weight is None else weight.float()
        sums = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        # The dispatcher takes longer than the gradient of a small layer, so the op is dispatched
        # only if autograd, a compiler or a dispatch mode must intercept it.
        gradients = None
        if not (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch._C._len_torch_dispatch_stack()
        ):
            operator = (
                TRAINING_OPERATOR if ctx.training else core_operator(ctx.eps, "NCX", "frozen")
            )
            gradients = run(operator, src, diff_dst, mean, invstd_or_variance, gamma, sums)
        if gradients is None:
            if ctx.training:
                # The op needs a variance. The one computed here already includes eps.
                variance = invstd_or_variance.reciprocal().square()
                epsilon, statistics = 0.0, "batch"
            else:
                variance, epsilon, statistics = invstd_or_variance, ctx.eps, "frozen"
            gradients = op(src, diff_dst, mean, variance, gamma, epsilon, "NCX", statistics, sums)
        diff_src, *rest = gradients
        if weight is not gamma:
            rest = [gradient.to(weight.dtype) for gradient in rest]
        _, weight_needed, bias_needed, *_ = ctx.needs_input_grad
        diff_weight = rest[0] if weight_needed else None
        diff_bias = rest[1] if bias_needed else None
        return diff_src, diff_weight, diff_bias, None, None, None, None, None


def batch_norm(
    input: Tensor,  # noqa: A002 - PyTorch's name
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Apply batch normalization: torch.nn.functional.batch_norm with onedsl's gradient.

    Parameters, result and errors are PyTorch's. PyTorch's own gradient is used for what onedsl does
    not support: other devices and layouts, dtypes other than float32, bfloat16 and float16, empty
    inputs, eps = 0, and traces by torch.jit and torch.export. Forward-mode differentiation, batched
    gradients and the transforms of torch.func raise an error.
    """
    arguments = (input, weight, bias, running_mean, running_var, training)
    if torch.is_grad_enabled() and _is_supported(*arguments, eps):
        output: Tensor = _BatchNorm.apply(*arguments, momentum, eps)
        return output
    return nn.functional.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )


def _is_supported(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> bool:
    """Return whether onedsl supports the arguments. For invalid ones PyTorch then raises."""
    if not (input.is_cpu and input.layout is torch.strided and input.dtype in TYPES):
        return False
    if input.ndim < 2 or eps <= 0 or torch.jit.is_tracing() or is_exporting():
        return False
    count = input.shape[1]
    for t in (weight, bias, running_mean, running_var):
        if t is not None and (t.ndim != 1 or len(t) != count):
            return False
    if training:
        return bool(input.numel() > count)  # PyTorch requires two values per channel
    return running_mean is not None and running_var is not None and input.numel() > 0


def is_exporting() -> bool:
    """Return whether torch.export runs.

    Under torch.compile, PyTorch 2.11 replaces torch.compiler.is_exporting() by True.
    """
    return bool(torch.compiler._is_exporting_flag)


class Step(NamedTuple):
    """The arguments of a batch-norm call that follow from the state of the layer."""

    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float


def begin_step(layer: nn.modules.batchnorm._BatchNorm) -> Step:
    """Return the arguments of a layer's next call, and in training count it as PyTorch does."""
    tracked = layer.training and layer.track_running_stats
    momentum = 0.0 if layer.momentum is None else layer.momentum
    if tracked and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if layer.momentum is None:
            momentum = 1.0 / float(layer.num_batches_tracked)
    running = tracked or not layer.training
    mean, variance = (layer.running_mean, layer.running_var) if running else (None, None)
    training = layer.training or (layer.running_mean is None and layer.running_var is None)
    return Step(mean, variance, training, momentum)


def in_fx(layer: nn.Module, *inputs: Any) -> Any:
    """Trace a call of a layer with torch.fx as a single node, as is done for PyTorch's layers."""
    tracer = inputs[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), inputs, {})


class _Layer(nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        if isinstance(input, torch.fx.Proxy):
            return in_fx(self, input)
        self._check_input_dim(input)
        mean, variance, training, momentum = begin_step(self)
        return batch_norm(
            input, mean, variance, self.weight, self.bias, training, momentum, self.eps
        )


class BatchNorm1d(_Layer, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d with onedsl's gradient: the same arguments, state and results."""


class BatchNorm2d(_Layer, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d with onedsl's gradient: the same arguments, state and results."""


class BatchNorm3d(_Layer, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d with onedsl's gradient: the same arguments, state and results."""


for _class in (BatchNorm1d, BatchNorm2d, BatchNorm3d):
    _class.__module__ = "onedsl.torch"  # the name in saved models
