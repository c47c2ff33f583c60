"""Float64 reference implementations. The operators' docstrings cite the sources of the formulas."""

from __future__ import annotations

import numbers
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..tensors.arrays import copied
from ..tensors.options import Activation
from ..tensors.spec import DataFormat, DataFormatLike, parse_data_format
from . import _terms
from ._results import ActGradients, Float64, Forward, FrozenGradients, Gradients, Terms
from .activations import evaluate

# Nothing is imported from onedsl.operators, which this module judges.

__all__ = [
    "batch_norm",
    "batch_norm_act_backward",
    "batch_norm_backward",
    "batch_norm_forward_training",
    "batch_normalization_grad",
]


def _prepare(
    src: npt.ArrayLike, data_format: DataFormatLike, **others: npt.ArrayLike | None
) -> tuple[Any, ...]:
    """Convert the arrays to float64, and reshape statistics so that they broadcast to src.

    Return the axes of the sums, src, and the others, where None stays None. Raise ValueError for an
    invalid shape.
    """
    x, parsed = copied("src", src, np.float64), parse_data_format(data_format)
    if x.ndim < 2:
        raise ValueError(f"src must have at least 2 dimensions, got {x.ndim}")
    channels = parsed.channels_of(x.shape)
    arrays: list[Float64 | None] = [x]
    for name, other in others.items():
        if other is None:
            arrays.append(None)
            continue
        array = copied(name, other, np.float64)
        is_statistic = name in ("mean", "variance", "gamma", "beta")
        expected = channels if is_statistic else x.shape
        if array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
        arrays.append(array.reshape(parsed.broadcast_shape(x.shape)) if is_statistic else array)
    return parsed.summed_axes(x.ndim), *arrays


def _check(name: str, is_valid: bool, requirement: str, value: object) -> None:
    """Raise ValueError unless an attribute is valid."""
    if not is_valid:
        raise ValueError(f"{name} must be {requirement}, got {value!r}")


def is_number(value: object) -> bool:
    """Return whether a value is a number, and not an array."""
    return isinstance(value, numbers.Real)


def _check_clip(clip: float | None) -> None:
    is_valid = clip is None or (is_number(clip) and 0 < clip < np.inf)
    _check("clip", is_valid, "positive and finite, or None", clip)


def _parameter(
    activation: str | None, clip: float | None, negative_slope: float | None
) -> float | None:
    """Return the parameter of an activation, or raise for those of others."""
    _check_clip(clip)
    _check("clip", clip is None or activation == "relu", "None without relu", clip)
    slope = negative_slope
    is_valid = slope is None or (is_number(slope) and np.isfinite(slope))
    _check("negative_slope", bool(is_valid), "finite, or None", slope)
    is_valid = slope is None or activation == "leaky_relu"
    _check("negative_slope", is_valid, "None without leaky_relu", slope)
    return clip if activation == "relu" else slope


def _rstd(variance: Float64, epsilon: float) -> Float64:
    """Return 1 / sqrt(variance + epsilon)."""
    _check("epsilon", is_number(epsilon) and 0 < epsilon < np.inf, "positive and finite", epsilon)
    result: Float64 = 1 / np.sqrt(variance + epsilon)
    return result


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
    result: Float64 = (x - mu) * _rstd(var, epsilon)
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
) -> Gradients:
    """Compute the gradients of batch normalization in float64.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma, epsilon, data_format : array_like, float, DataFormat
        As in `onedsl.BatchNormTrainingBackward`, but gamma is always used. To check a result of
        ``outputs="diff_src"``, where that operator ignores gamma, leave gamma out here.
    statistics : {"batch", "frozen"}
        ``"batch"``: mean and variance are functions of src, and the gradient flows through them.
        ``"frozen"``: they are constants.

    Returns
    -------
    Gradients
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
    terms = _terms.of_gradients(*arrays, epsilon=epsilon, statistics=statistics)
    return _terms.attach(Gradients(diff_src, *(total.reshape(-1) for total in sums)), terms)


def batch_normalization_grad(
    input: npt.ArrayLike,
    input_gradient: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    scale: npt.ArrayLike,
    *,
    epsilon: float,
) -> FrozenGradients:
    """Compute DirectML's gradients for frozen statistics in float64.

    Parameters
    ----------
    input, input_gradient, mean, variance, scale, epsilon : array_like, float
        As in `onedsl.BatchNormalizationGrad`, which has the formulas.

    Returns
    -------
    FrozenGradients
        Float64 arrays.
    """
    names = ["input", "input_gradient", "mean", "variance", "scale"]
    values = input, input_gradient, mean, variance, scale
    x, *others = (copied(n, a, np.float64) for n, a in zip(names, values, strict=True))
    if x.ndim < 1:
        raise ValueError(f"input must have at least 1 dimension, got {x.ndim}")
    expected = x.shape
    for name, array in zip(names[1:], others, strict=True):
        if name == "mean" and array.ndim == x.ndim:
            expected = tuple(
                1 if size == 1 else full for size, full in zip(array.shape, x.shape, strict=True)
            )
        if array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
    result = FrozenGradients(*_gradients(x, *others, epsilon=epsilon, statistics="frozen"))
    terms = _terms.of_gradients(x, *others, epsilon=epsilon, statistics="frozen")
    return _terms.attach(result, terms)


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
    _check("statistics", statistics in ("batch", "frozen"), "'batch' or 'frozen'", statistics)
    axes = _terms.summed_axes(x, mean)
    rstd = _rstd(variance, epsilon)
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
    clip: float | None = None,
    activation: Activation | None = None,
    negative_slope: float | None = None,
) -> Forward:
    """Compute the forward pass of training in float64, optionally with a residual and activation.

    Parameters
    ----------
    src, mean, variance, gamma, beta, residual : array_like
    epsilon, momentum, data_format, activation, clip, negative_slope : float, DataFormat, str
        As in `onedsl.BatchNormActForwardTraining`, which has the formulas. By default there is no
        activation.

    Returns
    -------
    Forward
        Float64 arrays. For an empty src the running statistics are unchanged and the batch
        statistics are zeros.
    """
    axes, x, *old, scale, shift, added = _prepare(
        src, data_format, mean=mean, variance=variance, gamma=gamma, beta=beta, residual=residual
    )
    keep = 0.5 if momentum is None else momentum
    _check("momentum", is_number(keep) and 0 <= keep <= 1, "from 0 to 1", momentum)
    parameter = _parameter(activation, clip, negative_slope)
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
    if activation is not None:
        dst, _ = evaluate(activation, dst, parameter)
    result = Forward(dst, *running, *batch)
    if not x.size:
        return _terms.attach(result, [Terms(np.abs(array)) for array in result])
    terms = _terms.of_forward(
        x,
        old,
        [statistic.reshape(old[0].shape) for statistic in batch],
        *(scale, shift, added),
        axes=axes,
        epsilon=epsilon,
        momentum=keep,
        activation=activation,
        parameter=parameter,
    )
    return _terms.attach(result, terms)


def batch_norm_act_backward(
    src: npt.ArrayLike,
    diff_dst: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    residual: npt.ArrayLike | None = None,
    dst: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    activation: Activation,
    clip: float | None = None,
    negative_slope: float | None = None,
) -> ActGradients:
    """Compute the gradients of batch normalization followed by an activation in float64.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma, beta, residual, dst : array_like
    epsilon, data_format, activation, clip, negative_slope : float, DataFormat, str
        As in `onedsl.BatchNormActTrainingBackward`, which has the formulas.

    Returns
    -------
    ActGradients
        Float64 arrays. diff_residual is computed without a residual, too.
    """
    parameter = _parameter(activation, clip, negative_slope)
    gamma = np.ones(np.shape(variance)) if gamma is None else gamma
    _, x, diff_output, mu, var, scale, shift, added, result = _prepare(
        src,
        data_format,
        diff_dst=diff_dst,
        mean=mean,
        variance=variance,
        gamma=gamma,
        beta=beta,
        residual=residual,
        dst=dst,
    )
    if result is not None:
        _check("dst", residual is None, "None with a residual", "an array")
        has_slope = activation == "leaky_relu" and (parameter is None or parameter > 0)
        requirement = "None unless activation is relu, or leaky_relu with a positive slope"
        _check("dst", activation == "relu" or has_slope, requirement, "an array")
        y = result
    else:
        y = batch_norm(
            src, gamma, beta, epsilon=epsilon, data_format=data_format, mean=mean, variance=variance
        )
        y = y if added is None else y + added
    _, derivative = evaluate(activation, y, parameter)
    # A derivative of 0 stops infinities and NaN, too.
    diff_residual = np.zeros_like(diff_output)
    np.multiply(diff_output, derivative, out=diff_residual, where=derivative != 0)
    gradients = batch_norm_backward(
        src, diff_residual, mean, variance, gamma, epsilon=epsilon, data_format=data_format
    )
    of_residual = Terms(np.abs(diff_residual), 0.0, np.zeros_like(diff_residual))
    if result is None:
        magnitude = _terms.of_argument(x, mu, var + epsilon, scale, shift, added)
        of_residual = _terms.of_activation_gradient(
            activation, parameter, y, magnitude, diff_output, derivative, _terms.rounding_of(src)
        )
    arrays = x, diff_residual, mu, var, scale
    terms = _terms.of_gradients(*arrays, epsilon=epsilon, statistics="batch", of_dy=of_residual)
    return _terms.attach(ActGradients(*gradients, diff_residual), [*terms, of_residual])
