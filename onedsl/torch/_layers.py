"""Batch-norm layers with PyTorch's forward pass and onedsl's backward pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._op import IN_TRAINING, core_operator, op, run

TYPES = (torch.float32, torch.bfloat16, torch.float16)


class _BatchNorm(torch.autograd.Function):
    """The two passes, for autograd.

    torch.func would need setup_context, which makes a call 26 microseconds longer.
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
        src, mean, spread, weight = ctx.saved_tensors  # variance_kind: as forward saved it
        gamma = weight
        if mean.dtype is not torch.float32:
            mean, spread = mean.float(), spread.float()
            gamma = None if weight is None else weight.float()
        sums = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        # The dispatcher takes longer than the gradient of a small layer, so it is called only if
        # autograd, a compiler or a dispatch mode must see the op.
        gradients = None
        if not (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch._C._len_torch_dispatch_stack()
        ):
            operator = IN_TRAINING if ctx.training else core_operator(ctx.eps, "NCX", "frozen")
            gradients = run(operator, src, diff_dst, mean, spread, gamma, sums)
        if gradients is None:
            if ctx.training:
                # The op's argument is a variance; this one includes eps.
                variance, epsilon, statistics = spread.reciprocal().square(), 0.0, "batch"
            else:
                variance, epsilon, statistics = spread, ctx.eps, "frozen"
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

    Parameters, result and errors are PyTorch's. PyTorch's own function runs where onedsl has no
    gradient: other devices and layouts, types other than float32, bfloat16 and float16, empty
    inputs, eps = 0, traces by torch.jit and torch.export. Forward-mode differentiation, batched
    gradients and the transforms of torch.func raise an error.
    """
    arguments = (input, weight, bias, running_mean, running_var, training)
    if torch.is_grad_enabled() and _is_ours(*arguments, eps):
        output: Tensor = _BatchNorm.apply(*arguments, momentum, eps)
        return output
    return nn.functional.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )


def _is_ours(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> bool:
    """Return whether onedsl has the gradient. Invalid arguments are left to PyTorch's errors."""
    if not (input.is_cpu and input.layout is torch.strided and input.dtype in TYPES):
        return False
    if input.ndim < 2 or eps <= 0 or torch.jit.is_tracing() or torch.compiler.is_exporting():
        return False
    count = input.shape[1]
    for t in (weight, bias, running_mean, running_var):
        if t is not None and (t.ndim != 1 or len(t) != count):
            return False
    if training:
        return bool(input.numel() > count)  # PyTorch requires two values per channel
    return running_mean is not None and running_var is not None and input.numel() > 0


class Step(NamedTuple):
    """What a layer passes to batch norm with its input."""

    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float


def begin_step(layer: nn.modules.batchnorm._BatchNorm) -> Step:
    """Count a call of a layer in training, and return the statistics that it uses."""
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
    """Return the single node that a layer is in a trace by torch.fx, like PyTorch's layers."""
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
