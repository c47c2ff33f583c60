"""Float64 reference implementations. The operators' docstrings cite the sources of the formulas."""

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
from ..tensors.spec import DataFormat, DataFormatLike, parse_data_format

Float64 = npt.NDArray[np.float64]


def _float64(array: npt.ArrayLike) -> Float64:
    return np.array(array, np.float64)


def _prepare(
    src: npt.ArrayLike, data_format: DataFormatLike
) -> tuple[Float64, tuple[int, ...], tuple[int, ...]]:
    """Return src in float64, the axes of sums, and the shape in which statistics broadcast."""
    x, parsed = _float64(src), parse_data_format(data_format)
    return x, parsed.summed_axes(x.ndim), parsed.statistics_shape_beside(x.shape)


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
    x, axes, shape = _prepare(src, data_format)
    mu = x.mean(axes) if mean is None else _float64(mean)
    var = x.var(axes) if variance is None else _float64(variance)
    result = (x - mu.reshape(shape)) / np.sqrt(var + epsilon).reshape(shape)
    if gamma is not None:
        result = result * _float64(gamma).reshape(shape)
    if beta is not None:
        result = result + _float64(beta).reshape(shape)
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
    statistics: Literal["batch", "frozen"] = "batch",
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
    The formulas are those of `onedsl.BatchNormTrainingBackward`, and for frozen statistics those of
    `onedsl.BatchNormalizationGrad`.
    """
    x, _, shape = _prepare(src, data_format)
    if gamma is None:
        gamma = np.ones_like(_float64(variance))
    channels = (max(shape, default=1),) if x.size else np.shape(mean)
    for name, array in (("mean", mean), ("variance", variance), ("gamma", gamma)):
        if np.shape(array) != channels:
            raise ValueError(f"{name} must have shape {channels}, got {np.shape(array)}")
    parameters = (_float64(array).reshape(shape) for array in (mean, variance, gamma))
    diff_src, *sums = _gradients(
        x, _float64(diff_dst), *parameters, epsilon=epsilon, statistics=statistics
    )
    return BatchNormGradients(diff_src, *(total.reshape(-1) for total in sums))


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
        As in `onedsl.BatchNormalizationGrad`, which has the formulas.

    Returns
    -------
    BatchNormalizationGradients
        Float64 arrays.
    """
    arrays = (_float64(array) for array in (input, input_gradient, mean, variance, scale))
    return BatchNormalizationGradients(*_gradients(*arrays, epsilon=epsilon, statistics="frozen"))


def _gradients(
    x: Float64,
    dy: Float64,
    mean: Float64,
    variance: Float64,
    gamma: Float64,
    *,
    epsilon: float,
    statistics: str,
) -> tuple[Float64, Float64, Float64]:
    """Compute diff_src, diff_gamma and diff_beta.

    mean, variance and gamma broadcast to x. Sums are over the axes where they do.
    """
    _attributes.parse_statistics(statistics)
    sizes = zip(mean.shape, x.shape, strict=True)
    axes = tuple(axis for axis, (size, full) in enumerate(sizes) if size != full)
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
        As in `onedsl.BatchNormReLUForwardTraining`, which refers to the formulas.
    relu : bool
        Whether to apply ReLU.

    Returns
    -------
    BatchNormForward
        Float64 arrays. For an empty src the running statistics are unchanged and the batch
        statistics are zeros.
    """
    x, axes, _ = _prepare(src, data_format)
    keep = _core.DEFAULT_MOMENTUM if momentum is None else momentum
    running = _float64(mean), _float64(variance)
    batch = 0 * running[0], 0 * running[1]
    if x.size:
        batch = x.mean(axes), x.var(axes)
        running = (
            keep * running[0] + (1 - keep) * batch[0],
            keep * running[1] + (1 - keep) * batch[1],
        )
    dst = batch_norm(
        x,
        gamma,
        beta,
        epsilon=epsilon,
        data_format=data_format,
        mean=batch[0],
        variance=batch[1],
    )
    if residual is not None:
        dst = dst + _float64(residual)
    if relu:
        dst = np.clip(dst, 0, clip)  # propagates NaN
    return BatchNormForward(dst, *running, *batch)


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
    ``diff_residual`` is the gradient of the ReLU: diff_dst where ``0 < dst < clip`` or dst is
    NaN, and 0 elsewhere. The other members are the results of `batch_norm_backward` for
    diff_residual.
    """
    output = _float64(dst)
    is_zero = (output <= 0) | (output >= (np.inf if clip is None else clip))
    diff_residual = np.where(is_zero, 0, _float64(diff_dst))
    gradients = batch_norm_backward(
        src, diff_residual, mean, variance, gamma, epsilon=epsilon, data_format=data_format
    )
    return BatchNormReLUGradients(*gradients, diff_residual)
