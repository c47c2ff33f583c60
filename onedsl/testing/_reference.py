"""Float64 reference implementations. The operators' docstrings cite the sources of the formulas."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _core
from ..operators import _attributes, _validation
from ..operators.batch_norm_forward_training import BatchNormForward
from ..operators.batch_norm_relu_training_backward import BatchNormReLUGradients
from ..operators.batch_norm_training_backward import BatchNormGradients
from ..operators.batch_normalization_grad import SCHEMA, BatchNormalizationGradients
from ..tensors.spec import DataFormat, DataFormatLike, parse_data_format

Float64 = npt.NDArray[np.float64]


def copied(value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return a copy as a NumPy array. NumPy alone cannot convert PyTorch's bf16 tensors."""
    imported = _core.import_array(value)
    return np.array(value if imported is None else imported, dtype)


def _prepare(
    src: npt.ArrayLike, data_format: DataFormatLike, **others: npt.ArrayLike | None
) -> tuple[Any, ...]:
    """Return the axes of sums, and src and the others in float64, in shapes that broadcast.

    Raise ValueError for an invalid shape. None stays None.
    """
    x, parsed = copied(src, np.float64), parse_data_format(data_format)
    if x.ndim < 2:
        raise ValueError(f"src must have at least 2 dimensions, got {x.ndim}")
    arrays: list[Float64 | None] = [x]
    for name, other in others.items():
        array = None if other is None else copied(other, np.float64)
        is_tensor = name in ("diff_dst", "dst", "residual")
        expected = x.shape if is_tensor else (x.shape[parsed.channel_axis],)
        if array is not None and array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
        beside = x.shape if is_tensor else parsed.broadcast_shape(x.shape)
        arrays.append(None if array is None else array.reshape(beside))
    return parsed.summed_axes(x.ndim), *arrays


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
    axes, x, mu, var, scale, shift = _prepare(
        src, data_format, mean=mean, variance=variance, gamma=gamma, beta=beta
    )
    mu = x.mean(axes, keepdims=True) if mu is None else mu
    var = x.var(axes, keepdims=True) if var is None else var
    result: Float64 = (x - mu) / np.sqrt(var + _attributes.parse_epsilon(epsilon))
    if scale is not None:
        result = result * scale
    return result if shift is None else result + shift


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
    gamma = np.ones(np.shape(variance)) if gamma is None else gamma
    _, *arrays = _prepare(
        src, data_format, diff_dst=diff_dst, mean=mean, variance=variance, gamma=gamma
    )
    diff_src, *sums = _gradients(*arrays, epsilon=epsilon, statistics=statistics)
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
    arrays = [copied(array, np.float64) for array in (input, input_gradient, mean, variance, scale)]
    infos = [_validation.ArrayInfo(array.shape, "f32") for array in arrays]
    _validation.check_inputs(SCHEMA, None, infos)
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
    rstd = 1 / np.sqrt(variance + _attributes.parse_epsilon(epsilon))
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
        Whether to apply ReLU. clip needs it.

    Returns
    -------
    BatchNormForward
        Float64 arrays. For an empty src the running statistics are unchanged and the batch
        statistics are zeros.
    """
    axes, x, *old, added = _prepare(
        src, data_format, mean=mean, variance=variance, residual=residual
    )
    keep = _attributes.parse_momentum(momentum)
    keep = _core.DEFAULT_MOMENTUM if keep is None else keep
    if _attributes.parse_clip(clip) and not relu:
        raise ValueError(f"clip must be None without relu=True, got {clip}")
    running = [statistic.reshape(-1) for statistic in old]
    batch = [0 * statistic for statistic in running]
    if x.size:
        batch = [x.mean(axes), x.var(axes)]
        running = [keep * a + (1 - keep) * b for a, b in zip(running, batch, strict=True)]
    dst = batch_norm(
        x, gamma, beta, epsilon=epsilon, data_format=data_format, mean=batch[0], variance=batch[1]
    )
    if added is not None:
        dst = dst + added
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
    _, _, output, diff_output = _prepare(src, data_format, dst=dst, diff_dst=diff_dst)
    clip = _attributes.parse_clip(clip)
    is_zero = (output <= 0) | (output >= (np.inf if clip is None else clip))
    diff_residual = np.where(is_zero, 0, diff_output)
    gradients = batch_norm_backward(
        src, diff_residual, mean, variance, gamma, epsilon=epsilon, data_format=data_format
    )
    return BatchNormReLUGradients(*gradients, diff_residual)
