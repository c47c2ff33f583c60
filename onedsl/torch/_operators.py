"""onedsl's operators for PyTorch: batch norm with addition and activation, and its gradient.

The kernels are C++ (onedsl_ops.cpp and pass_ops.cpp in csrc/torch). The layers call the operators,
and the backend of torch.compile puts them into graphs, where compilers keep them whole. They accept
tensors of any strides; results have the strides of ``torch.empty_like(src)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .. import _core
from ..operators.attributes import is_valid_epsilon
from ..runtime.import_errors import second_import_message

TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

if not _core.register_torch_ops():
    raise ImportError(second_import_message("onedsl.torch", "PyTorch"))
_LIBRARY = torch.library.Library("onedsl", "FRAGMENT")
# dst = activation(batch_norm(src) + residual). The activation is optional, and with it the
# addition. Its parameter is the upper bound of "relu" or the slope of "leaky_relu". Returns dst,
# the batch's mean, 1 / sqrt(variance + eps), the unbiased variance, and with an activation copies
# of weight and bias for the gradient. The caller updates running statistics: the operator can be
# computed again in the backward pass.
_LIBRARY.define(
    "batch_norm_training(Tensor src, Tensor? weight, Tensor? bias, Tensor? residual, float eps,"
    " str? activation, float? parameter) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
# Returns the gradients of src, weight, bias and, with residual or dst, of the residual. The
# argument of the activation is that of the forward pass, whatever happened to its parameters since:
# it is computed from src, the copies of weight and bias, and the residual. With dst, the mask of a
# ReLU is computed from it. The gradient of batch norm has the weight that autograd saved, as in
# PyTorch.
_LIBRARY.define(
    "batch_norm_training_backward(Tensor diff_dst, Tensor src, Tensor mean, Tensor inverse_stddev,"
    " Tensor? weight, Tensor? forward_weight, Tensor? forward_bias, Tensor? residual, Tensor? dst,"
    " str? activation, float? parameter) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
# The two passes for a part of a batch, as vectors of totals: the count, the means and the sums of
# squared deviations; in the gradient the count and the sums that are diff_bias and diff_weight.
# Both passes get all arguments, so that the first one rejects what the second one would.
_PARAMETERS = "Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var"
_LIBRARY.define(f"batch_norm_training_reduce(Tensor src, {_PARAMETERS}, float eps) -> Tensor")
# Returns dst, the batch's mean, 1 / sqrt(variance + eps), and the new running statistics.
_LIBRARY.define(
    f"batch_norm_training_apply(Tensor totals, Tensor src, {_PARAMETERS}, float momentum,"
    " float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_GRADIENT = "Tensor diff_dst, Tensor src, Tensor mean, Tensor inverse_stddev, Tensor? weight"
_LIBRARY.define(f"batch_norm_training_backward_reduce({_GRADIENT}) -> Tensor")
_LIBRARY.define(f"batch_norm_training_backward_apply(Tensor totals, {_GRADIENT}) -> Tensor")
# PyTorch's own, with another layout tag. inductor copies both tensors of aten::convolution_backward
# to the order of the weight's axes, which is ambiguous in depthwise convolutions.
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_LIBRARY.define(
    "convolution_backward(" + str(_CONVOLUTION_BACKWARD._schema).partition("(")[2],
    tags=(torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag),
)
convolution_backward = torch.ops.onedsl.convolution_backward.default
batch_norm_training = torch.ops.onedsl.batch_norm_training.default
batch_norm_training_backward = torch.ops.onedsl.batch_norm_training_backward.default
reduce = torch.ops.onedsl.batch_norm_training_reduce.default
apply = torch.ops.onedsl.batch_norm_training_apply.default
reduce_gradient = torch.ops.onedsl.batch_norm_training_backward_reduce.default
apply_gradient = torch.ops.onedsl.batch_norm_training_backward_apply.default


def why_unsupported(operation: str, *inputs: Tensor | None, eps: float) -> str:
    """Return what the operators do not support in a call of PyTorch, or an empty string.

    Compilers trace this function with symbolic sizes. The check of the C++ core needs numbers, but
    only whether a size is 0, 1 or more, and which sizes are equal.
    """
    src = inputs[0]
    assert src is not None
    sizes = tuple(2 if size >= 2 else 1 if size == 1 else 0 for size in src.shape)

    vector = src.shape[1:2]
    infos: list[tuple[Any, ...] | None] = []
    for t in inputs:
        if t is None:
            infos.append(None)
            continue
        own, like = (sizes, src.shape) if t.ndim == len(sizes) else (sizes[1:2], vector)
        is_strided = t.is_cpu and t.layout is torch.strided
        infos.append((is_strided, t.dtype, own if t.shape == like else ()))
    return _why_unsupported(operation, tuple(infos), 1.0 if is_valid_epsilon(eps) else 0.0)


def _why_unsupported(*arguments: Any) -> str:
    return _ask_core(*arguments)


@functools.lru_cache
def _ask_core(operation: str, infos: tuple[Any, ...], epsilon: float) -> str:
    inputs = [i and (i[0], TYPES.get(i[1], "other"), i[2]) for i in infos]
    return _core.why_torch_unsupported(operation, inputs, epsilon)


# torch.compile calls this function and takes its result as a constant. The decorator
# torch.compiler.assume_constant_result does the same, but imports the compiler.
_why_unsupported._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch.library.register_fake("onedsl::batch_norm_training", lib=_LIBRARY)
def _fake_forward(src: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *_, activation, _ = arguments
    channels = src.shape[1]
    lengths = *[channels] * 3, *[channels if activation else 0] * 2
    vectors = (src.new_empty(length, dtype=torch.float32) for length in lengths)
    return torch.empty_like(src), *vectors


@torch.library.register_fake("onedsl::batch_norm_training_backward", lib=_LIBRARY)
def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    _, src, mean, _, _, _, _, residual, dst, *_ = arguments
    has_addition = residual is not None or dst is not None
    diff_residual = torch.empty_like(src) if has_addition else mean.new_empty(0)
    return torch.empty_like(src), torch.empty_like(mean), torch.empty_like(mean), diff_residual


@torch.library.register_fake("onedsl::batch_norm_training_backward_reduce", lib=_LIBRARY)
def _fake_reduce_gradient(_: Tensor, src: Tensor, *vectors: Any) -> Tensor:
    return src.new_empty(1 + 2 * src.shape[1], dtype=torch.float64)


torch.library.register_fake("onedsl::convolution_backward", _CONVOLUTION_BACKWARD, lib=_LIBRARY)


def activate(value: Tensor, activation: str, parameter: float | None) -> Tensor:
    """Compute an activation by PyTorch's function."""
    if activation == "relu" and parameter is None:
        return F.relu(value)
    given = () if parameter is None else (parameter,)
    return FUNCTIONS[activation](value, *given)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": lambda value, clip: F.hardtanh(value, 0.0, clip),
    "leaky_relu": F.leaky_relu,
    "silu": lambda value, *_: F.silu(value),
    "hardswish": lambda value, *_: F.hardswish(value),
    "gelu": lambda value, *_: F.gelu(value),
    "gelu_tanh": lambda value, *_: F.gelu(value, approximate="tanh"),
}
"""PyTorch's functions of the activations. They have a value, and the parameter, if it is given."""


def needs_dst(activation: str | None, residual: object) -> bool:
    """Return whether the gradient needs dst: it has the mask of a ReLU with an addition."""
    return activation == "relu" and residual is not None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    src, weight, ctx.bias, residual, ctx.eps, ctx.activation, ctx.parameter = inputs
    dst, mean, inverse_stddev, _, *copies = output
    ctx.mark_non_differentiable(*output[1:])
    of_activation = (None, None, None, None)
    if needs_dst(ctx.activation, residual):
        of_activation = (None, None, None, dst)
    elif ctx.activation:
        of_activation = (*copies, residual, None)
    ctx.save_for_backward(src, mean, inverse_stddev, weight, *of_activation)


def _backward(ctx: Any, diff_dst: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        gradients = _differentiable(ctx, diff_dst)
    else:
        activation = ctx.activation, ctx.parameter
        gradients = batch_norm_training_backward(diff_dst, *ctx.saved_tensors, *activation)
    needed = zip(gradients, ctx.needs_input_grad, strict=False)
    return *(gradient if is_needed else None for gradient, is_needed in needed), None, None, None


def _differentiable(ctx: Any, diff_dst: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradients by PyTorch's gradients, which can be differentiated again."""
    src, mean, inverse_stddev, weight, forward_weight, forward_bias, residual, dst = (
        ctx.saved_tensors
    )
    if ctx.activation:
        value = dst
        if value is None:
            # The values of the forward pass, and the derivatives by the parameters.
            parameters = (
                copy if given is None else copy + (given - given.detach())
                for copy, given in ((forward_weight, weight), (forward_bias, ctx.bias))
            )
            value, *_ = batch_norm_training(src, *parameters, None, ctx.eps, None, None)
            value = value if residual is None else value + residual
        value = value if value.requires_grad else value.detach().requires_grad_()
        result = activate(value, ctx.activation, ctx.parameter)
        (diff_dst,) = torch.autograd.grad(result, value, diff_dst, create_graph=True)
    saved = weight, None, None, mean, inverse_stddev
    gradients = torch.ops.aten.native_batch_norm_backward(
        diff_dst, src, *saved, True, ctx.eps, ctx.needs_input_grad[:3]
    )
    return *gradients, diff_dst


torch.library.register_autograd(
    "onedsl::batch_norm_training", _backward, setup_context=_setup_context, lib=_LIBRARY
)


def update_running(
    running: tuple[Tensor | None, Tensor | None],
    output: tuple[Tensor, ...],
    momentum: float | Tensor,
) -> None:
    """Update running statistics by results of the operator, as PyTorch does."""
    _, mean, _, variance, *_ = output
    for statistic, new in zip(running, (mean, variance), strict=True):
        if statistic is not None:
            statistic.lerp_(new, momentum)


class BatchNormTraining(torch.autograd.Function):
    """The forward operator and the update of the running statistics, in eager mode.

    Checkpointing may end the recomputation at any operation that saves tensors. A function saves
    them after all else, so that the statistics are updated as often as PyTorch's layer does.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        """Compute the outputs of the operator, and update the last but one argument."""
        *inputs, running, momentum = arguments
        # This function is the gradient of the operator, which needs none of its own.
        with torch._C._AutoDispatchBelowAutograd():
            output: tuple[Tensor, ...] = batch_norm_training(*inputs)
        update_running(running, output, momentum)
        _setup_context(ctx, tuple(inputs), output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments."""
        return *_backward(ctx, *gradients), None, None
