"""The formulas in float64."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from ..operators import _attributes
from ..operators.batch_norm_forward_training import BatchNormForward
from ..operators.batch_norm_relu_training_backward import BatchNormReLUGradients
from ..operators.batch_norm_training_backward import BatchNormGradients
from ..operators.batch_normalization_grad import BatchNormalizationGradients
from ..tensors.spec import DataFormat, DataFormatLike
from ._arrays import Float64, layout, wide

Statistics = Literal["batch", "frozen"]


def batch_norm(
    src: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    mean: npt.ArrayLike | None = None,
    variance: npt.ArrayLike | None = None,
) -> Float64:
    """Compute the forward pass in float64.

    ``gamma * (src - mean) / sqrt(variance + epsilon) + beta``, with src's own mean and biased
    variance where they are not given (batch statistics), and the given ones else (frozen).

    Parameters
    ----------
    src : array_like, (N, ..., C) or (N, C, ...)
    gamma, beta, mean, variance : array_like, (C,), optional
    epsilon : float
    data_format : {"NXC", "NCX"} or DataFormat

    Returns
    -------
    ndarray of float64, src's shape
    """
    x, axes, shape = layout(src, data_format)
    mu = x.mean(axes) if mean is None else wide(mean)
    var = ((x - mu.reshape(shape)) ** 2).mean(axes) if variance is None else wide(variance)
    result = (x - mu.reshape(shape)) / np.sqrt(var + epsilon).reshape(shape)
    if gamma is not None:
        result = result * wide(gamma).reshape(shape)
    if beta is not None:
        result = result + wide(beta).reshape(shape)
    return result


def batch_norm_backward(
    src: npt.ArrayLike,
    diff_dst: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    statistics: Statistics = "batch",
) -> BatchNormGradients:
    """Compute the gradients in float64, formula by formula.

    Parameters
    ----------
    src, diff_dst : array_like, (N, ..., C) or (N, C, ...)
    mean, variance : array_like, (C,)
        The biased variance.
    gamma : array_like, (C,), optional
        Absent means ones.
    epsilon : float
    data_format : {"NXC", "NCX"} or DataFormat
    statistics : {"batch", "frozen"}
        Whether mean and variance are src's, so that the gradient flows through them, or constants.

    Returns
    -------
    BatchNormGradients
        Of float64 arrays.
    """
    x, axes, shape = layout(src, data_format)
    if gamma is None:
        gamma = np.ones_like(wide(variance))
    diff_src, diff_gamma, diff_beta = _gradients(
        x,
        wide(diff_dst),
        wide(mean).reshape(shape),
        wide(variance).reshape(shape),
        wide(gamma).reshape(shape),
        epsilon=epsilon,
        axes=axes,
        statistics=statistics,
    )
    return BatchNormGradients(diff_src, diff_gamma.reshape(-1), diff_beta.reshape(-1))


def batch_normalization_grad(
    input: npt.ArrayLike,  # noqa: A002 - DirectML's name
    input_gradient: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    scale: npt.ArrayLike,
    *,
    epsilon: float,
) -> BatchNormalizationGradients:
    """Compute DirectML's gradient, for frozen statistics, in float64.

    Parameters
    ----------
    input, input_gradient : array_like
        Of one shape.
    mean, variance, scale : array_like
        Of input's rank, each size input's or 1: the sums go over the latter.
    epsilon : float

    Returns
    -------
    BatchNormalizationGradients
        Of float64 arrays.
    """
    x = wide(input)
    mu = wide(mean)
    sizes = zip(mu.shape, x.shape, strict=True)
    axes = tuple(axis for axis, (size, whole) in enumerate(sizes) if size == 1 != whole)
    gradients = _gradients(
        x,
        wide(input_gradient),
        mu,
        wide(variance),
        wide(scale),
        epsilon=epsilon,
        axes=axes,
        statistics="frozen",
    )
    return BatchNormalizationGradients(*gradients)


def _gradients(
    x: Float64,
    dy: Float64,
    mean: Float64,
    variance: Float64,
    gamma: Float64,
    *,
    epsilon: float,
    axes: tuple[int, ...],
    statistics: str,
) -> tuple[Float64, Float64, Float64]:
    """Write the formulas down, for statistics that broadcast to x and sums that go over axes."""
    _attributes.statistics(statistics)
    rstd = 1 / np.sqrt(variance + epsilon)
    xhat = (x - mean) * rstd
    diff_beta: Float64 = np.sum(dy, axis=axes, keepdims=True)
    diff_gamma: Float64 = np.sum(dy * xhat, axis=axes, keepdims=True)
    diff_src = dy
    if statistics == "batch" and x.size:
        count = x.size // diff_beta.size
        diff_src = dy - diff_beta / count - xhat * diff_gamma / count
    return gamma * rstd * diff_src, diff_gamma, diff_beta


def batch_norm_forward_training(
    src: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    residual: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    momentum: float | None = None,
    data_format: DataFormatLike = DataFormat.NXC,
    relu: bool = False,
    clip: float | None = None,
) -> BatchNormForward:
    """Compute the forward pass in training in float64, with the ReLU behind it if asked for.

    Parameters
    ----------
    src, residual : array_like, (N, ..., C) or (N, C, ...)
    mean, variance : array_like, (C,)
        The running statistics.
    gamma, beta : array_like, (C,), optional
    epsilon : float
    momentum : float, optional
        Absent means oneDNN's 0.5.
    data_format : {"NXC", "NCX"} or DataFormat
    relu : bool
        Whether dst is cut off below 0, and above `clip` if that is given.
    clip : float, optional

    Returns
    -------
    BatchNormForward
        Of float64 arrays.
    """
    x, axes, shape = layout(src, data_format)
    share = 0.5 if momentum is None else momentum
    batch_mean, batch_variance = wide(mean) * 0, wide(variance) * 0
    running_mean, running_variance = wide(mean), wide(variance)
    if x.size:
        batch_mean = x.mean(axes)
        batch_variance = ((x - batch_mean.reshape(shape)) ** 2).mean(axes)
        running_mean = share * running_mean + (1 - share) * batch_mean
        running_variance = share * running_variance + (1 - share) * batch_variance
    dst = batch_norm(src, gamma, beta, epsilon=epsilon, data_format=data_format) if x.size else x
    if residual is not None:
        dst = dst + wide(residual)
    if relu:
        dst = np.clip(dst, 0, clip)  # a NaN stays one
    return BatchNormForward(dst, running_mean, running_variance, batch_mean, batch_variance)


def batch_norm_relu_backward(
    src: npt.ArrayLike,
    diff_dst: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    dst: npt.ArrayLike,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    clip: float | None = None,
) -> BatchNormReLUGradients:
    """Compute the gradients of batch normalization and ReLU in float64.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma
        As in `batch_norm_backward`.
    dst : array_like, src's shape
        Output of the ReLU, as rounded to its type: it was open where ``not (dst <= 0 or
        dst >= clip)``.
    epsilon : float
    data_format : {"NXC", "NCX"} or DataFormat
    clip : float, optional

    Returns
    -------
    BatchNormReLUGradients
        Of float64 arrays.
    """
    output = wide(dst)
    closed = (output <= 0) | (output >= (np.inf if clip is None else clip))
    masked = np.where(closed, 0, wide(diff_dst))
    gradients = batch_norm_backward(
        src, masked, mean, variance, gamma, epsilon=epsilon, data_format=data_format
    )
    return BatchNormReLUGradients(*gradients, masked)
