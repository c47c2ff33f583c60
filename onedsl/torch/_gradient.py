"""The gradient as a custom op of ``torch.library``, and the derivative of the gradient."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..operators import attributes
from ..operators.base import ChannelOperator
from ..operators.batch_norm_training_backward import SCHEMA, BatchNormGradients
from ..tensors.spec import DataFormatLike, parse_data_format


def batch_norm_backward(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = "NCX",
    statistics: Literal["batch", "frozen"] = "batch",
    output_mask: Sequence[bool] = (True, True, True),
) -> BatchNormGradients[Tensor]:
    """Compute the gradients of batch normalization.

    This function works in eager mode, under torch.compile and on fake tensors. Its results can be
    differentiated once more, in reverse mode. That derivative treats mean and variance as functions
    of src if `statistics` is ``"batch"``, and otherwise as constants. A third derivative is wrong
    with ``"batch"``, as PyTorch's own is: it takes them for constants.

    Parameters
    ----------
    src : Tensor, (N, C, ...) or (N, ..., C), float32, bfloat16 or float16, on the CPU
        Input of the forward pass.
    diff_dst : Tensor, src's shape and dtype
        Gradient of the loss with respect to the output of the forward pass.
    mean, variance : Tensor, (C,), float32, or bfloat16 where src is bfloat16
        Statistics of the forward pass. variance is the biased variance, not an inverse standard
        deviation.
    gamma : Tensor, (C,), dtype of mean, optional
        The layer's weight, ones by default. It affects diff_src for every `output_mask`, unlike in
        `onedsl.BatchNormTrainingBackward` with ``outputs="diff_src"``.
    epsilon : float
        Added to the variance under the square root. Positive and finite.
    data_format : {"NCX", "NXC"} or DataFormat, default "NCX"
        Position of the channel axis in the shape of src: second, as in PyTorch, or last. Any memory
        layout is allowed.
    statistics : {"batch", "frozen"}
        Whether mean and variance are those of src (training) or constants (evaluation).
    output_mask : sequence of three bools
        Whether to return diff_src, diff_gamma and diff_beta, as in PyTorch's own function. Without
        both of the last two, their sums are not written; diff_src is always computed.

    Returns
    -------
    BatchNormGradients
        Tensors. diff_src has the strides of ``torch.empty_like(src)``. diff_gamma and diff_beta,
        (C,), have the dtype of mean. Those that `output_mask` excludes are None.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Notes
    -----
    The formulas are those of `onedsl.BatchNormTrainingBackward`, or of
    `onedsl.BatchNormalizationGrad` if the statistics are frozen.

    Tensors of any strides are supported. `enable` states which are copied.
    """
    epsilon = attributes.parse_epsilon(epsilon)
    mask = tuple(output_mask) if isinstance(output_mask, Sequence) else ()
    if len(mask) != 3 or not all(isinstance(requested, bool) for requested in mask):
        raise ValueError(f"output_mask must be three bools, got {output_mask!r}")
    sums = mask[1] or mask[2]
    gradients = torch.ops.onedsl.batch_norm_backward(
        src, diff_dst, mean, variance, gamma, epsilon, str(data_format), statistics, sums
    )
    every = (*gradients, None, None)[:3]
    return BatchNormGradients(*(t if kept else None for t, kept in zip(every, mask, strict=True)))


# `sums` selects whether diff_gamma and diff_beta are computed.
torch.library.define(
    "onedsl::batch_norm_backward",
    "(Tensor src, Tensor diff_dst, Tensor mean, Tensor variance, Tensor? gamma, float epsilon, "
    "str data_format, str statistics, bool sums) -> Tensor[]",
)


@functools.lru_cache(maxsize=256)
def _operator(epsilon: float, data_format: str, statistics: str) -> ChannelOperator[Any]:
    """Return the operator, which uses gamma for every result."""
    schema = replace(SCHEMA, ignored="")
    return ChannelOperator(schema, statistics, epsilon=epsilon, data_format=data_format)


@torch.library.impl("onedsl::batch_norm_backward", "CPU")
def _backward(src: Tensor, *arguments: Any) -> list[Tensor]:
    *others, epsilon, data_format, statistics, sums = arguments
    inputs = tuple(t if t is None else t.detach() for t in (src, *others))
    operator = _operator(epsilon, data_format, statistics)
    results, out = [], None
    if src is not None and others[1] is not None:
        results = _results(src, others[1], sums)
        out = BatchNormGradients(*(*results, None, None)[:3])
    operator._call(inputs, "all" if sums else "diff_src", out, "auto")
    return results


def _results(src: Tensor, mean: Tensor, sums: bool) -> list[Tensor]:
    return [torch.empty_like(src)] + [mean.new_empty(mean.shape) for _ in range(2 * sums)]


@torch.library.register_fake("onedsl::batch_norm_backward")
def _fake(src: Tensor, *arguments: Any) -> list[Tensor]:
    diff_dst, mean, *others, _, data_format, _, sums = arguments
    channels = parse_data_format(data_format).channels_of(src.shape)
    vectors = [t for t in (mean, *others) if t is not None]
    checks = {
        "diff_dst must have src's shape": diff_dst.shape == src.shape,
        "mean, variance and gamma must have one value per channel of src": all(
            t.shape == channels for t in vectors
        ),
        "all tensors must be on src's device": all(
            t.device == src.device for t in (diff_dst, *vectors)
        ),
    }
    for message, is_met in checks.items():
        torch._check(is_met, lambda message=message: message)
    return _results(src, mean, sums)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.epsilon, ctx.data_format, ctx.statistics, ctx.sums = inputs
    ctx.save_for_backward(*tensors)


def _double_backward(ctx: Any, cotangents: list[Tensor]) -> tuple[Any, ...]:
    """Differentiate ``<u, diff_src> + <a, diff_gamma> + <b, diff_beta>``.

    Let r = 1 / sqrt(variance + epsilon) and P(v) = v - E[v] - xhat E[v xhat], which is symmetric.
    With batch statistics, diff_src = gamma r P(diff_dst), d xhat = r P(d src) and
    d r = -r^2 E[xhat d src]. With frozen statistics, P is the identity and r is a constant.
    """
    src, diff_dst, mean, variance, gamma = ctx.saved_tensors
    data_format = parse_data_format(ctx.data_format)
    axes = data_format.summed_axes(src.ndim)
    channel_shape = data_format.broadcast_shape(src.shape)
    batch = ctx.statistics == "batch"

    def channels(t: Tensor | None, default: float) -> Tensor:
        return mean.new_full((1,) * src.ndim, default) if t is None else t.reshape(channel_shape)

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
    # Batch statistics are functions of src, frozen ones are constants: no gradients of their own.
    none = (None, None)
    return d_src.to(src.dtype), d_diff_dst.to(src.dtype), *none, d_gamma, *none, *none


torch.library.register_autograd(
    "onedsl::batch_norm_backward", _double_backward, setup_context=_setup_context
)
