"""The autograd nodes of deferred batch norm, addition and ReLU, and their gradients."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import _core
from ..operators.batch_norm_relu_training_backward import SCHEMA as BACKWARD
from ._deferred_state import Operands, Snapshot, State
from ._deferred_tensor import new_result
from ._op import core_operator, op, run
from ._training import affine, operator

_AUTO = _core.Backend.auto


class _Fused(NamedTuple):
    """Gradients that the node of a ReLU left at the node of the batch norm."""

    graph_task: int
    returned: Tensor  # what the node of the ReLU returned to autograd
    gradients: tuple[Tensor, Tensor, Tensor]
    relu: Any  # its node, if `returned` is a placeholder and not the gradient
    diff_dst: Tensor


class _BatchNorm(torch.autograd.Function):
    """The node of the batch norm."""

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        operands: Operands,
    ) -> Tensor:
        # PyTorch saves no bias: changing it between the passes is allowed. This is the copy.
        ctx.save_for_backward(src, weight, operands.bias, mean, variance)
        ctx.eps = operands.eps
        ctx.shared = False  # whether anything but ReLUs uses the result
        ctx.relus = 0
        ctx.fused = None
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
        return *(g if n else None for g, n in zip(gradients, needed, strict=True)), None, None, None


class _Add(torch.autograd.Function):
    """The node of the addition."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, residual: Tensor) -> Tensor:
        state: State = result._state
        deferred = State(state.operands, Snapshot(residual), weakref.ref(state))
        state.in_graph = True
        return new_result(result, deferred)

    @staticmethod
    def backward(ctx: Any, diff: Tensor) -> tuple[Any, ...]:
        return tuple(diff if needed else None for needed in ctx.needs_input_grad)


class _ReLU(torch.autograd.Function):
    """The node of the ReLU, which computes everything."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, clip: float | None) -> Tensor:
        state: State = result._state
        dst = state.compute(_core.Operation.relu_forward_training, clip)
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
        if diff_dst.stride() != src.stride():
            diff_dst = torch.empty_like(src).copy_(diff_dst)
        inputs = (src, diff_dst, mean, variance, *affine(weight, bias), dst)
        kernel = operator(BACKWARD.operation, batch_norm.eps, ctx.clip)
        gradients = kernel.run(inputs, dst is not None, None, _AUTO)
        if gradients is None:
            return _masked(ctx, diff_dst), None
        *others, diff_residual = gradients[:4]
        placeholder = dst is None
        returned = src.new_zeros(()).expand(src.shape) if placeholder else diff_residual
        batch_norm.fused = _Fused(
            torch._C._current_graph_task_id(),
            returned,
            tuple(others),
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
    gradients = None
    if not _is_observed(diff_dst):
        kernel = core_operator(eps, "NCX", "batch")
        gradients = run(kernel, src, diff_dst, mean, variance, weight, True)
    return tuple(gradients or op(src, diff_dst, mean, variance, weight, eps, "NCX", "batch", True))


apply_batch_norm = _BatchNorm.apply
apply_add = _Add.apply
apply_relu = _ReLU.apply
