"""PyTorch's batch-norm layers with onedsl's gradient.

`BatchNorm1d`, `BatchNorm2d` and `BatchNorm3d` are torch.nn's, and `convert` puts them into a model
that is there already. `batch_norm_backward` is the gradient alone, a ``torch.library`` custom op:
``torch.ops.onedsl.batch_norm_backward``.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

try:
    import torch
except ImportError as _error:
    raise ImportError("onedsl.torch needs PyTorch: pip install torch", name="torch") from _error

from torch import Tensor, nn

from . import _check, _core
from ._operators import BatchNormGradients, BatchNormTrainingBackward
from ._spec import parse_data_format

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "batch_norm",
    "batch_norm_backward",
    "convert",
    "revert",
]

_NAMES = BatchNormTrainingBackward._dialect.names
_AUTO = _core.Backend.auto
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def batch_norm_backward(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    *,
    epsilon: float,
    data_format: str = "NCX",
    statistics: Literal["batch", "frozen"] = "batch",
    outputs: Literal["all", "diff_src"] = "all",
) -> BatchNormGradients:
    """Compute the gradients of batch normalization.

    Works in eager mode, under torch.compile and on fake tensors, and can be differentiated once
    more: with ``statistics="batch"`` mean and variance count as functions of src, otherwise as
    constants.

    Parameters
    ----------
    src : Tensor, (N, C, ...) or (N, ..., C), float32, bfloat16 or float16, on the CPU
        Input of the forward pass. Used where it lies if its memory is dense in any order of its
        axes (channels_last is), else copied.
    diff_dst : Tensor, src's shape and dtype
        Gradient of the loss with respect to the output of the forward pass. Copied if it lies
        otherwise than src.
    mean, variance : Tensor, (C,), float32, or bfloat16 where src is bfloat16
        Those of the forward pass; the variance is the biased one, never an inverse deviation.
    gamma : Tensor, (C,), dtype of mean, optional
        The layer's weight. Absent means ones. It counts whatever `outputs` is.
    epsilon : float
        Added to the variance, inside the root.
    data_format : {"NCX", "NXC"}
        Where the channels are in the shape; PyTorch has them at index 1.
    statistics : {"batch", "frozen"}
        Whether mean and variance are those of src (training) or constants (evaluation).
    outputs : {"all", "diff_src"}
        What to compute.

    Returns
    -------
    BatchNormGradients
        Tensors. diff_src lies in memory as src does; diff_gamma and diff_beta are None if not
        asked for.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    The formulas are those of `onedsl.BatchNormTrainingBackward`, and with frozen statistics those
    of `onedsl.BatchNormalizationGrad`.
    """
    epsilon = _check.epsilon(epsilon)
    sums = _check.outputs(outputs, _NAMES)
    gradients = torch.ops.onedsl.batch_norm_backward(
        src, diff_dst, mean, variance, gamma, epsilon, str(data_format), statistics, sums
    )
    return BatchNormGradients(*gradients)


# ---- The custom op ----

torch.library.define(
    "onedsl::batch_norm_backward",
    "(Tensor src, Tensor diff_dst, Tensor mean, Tensor variance, Tensor? gamma, float epsilon, "
    "str data_format, str statistics, bool sums) -> Tensor[]",
)
_op = torch.ops.onedsl.batch_norm_backward.default


@functools.lru_cache(maxsize=256)
def _core_operator(
    epsilon: float, data_format: str, statistics: str, inverse: bool
) -> _core.Operator:
    return _core.Operator(
        epsilon,
        _check.statistics(statistics),
        parse_data_format(data_format).layout,
        keeps_history=True,  # autograd has it: this is called below it
        inverse=inverse,
    )


def _run(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None,
    epsilon: float,
    data_format: str,
    statistics: str,
    sums: bool,
    inverse: bool = False,
) -> list[Tensor] | None:
    """Give None for what the core does not take as it is.

    With `inverse`, variance is 1 / sqrt(variance + epsilon), which PyTorch saves.
    """
    operator = _core_operator(epsilon, data_format, statistics, inverse)
    gradients = operator.run(src, diff_dst, mean, variance, gamma, sums, None, _AUTO)
    return gradients and list(gradients if sums else gradients[:1])


@torch.library.impl("onedsl::batch_norm_backward", "CPU")
def _backward(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None,
    *attributes: Any,
) -> list[Tensor]:
    gradients = _run(src, diff_dst, mean, variance, gamma, *attributes)
    if gradients is None and (diff_dst.shape, diff_dst.dtype) == (src.shape, src.dtype):
        # Strides or alignment, it may be. PyTorch copies with all its threads.
        dense = torch.empty_like(src)
        if src.stride() != dense.stride() or src.data_ptr() % src.element_size():
            src = dense.copy_(src.detach())
        gradients = _run(
            src,
            torch.empty_like(src).copy_(diff_dst.detach()),
            _copied(mean),
            _copied(variance),
            None if gamma is None else _copied(gamma),
            *attributes,
        )
    if gradients is None:
        _, data_format, _, sums = attributes
        ports = [t if t is None else t.detach() for t in (src, diff_dst, mean, variance, gamma)]
        layout = parse_data_format(data_format).layout
        _check.arguments(BatchNormTrainingBackward._dialect, layout, ports, sums=sums, out=None)
        raise AssertionError("the core refused arguments that its checks had passed")
    return gradients


def _copied(channels: Tensor) -> Tensor:
    return channels.detach().clone(memory_format=torch.contiguous_format)


@torch.library.register_fake("onedsl::batch_norm_backward")
def _fake(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None,
    *attributes: Any,
) -> list[Tensor]:
    _, data_format, _, sums = attributes
    axis = parse_data_format(data_format).channel_axis
    torch._check(diff_dst.shape == src.shape, lambda: "diff_dst must have src's shape")
    for t in (mean, variance, gamma):
        torch._check(
            t is None or t.shape == src.shape[axis:][:1],
            lambda: "mean, variance and gamma must have one value a channel of src",
        )
    for t in (diff_dst, mean, variance, gamma):
        torch._check(
            t is None or t.device == src.device, lambda: "all tensors must be on src's device"
        )
    return [torch.empty_like(src)] + [mean.new_empty(mean.shape) for _ in range(2 * sums)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.epsilon, ctx.data_format, ctx.statistics, ctx.sums = inputs
    ctx.save_for_backward(*tensors)


def _double_backward(ctx: Any, cotangents: list[Tensor]) -> tuple[Any, ...]:
    """Differentiate ``<u, diff_src> + <a, diff_gamma> + <b, diff_beta>``.

    With P v = v - E[v] - xhat E[v xhat], the gradient for batch statistics is
    diff_src = gamma r P(diff_dst), P is symmetric, and d xhat = r P(d src), d r = -r^2 E[xhat
    d src]. With frozen statistics P is the identity, and r is a constant.
    """
    src, diff_dst, mean, variance, gamma = ctx.saved_tensors
    axis = parse_data_format(ctx.data_format).channel_axis % src.ndim
    axes = [i for i in range(src.ndim) if i != axis]
    shape = [-1 if i == axis else 1 for i in range(src.ndim)]
    batch = ctx.statistics == "batch"

    def channels(t: Tensor | None, absent: float) -> Tensor:
        return mean.new_full((1,) * src.ndim, absent) if t is None else t.reshape(shape)

    def average(t: Tensor) -> Tensor:
        return t.mean(axes, keepdim=True)

    def project(t: Tensor) -> Tensor:
        return t - average(t) - xhat * average(t * xhat) if batch else t

    wide = torch.promote_types(src.dtype, torch.float32)
    u, *rest = cotangents
    a, b = (channels(t, 0.0).to(wide) for t in (rest or (None, None)))
    g = diff_dst.to(wide)
    u = torch.zeros_like(g) if u is None else u.to(wide)
    gamma_ = channels(gamma, 1.0).to(wide)
    r = torch.rsqrt(channels(variance, 1.0).to(wide) + ctx.epsilon)
    xhat = (src.to(wide) - channels(mean, 0.0)) * r

    pg, pu = project(g), project(u)
    d_src = a * r * pg
    if batch:
        d_src = d_src - gamma_ * r * r * (
            xhat * average(u * pg) + average(u * xhat) * pg + average(g * xhat) * pu
        )
    d_diff_dst = gamma_ * r * pu + a * xhat + b
    d_gamma = None if gamma is None else (r * (u * pg)).sum(axes).to(gamma.dtype)
    return (
        d_src.expand_as(src).to(src.dtype),
        d_diff_dst.to(src.dtype),
        None,
        None,
        d_gamma,
        None,
        None,
        None,
        None,
    )


torch.library.register_autograd(
    "onedsl::batch_norm_backward", _double_backward, setup_context=_setup_context
)


# ---- The layers ----


class _BatchNorm(torch.autograd.Function):
    """PyTorch's forward pass, onedsl's backward pass.

    With setup_context, which torch.func would need, PyTorch takes 26 microseconds more a call.
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
        dst, mean, inverse = torch.native_batch_norm(
            src, weight, bias, running_mean, running_var, training, momentum, eps
        )
        ctx.training, ctx.eps = training, eps
        if training:
            ctx.save_for_backward(src, mean, inverse, weight)
        else:
            ctx.save_for_backward(src, running_mean, running_var, weight)
        return dst

    @staticmethod
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        # In training, variance is 1 / sqrt(variance + eps), as PyTorch saves it: eps is in it.
        src, mean, variance, weight = ctx.saved_tensors
        gamma = weight
        if mean.dtype is not torch.float32:
            mean, variance = mean.float(), variance.float()
            gamma = None if weight is None else weight.float()
        sums = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        epsilon, statistics = (0.0, "batch") if ctx.training else (ctx.eps, "frozen")
        attributes = (epsilon, "NCX", statistics, sums)
        # The dispatcher takes longer than the gradient of a small layer: it is called only where
        # somebody (autograd, a compiler, a dispatch mode) has to see the op.
        gradients = None
        if not (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch._C._len_torch_dispatch_stack()
        ):
            gradients = _run(src, diff_dst, mean, variance, gamma, *attributes, ctx.training)
        if gradients is None:
            if ctx.training:
                variance = variance.reciprocal().square()
            gradients = _op(src, diff_dst, mean, variance, gamma, *attributes)
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

    Parameters, result and errors are PyTorch's. Where onedsl has no gradient (another device or
    layout, a type other than float32, bfloat16 and float16, an empty input, eps = 0, a trace by
    torch.jit) it is PyTorch's own function that runs. Forward mode, batched gradients and
    torch.func's transforms are refused by PyTorch.
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
    """Tell whether onedsl has the gradient. What is wrong is left to PyTorch, and to its words."""
    if not (input.is_cpu and input.layout is torch.strided and input.dtype in _TYPES):
        return False
    if input.ndim < 2 or eps <= 0 or torch.jit.is_tracing():
        return False
    count = input.shape[1]
    for t in (weight, bias, running_mean, running_var):
        if t is not None and (t.ndim != 1 or len(t) != count):
            return False
    if training:
        return bool(input.numel() > count)  # PyTorch wants two values a channel
    return running_mean is not None and running_var is not None and input.numel() > 0


class _Layer(nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        self._check_input_dim(input)
        tracked = self.training and self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        running = tracked or not self.training
        mean, variance = (self.running_mean, self.running_var) if running else (None, None)
        batch = self.training or (self.running_mean is None and self.running_var is None)
        return batch_norm(input, mean, variance, self.weight, self.bias, batch, momentum, self.eps)


class BatchNorm1d(_Layer, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d with onedsl's gradient: the same arguments, state and results."""


class BatchNorm2d(_Layer, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d with onedsl's gradient: the same arguments, state and results."""


class BatchNorm3d(_Layer, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d with onedsl's gradient: the same arguments, state and results."""


_CONVERTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def convert(module: nn.Module) -> nn.Module:
    """Give every batch-norm layer of a model onedsl's gradient, in place.

    The layers stay the objects that they are, with their parameters, buffers, hooks and mode; only
    their class changes. Subclasses of PyTorch's three classes are left alone, so that a lazy layer
    must have seen its first input before.

    Parameters
    ----------
    module : torch.nn.Module
        A model, or a layer.

    Returns
    -------
    torch.nn.Module
        The same object.
    """
    return _recast(module, _CONVERTED)


def revert(module: nn.Module) -> nn.Module:
    """Undo `convert`, for tools that know PyTorch's own layers alone (torch.fx, torch.jit.script).

    Parameters
    ----------
    module : torch.nn.Module
        A model, or a layer.

    Returns
    -------
    torch.nn.Module
        The same object.
    """
    return _recast(module, {ours: theirs for theirs, ours in _CONVERTED.items()})


def _recast(module: nn.Module, classes: dict[type[nn.Module], type[nn.Module]]) -> nn.Module:
    for layer in module.modules():
        layer.__class__ = classes.get(type(layer), type(layer))
    return module
