"""Batch norm in training as functional operators: fused, and kept whole by torch.compile.

Under torch.compile, layers call `batch_norm_training`. A pass over inductor's graph
(`_compiler_pass`) then replaces it, an addition and the ReLU that follows by
`batch_norm_relu_training`, and their gradients by one operator as well. The kernels read tensors in
any dense layout, so the operators have the tag ``flexible_layout``: inductor copies nothing for
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import _core
from ._layers import TYPES, begin_step, is_exporting

_Outputs = tuple[Tensor, Tensor, Tensor]

_LIBRARY = torch.library.Library("onedsl", "FRAGMENT")
_GRADIENT = "Tensor diff_dst, Tensor src, Tensor mean, Tensor variance, Tensor? weight"
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
for _name, _schema in {
    # Return dst, the batch's mean and its biased variance.
    "batch_norm_training": "(Tensor src, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor, Tensor)",
    "batch_norm_relu_training": "(Tensor src, Tensor? weight, Tensor? bias, Tensor? residual,"
    " float eps, float? clip) -> (Tensor, Tensor, Tensor)",
    # The two passes of the operators above. The first returns its sums, the batch's mean and its
    # biased variance. They are not used under torch.compile.
    "batch_norm_sums": "(Tensor src) -> (Tensor, Tensor, Tensor)",
    "batch_norm_apply": "(Tensor sums, Tensor src, Tensor? weight, Tensor? bias, float eps)"
    " -> Tensor",
    "batch_norm_relu_apply": "(Tensor sums, Tensor src, Tensor? weight, Tensor? bias,"
    " Tensor? residual, float eps, float? clip) -> Tensor",
    # Return diff_src, diff_weight, diff_bias, and the gradient of the residual.
    "batch_norm_training_backward": f"({_GRADIENT}, float eps) -> (Tensor, Tensor, Tensor)",
    "batch_norm_relu_training_backward": f"({_GRADIENT}, Tensor? bias, float eps, float? clip)"
    " -> (Tensor, Tensor, Tensor)",
    "batch_norm_add_relu_training_backward": f"({_GRADIENT}, Tensor? bias, Tensor dst, float eps,"
    " float? clip) -> (Tensor, Tensor, Tensor, Tensor)",
    # PyTorch's own. inductor's lowering of aten::convolution_backward copies both tensors to the
    # axis order of the weight's gradient, which is ambiguous in depthwise convolutions.
    "convolution_backward": "(" + str(_CONVOLUTION_BACKWARD._schema).partition("(")[2],
}.items():
    _LIBRARY.define(_name + _schema, tags=(torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag))

_core.register_torch_ops()  # the CPU kernels of all but the last: csrc/torch/own_ops.cpp
batch_norm_training = torch.ops.onedsl.batch_norm_training.default
batch_norm_relu_training = torch.ops.onedsl.batch_norm_relu_training.default
batch_norm_sums = torch.ops.onedsl.batch_norm_sums.default
batch_norm_apply = torch.ops.onedsl.batch_norm_apply.default
batch_norm_relu_apply = torch.ops.onedsl.batch_norm_relu_apply.default
batch_norm_training_backward = torch.ops.onedsl.batch_norm_training_backward.default
batch_norm_relu_training_backward = torch.ops.onedsl.batch_norm_relu_training_backward.default
batch_norm_add_relu_training_backward = (
    torch.ops.onedsl.batch_norm_add_relu_training_backward.default
)
convolution_backward = torch.ops.onedsl.convolution_backward.default


def apply(layer: nn.modules.batchnorm._BatchNorm, src: Tensor) -> Tensor | None:
    """Apply a layer in training under torch.compile; None if PyTorch's functions must run."""
    weight, bias, running_mean = layer.weight, layer.bias, layer.running_mean
    if (
        is_exporting()
        or not layer.training
        or not src.is_cpu
        or src.dtype not in TYPES
        or src.ndim < 2
        or src.numel() <= src.shape[1]
        or layer.eps <= 0
        or (layer.momentum is None and layer.track_running_stats)
        or (running_mean is None) != (layer.running_var is None)
        or not all(t is None or t.dtype is torch.float32 for t in (weight, bias, running_mean))
        or (src.dtype is not torch.float32 and weight is None and running_mean is None)
    ):
        return None
    _register_pass()
    layer._check_input_dim(src)
    running_mean, running_var, _, momentum = begin_step(layer)
    dst, mean, variance = batch_norm_training(src, weight, bias, layer.eps)
    if running_mean is not None and running_var is not None:
        count = src.numel() // src.shape[1]
        with torch.no_grad():
            running_mean.lerp_(mean.detach(), momentum)
            running_var.lerp_(variance.detach() * (count / (count - 1)), momentum)
    return dst


def _register_pass() -> bool:
    """Register the pass with inductor, when the first layer is compiled: the import is slow."""
    from . import _compiler_pass

    _compiler_pass.register()
    return True


# What torch.compiler.assume_constant_result sets, without importing torch._dynamo here: the
# function runs while the layer is traced.
_register_pass._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _fake(src: Tensor) -> _Outputs:
    mean = src.new_empty(src.shape[1], dtype=torch.float32)
    return torch.empty_like(src), mean, torch.empty_like(mean)


@torch.library.register_fake("onedsl::batch_norm_training", lib=_LIBRARY)
@torch.library.register_fake("onedsl::batch_norm_relu_training", lib=_LIBRARY)
def _fake_forward(src: Tensor, *_: Any) -> _Outputs:
    return _fake(src)


@torch.library.register_fake("onedsl::batch_norm_training_backward", lib=_LIBRARY)
@torch.library.register_fake("onedsl::batch_norm_relu_training_backward", lib=_LIBRARY)
def _fake_backward(_diff_dst: Tensor, src: Tensor, *_: Any) -> _Outputs:
    return _fake(src)


@torch.library.register_fake("onedsl::batch_norm_add_relu_training_backward", lib=_LIBRARY)
def _fake_add_relu_backward(_diff_dst: Tensor, src: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return *_fake(src), torch.empty_like(src)


@torch.library.impl(_LIBRARY, "convolution_backward", "CPU")
@torch.library.register_fake("onedsl::convolution_backward", lib=_LIBRARY)
def _convolution_backward(*arguments: Any) -> Any:
    return _CONVOLUTION_BACKWARD(*arguments)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Outputs) -> None:
    src, weight, bias, ctx.eps = inputs
    _, mean, variance = output
    ctx.save_for_backward(src, mean, variance, weight)
    ctx.has_bias = bias is not None


def _backward(ctx: Any, diff_dst: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    src, mean, variance, weight = ctx.saved_tensors
    diff_src, diff_weight, diff_bias = batch_norm_training_backward(
        diff_dst, src, mean, variance, weight, ctx.eps
    )
    return (
        diff_src,
        None if weight is None else diff_weight,
        diff_bias if ctx.has_bias else None,
        None,
    )


torch.library.register_autograd(
    "onedsl::batch_norm_training", _backward, setup_context=_setup_context, lib=_LIBRARY
)
