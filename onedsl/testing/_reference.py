"""Float64 reference implementations. Each docstring cites the source of its formulas."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from .. import _core
from ..operators import _attributes
from ..operators.batch_norm_forward_training import BatchNormForward
from ..operators.batch_norm_relu_training_backward import BatchNormReLUGradients
from ..operators.batch_norm_training_backward import BatchNormGradients
from ..operators.batch_normalization_grad import BatchNormalizationGradients
from ..tensors.spec import DataFormat, DataFormatLike
from ._arrays import Float64, prepare, to_float64

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
    """Compute batch normalization in float64.

    Parameters
    ----------
    src : array_like, (N, ..., C) or (N, C, ...)
    gamma, beta : array_like, (C,), optional
        Scale and shift. The defaults are ones and zeros.
    epsilon : float
    data_format : {"NXC", "NCX"} or DataFormat
    mean, variance : array_like, (C,), optional
        The statistics to normalize by. The defaults are src's mean and biased variance.

    Returns
    -------
    ndarray of float64, src's shape

    Notes
    -----
    ``dst = gamma * (src - mean) / sqrt(variance + epsilon) + beta`` for each channel: Algorithm 1
    of [1]_ with the default mean and variance, oneDNN's BatchNormInference [2]_ otherwise.

    References
    ----------
    .. [1] S. Ioffe, C. Szegedy: Batch Normalization: Accelerating Deep Network Training by Reducing
       Internal Covariate Shift, 2015.
    .. [2] oneDNN developer guide, Graph API, operation BatchNormInference.
    """
    x, axes, shape = prepare(src, data_format)
    mu = x.mean(axes) if mean is None else to_float64(mean)
    var = ((x - mu.reshape(shape)) ** 2).mean(axes) if variance is None else to_float64(variance)
    result = (x - mu.reshape(shape)) / np.sqrt(var + epsilon).reshape(shape)
    if gamma is not None:
        result = result * to_float64(gamma).reshape(shape)
    if beta is not None:
        result = result + to_float64(beta).reshape(shape)
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
    """Compute the gradients of batch normalization in float64.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma, epsilon, data_format : array_like, float, DataFormat
        As in `onedsl.BatchNormTrainingBackward`.
    statistics : {"batch", "frozen"}
        ``"batch"``: mean and variance are functions of src, and the gradient flows through them.
        ``"frozen"``: they are constants.

    Returns
    -------
    BatchNormGradients
        Float64 arrays. For an empty src, diff_gamma and diff_beta are zeros.

    Notes
    -----
    The formulas are those of `onedsl.BatchNormTrainingBackward` [1]_ [2]_, and for frozen
    statistics those of `onedsl.BatchNormalizationGrad` [3]_.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormTrainingBackward.
    .. [2] S. Ioffe, C. Szegedy: Batch Normalization: Accelerating Deep Network Training by Reducing
       Internal Covariate Shift, 2015, Section 3, simplified.
    .. [3] DirectML reference, DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC.
    """
    x, axes, shape = prepare(src, data_format)
    if gamma is None:
        gamma = np.ones_like(to_float64(variance))
    channels = (max(shape, default=1),) if x.size else np.shape(mean)
    for name, array in (("mean", mean), ("variance", variance), ("gamma", gamma)):
        if np.shape(array) != channels:
            raise ValueError(f"{name} must have shape {channels}, got {np.shape(array)}")
    diff_src, diff_gamma, diff_beta = _gradients(
        x,
        to_float64(diff_dst),
        to_float64(mean).reshape(shape),
        to_float64(variance).reshape(shape),
        to_float64(gamma).reshape(shape),
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
    """Compute DirectML's gradients for frozen statistics in float64.

    Parameters
    ----------
    input, input_gradient, mean, variance, scale, epsilon : array_like, float
        As in `onedsl.BatchNormalizationGrad`, which has the formulas [1]_.

    Returns
    -------
    BatchNormalizationGradients
        Float64 arrays.

    References
    ----------
    .. [1] DirectML reference, DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC.
    """
    x = to_float64(input)
    mu = to_float64(mean)
    sizes = zip(mu.shape, x.shape, strict=True)
    axes = tuple(axis for axis, (size, full) in enumerate(sizes) if size == 1 != full)
    gradients = _gradients(
        x,
        to_float64(input_gradient),
        mu,
        to_float64(variance),
        to_float64(scale),
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
    """Compute diff_src, diff_gamma and diff_beta, with sums over `axes`.

    mean, variance and gamma must have shapes that broadcast to the shape of x.
    """
    _attributes.parse_statistics(statistics)
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
    """Compute the forward pass of training in float64, optionally with a residual and ReLU.

    Parameters
    ----------
    src, mean, variance, gamma, beta, residual : array_like
    epsilon, momentum, data_format, clip : float, DataFormat
        As in `onedsl.BatchNormReLUForwardTraining`, which refers to the formulas [1]_.
    relu : bool
        Whether to apply ReLU.

    Returns
    -------
    BatchNormForward
        Float64 arrays. For an empty src the running statistics are unchanged and the batch
        statistics are zeros.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormForwardTraining.
    """
    x, axes, shape = prepare(src, data_format)
    keep = _core.DEFAULT_MOMENTUM if momentum is None else momentum
    batch_mean, batch_variance = to_float64(mean) * 0, to_float64(variance) * 0
    running_mean, running_variance = to_float64(mean), to_float64(variance)
    if x.size:
        batch_mean = x.mean(axes)
        batch_variance = ((x - batch_mean.reshape(shape)) ** 2).mean(axes)
        running_mean = keep * running_mean + (1 - keep) * batch_mean
        running_variance = keep * running_variance + (1 - keep) * batch_variance
    dst = batch_norm(src, gamma, beta, epsilon=epsilon, data_format=data_format) if x.size else x
    if residual is not None:
        dst = dst + to_float64(residual)
    if relu:
        dst = np.clip(dst, 0, clip)  # propagates NaN
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
    """Compute the gradients of batch normalization followed by ReLU in float64.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma, epsilon, data_format, clip : array_like, float, DataFormat
        As in `onedsl.BatchNormReLUTrainingBackward`.
    dst : array_like, src's shape
        Output of the ReLU, rounded to its dtype.

    Returns
    -------
    BatchNormReLUGradients
        Float64 arrays.

    Notes
    -----
    ``diff_residual`` is the gradient of the ReLU [1]_: diff_dst where ``0 < dst < clip`` or dst is
    NaN, and 0 elsewhere. The other members are the results of `batch_norm_backward` for
    diff_residual.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operations ReLUBackward and ClampBackward.
    """
    output = to_float64(dst)
    is_zero = (output <= 0) | (output >= (np.inf if clip is None else clip))
    diff_residual = np.where(is_zero, 0, to_float64(diff_dst))
    gradients = batch_norm_backward(
        src, diff_residual, mean, variance, gamma, epsilon=epsilon, data_format=data_format
    )
    return BatchNormReLUGradients(*gradients, diff_residual)
