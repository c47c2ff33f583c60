"""The gradient of batch normalization as a function that can be differentiated."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..operators.attributes import parse_epsilon, parse_statistics
from ..operators.batch_norm_training_backward import BatchNormGradients
from ..tensors.spec import DataFormatLike, parse_data_format
from ._operators import batch_norm_training_backward, reduce_gradient


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
    differentiated, in reverse mode. The derivatives treat mean and variance as functions of src if
    `statistics` is ``"batch"``, and otherwise as constants.

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
        Whether to return diff_src, diff_gamma and diff_beta, as in PyTorch's own function. All
        three are computed.

    Returns
    -------
    BatchNormGradients
        Tensors. diff_src has the strides of ``torch.empty_like(src)``. diff_gamma and diff_beta,
        (C,), have the dtype of mean. Those that `output_mask` excludes are None.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If an argument is invalid. Messages name the operators' arguments: inverse_stddev for
        variance, and weight for gamma.

    Notes
    -----
    The formulas are those of `onedsl.BatchNormTrainingBackward`, or of
    `onedsl.BatchNormalizationGrad` if the statistics are frozen.

    Tensors of any strides are supported. `enable` states which are copied.
    """
    epsilon, of_batch = parse_epsilon(epsilon), parse_statistics(statistics) == "batch"
    channel_axis = parse_data_format(data_format).channel_axis
    mask = tuple(output_mask) if isinstance(output_mask, Sequence) else ()
    if len(mask) != 3 or not all(isinstance(requested, bool) for requested in mask):
        raise ValueError(f"output_mask must be three bools, got {output_mask!r}")
    required = {"src": src, "diff_dst": diff_dst, "mean": mean, "variance": variance}
    for name, value in required.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    vector_dtype = mean.dtype
    if src.dtype is vector_dtype is torch.bfloat16:  # the operators' vectors are float32
        mean, variance = _widened(mean), _widened(variance)
        gamma = None if gamma is None else _widened(gamma)
    # In float64, so that it is rounded once.
    inverse_stddev = (variance.double() + epsilon).rsqrt().to(variance.dtype)
    tensors = (t if channel_axis == 1 else t.movedim(-1, 1) for t in (diff_dst, src))
    diff_src, *sums = _Gradients.apply(*tensors, mean, inverse_stddev, gamma, of_batch)
    diff_src = diff_src if channel_axis == 1 else diff_src.movedim(1, -1)
    gradients = diff_src, *(t.to(vector_dtype) for t in sums)
    pairs = zip(gradients, mask, strict=True)
    return BatchNormGradients(*(t if requested else None for t, requested in pairs))


def _widened(vector: Tensor) -> Tensor:
    """Return a vector of bfloat16 in float32. The operators reject other dtypes."""
    return vector.float() if vector.dtype is torch.bfloat16 else vector


class _Gradients(torch.autograd.Function):
    """The gradients by onedsl's operators, and their derivatives by `_formulas`."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        """Compute diff_src, diff_gamma and diff_beta. The channels are the second axis."""
        *tensors, ctx.of_batch = arguments
        ctx.save_for_backward(*tensors)
        if ctx.of_batch:
            return tuple(batch_norm_training_backward(*tensors, *[None] * 6)[:3])
        diff_dst, src, mean, inverse_stddev, gamma = tensors
        _, diff_beta, diff_gamma = reduce_gradient(*tensors).float().split([1, *2 * mean.shape])
        scale = inverse_stddev if gamma is None else inverse_stddev * gamma
        diff_src = torch.empty_like(src).copy_(diff_dst * _broadcast(scale, src))
        return diff_src, diff_gamma, diff_beta

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments. mean and inverse_stddev have none."""
        diff_dst, src, mean, inverse_stddev, gamma = ctx.saved_tensors
        formulas = functools.partial(_formulas, mean, inverse_stddev, ctx.of_batch)
        inputs = (diff_dst, src) if gamma is None else (diff_dst, src, gamma)
        _, derivatives = torch.func.vjp(formulas, *inputs)
        of_diff_dst, of_src, *of_gamma = derivatives(cotangents)
        return of_diff_dst, of_src, None, None, of_gamma[0] if of_gamma else None, None


def _broadcast(vector: Tensor, like: Tensor) -> Tensor:
    """Return a vector of channels in a shape that broadcasts to a tensor."""
    return vector.view(-1, *[1] * (like.ndim - 2))


def _formulas(
    mean: Tensor,
    inverse_stddev: Tensor,
    of_batch: bool,
    diff_dst: Tensor,
    src: Tensor,
    gamma: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients by operations of PyTorch, which can be differentiated."""
    axes = [axis for axis in range(src.ndim) if axis != 1]
    x, d = src.to(mean.dtype), diff_dst.to(mean.dtype)
    mean, stddev = _broadcast(mean, src), _broadcast(inverse_stddev, src).reciprocal()

    def average(t: Tensor) -> Tensor:
        return t.mean(axes, keepdim=True)

    if of_batch:  # functions of src, with the values that the caller passed
        mean = mean + (average(x) - average(x).detach())
        variance = average((x - mean).square())
        stddev = (stddev.square() + (variance - variance.detach())).sqrt()
    xhat = (x - mean) / stddev
    diff_src = d - average(d) - xhat * average(d * xhat) if of_batch else d
    diff_src = diff_src / stddev
    if gamma is not None:
        diff_src = diff_src * _broadcast(gamma, src)
    return diff_src.to(src.dtype), (d * xhat).sum(axes), d.sum(axes)
