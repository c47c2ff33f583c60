"""The autograd nodes of deferred batch norm, addition and ReLU, and their gradients."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import _compiled_ops as ops
from ._deferred_state import Operands, State
from ._deferred_tensor import new_result
from ._op import op


class _Fused(NamedTuple):
    """Gradients that the node of a ReLU left at the node of the batch norm."""

    graph_task: int
    returned: Tensor  # what the node of the ReLU returned to autograd
    gradients: tuple[Tensor, Tensor, Tensor]
    relu: Any  # its node, if `returned` is a placeholder and not the gradient
    diff_dst: Tensor


class _BatchNorm(torch.autograd.Function):
    """The autograd node of the batch norm."""

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        operands: Operands,
    ) -> Tensor:
        ctx.eps = operands.eps
        ctx.fused = None
        if operands.plain is not None:
            ctx.save_for_backward(src, weight, None, operands.mean, operands.variance)
            return operands.plain
        operands.weight = None if weight is None else weight.clone()
        operands.bias = None if bias is None else bias.clone()
        # PyTorch saves no bias: changing it between the passes is allowed. This is the copy.
        ctx.save_for_backward(src, weight, operands.bias, operands.mean, operands.variance)
        ctx.shared = False  # whether anything but ReLUs uses the result
        ctx.relus = 0
        operands.node = ctx
        return new_result(src, State(operands))

    @staticmethod
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        fused, ctx.fused = ctx.fused, None
        needed = ctx.needs_input_grad[:3]
        gradients: tuple[Any, ...] | None = None
        if fused is not None and fused.graph_task == torch._C._current_graph_task_id():
            if diff_dst is fused.returned:
                gradients = fused.gradients
            elif fused.relu is not None:  # another gradient was added to the placeholder
                diff_dst = diff_dst + _masked(fused.relu, fused.diff_dst)
        if gradients is None:
            src, weight, _, mean, variance = ctx.saved_tensors
            gradients = _gradients(src, diff_dst, mean, variance, weight, ctx.eps)
        return *(g if n else None for g, n in zip(gradients, needed, strict=True)), None


class _Add(torch.autograd.Function):
    """The autograd node of the addition."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, residual: Tensor) -> Tensor:
        state: State = result._state
        deferred = State(state.operands, torch._lazy_clone(residual), weakref.ref(state))
        state.in_graph = True
        return new_result(result, deferred)

    @staticmethod
    def backward(ctx: Any, diff: Tensor) -> tuple[Any, ...]:
        return tuple(diff if needed else None for needed in ctx.needs_input_grad)


class _ReLU(torch.autograd.Function):
    """The autograd node of the ReLU, which computes the gradients of all three."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, clip: float | None) -> Tensor:
        state: State = result._state
        dst = state.relu(clip)
        # Without a residual the mask is computed from src again, and dst need not be kept.
        ctx.save_for_backward(None if state.residual is None else dst)
        ctx.batch_norm, ctx.clip = state.operands.node, clip
        ctx.batch_norm.relus += 1
        state.in_graph = True
        ctx.output = None
        ctx.users = (weakref.ref(state), state.before_sum)
        return dst

    @staticmethod
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        if ctx.output is not None and ctx.output._version != ctx.version:
            raise RuntimeError(_MODIFIED)
        batch_norm = ctx.batch_norm
        in_use = any(state is not None and state() is not None for state in ctx.users)
        if in_use or batch_norm.shared or batch_norm.relus > 1 or _is_observed(diff_dst):
            return _masked(ctx, diff_dst), None
        src, weight, bias, mean, variance = batch_norm.saved_tensors
        (dst,) = ctx.saved_tensors
        placeholder = dst is None
        arguments = (diff_dst, src, mean, variance, weight, bias)
        with torch._C._AutoDispatchBelowAutograd():
            if placeholder:
                gradients = ops.batch_norm_relu_training_backward(
                    *arguments, batch_norm.eps, ctx.clip
                )
                returned = src.new_zeros(()).expand(src.shape)
            else:
                *gradients, returned = ops.batch_norm_add_relu_training_backward(
                    *arguments, dst, batch_norm.eps, ctx.clip
                )
        batch_norm.fused = _Fused(
            torch._C._current_graph_task_id(),
            returned,
            tuple(gradients),
            ctx if placeholder else None,
            diff_dst,
        )
        return returned, None


_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: the output of a ReLU after a batch-norm layer that onedsl.torch.fuse changed"
)


def _is_observed(tensor: Tensor) -> bool:
    """Return whether gradients must be computed by PyTorch's operators, one by one."""
    return bool(
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or type(tensor) is not Tensor
        or _is_batched(tensor)
    )


def _is_batched(tensor: Tensor) -> bool:
    """Return whether a transform of torch.func or of ``is_grads_batched`` is active."""
    functorch = torch._C._functorch
    return bool(
        functorch.is_legacy_batchedtensor(tensor) or torch._C._are_functorch_transforms_active()
    )


def _masked(relu: Any, diff_dst: Tensor) -> Tensor:
    """Return the gradient of a ReLU."""
    (dst,) = relu.saved_tensors
    if dst is None:
        batch_norm = relu.batch_norm
        src, weight, bias, mean, variance = batch_norm.saved_tensors
        with torch.no_grad():
            dst = nn.functional.batch_norm(src, mean, variance, weight, bias, eps=batch_norm.eps)
    closed = dst <= 0 if relu.clip is None else (dst <= 0) | (dst >= relu.clip)
    return diff_dst.masked_fill(closed, 0)


def _gradients(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...]:
    """Return the gradients of the plain batch norm."""
    if _is_batched(diff_dst):
        inverse_stddev = (variance + eps).rsqrt()
        mask = [True, True, True]
        outputs: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(
            diff_dst, src, weight, None, None, mean, inverse_stddev, True, eps, mask
        )
        return outputs
    if _is_observed(diff_dst):
        return tuple(op(src, diff_dst, mean, variance, weight, eps, "NCX", "batch", True))
    with torch._C._AutoDispatchBelowAutograd():
        found: tuple[Tensor, ...] = ops.batch_norm_training_backward(
            diff_dst, src, mean, variance, weight, eps
        )
    return found


# Function.apply without its support of torch.func, whose transforms never get here.
apply_batch_norm = super(torch.autograd.Function, _BatchNorm).apply
apply_add = super(torch.autograd.Function, _Add).apply
apply_relu = super(torch.autograd.Function, _ReLU).apply
