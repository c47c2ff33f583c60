"""Batch normalization for JAX on CPUs, with onedsl's gradient.

JAX is imported here and nowhere else in onedsl: ``import onedsl.jax`` needs
``pip install 'onedsl[jax]'``.

Everything works with and without `jax.jit`, and under `jax.vmap`. The forward pass is written in
`jax.numpy`; the gradient is a call out of XLA's program into onedsl, through
`jax.experimental.buffer_callback`, which is XLA's foreign function interface for Python.

onedsl reads and writes XLA's own buffers, and copies none. XLA itself copies where its program has
a tensor in another order than that of its shape, since it hands over row-major buffers alone: in a
network with convolutions of NCX tensors that is src and diff_dst, and there NXC saves the copies.

XLA makes the call from threads of its own, so the number of OpenMP threads is that of
``OMP_NUM_THREADS``, and not what threadpoolctl has set in the thread of the caller.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy.typing as npt

try:
    import jax.experimental.buffer_callback  # the youngest part of JAX that is used here
except ImportError as _error:
    raise ImportError(
        "onedsl.jax needs JAX 0.6.1 or newer: pip install 'onedsl[jax]'", name="jax"
    ) from _error

from .._spec import DataFormat, DataFormatLike
from ..operators.batch_norm_training_backward import DIALECT, BatchNormGradients
from . import _rules
from ._arguments import FROZEN_LAYER, TRAINING_LAYER, check, parse_attributes

__all__ = ["batch_norm", "batch_norm_backward", "batch_norm_frozen"]

Array: TypeAlias = jax.Array | npt.NDArray[Any]


def batch_norm_backward(
    src: Array,
    diff_dst: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    statistics: Literal["batch", "frozen"] = "batch",
) -> BatchNormGradients:
    """Compute the gradients of batch normalization.

    Parameters
    ----------
    src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
        Input of the forward pass.
    diff_dst : array, src's shape and dtype
        Gradient of the loss with respect to the output of the forward pass.
    mean, variance : array, (C,), f32, or bf16 where src is bf16
        Those of the forward pass; the variance is the biased one.
    gamma : array, (C,), dtype of mean, optional
        Scale of the forward pass. Absent means ones.
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of src.
    statistics : {"batch", "frozen"}
        Whether mean and variance are src's own, so that the gradient flows through them [1]_, or
        constants, so that diff_src = gamma / sqrt(variance + epsilon) * diff_dst [2]_.

    Returns
    -------
    BatchNormGradients
        diff_src, of src's shape and dtype; diff_gamma and diff_beta, (C,), of mean's dtype.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or is on another device than a CPU. In a program that was
        compiled for a GPU, that comes as JAX's own error, when it runs.
    ImportError
        On ``import onedsl.jax``, if JAX is missing or older than 0.6.1.

    Notes
    -----
    This may be differentiated again, in forward and reverse mode. The second derivative is JAX's
    own, of the formulas in `jax.numpy`.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormTrainingBackward.
    .. [2] DirectML reference, DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC.
    """
    attributes = parse_attributes(epsilon, data_format, statistics)
    check(DIALECT, attributes.data_format, src, diff_dst, mean, variance, gamma)
    gradients: BatchNormGradients = _rules.gradients(
        attributes, src, diff_dst, mean, variance, gamma
    )
    return gradients


def batch_norm(
    src: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize by the batch's own statistics, as in training.

    For each channel, dst = gamma * (src - mean) / sqrt(variance + epsilon) + beta.

    Parameters
    ----------
    src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
    gamma, beta : array, (C,), f32, optional
        Scale and shift. Absent means ones, and zeros.
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of src.

    Returns
    -------
    dst : array, src's shape and dtype
    mean, variance : array, (C,), f32
        Those of src; the variance is the biased one.

    Raises
    ------
    TypeError, ValueError
        As `batch_norm_backward` does.

    Notes
    -----
    The gradient with respect to src, gamma and beta is that of `batch_norm_backward`. Where the
    loss depends on the returned mean and variance too, diff_src has besides

        diff_mean / M + diff_variance * 2 * (src - mean) / M

    with M elements a channel. This is a `jax.custom_vjp`: JAX has no forward mode (`jax.jvp`,
    `jax.jacfwd`) for it, and says so in a TypeError. A second derivative is right: `jax.grad` of a
    gradient, and `jax.hessian`.

    Examples
    --------
    A layer that keeps running statistics takes them from the result:

    >>> def layer(params, running, src):
    ...     dst, mean, variance = onedsl.jax.batch_norm(src, *params, epsilon=1e-5)
    ...     new = mean, variance
    ...     return dst, jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, new)
    """
    attributes = parse_attributes(epsilon, data_format, "batch")
    check(TRAINING_LAYER, attributes.data_format, src, gamma, beta)
    results: tuple[jax.Array, jax.Array, jax.Array] = _rules.batch_norm(
        attributes, src, gamma, beta
    )
    return results


def batch_norm_frozen(
    src: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
) -> jax.Array:
    """Normalize by given statistics, as in evaluation.

    For each channel, dst = gamma * (src - mean) / sqrt(variance + epsilon) + beta.

    Parameters
    ----------
    src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
    mean, variance : array, (C,), f32, or bf16 where src is bf16
        Such as the running ones.
    gamma, beta : array, (C,), dtype of mean, optional
        Scale and shift. Absent means ones, and zeros.
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of src.

    Returns
    -------
    array, src's shape and dtype

    Raises
    ------
    TypeError, ValueError
        As `batch_norm_backward` does.

    Notes
    -----
    The gradient with respect to src, gamma and beta is that of `batch_norm_backward` with
    ``statistics="frozen"``. That with respect to mean and variance follows from its sums:

    - diff_mean = -gamma / sqrt(variance + epsilon) * diff_beta
    - diff_variance = -gamma / (2 * (variance + epsilon)) * diff_gamma

    Forward mode and second derivatives are as with `batch_norm`.
    """
    attributes = parse_attributes(epsilon, data_format, "frozen")
    check(FROZEN_LAYER, attributes.data_format, src, mean, variance, gamma, beta)
    dst: jax.Array = _rules.batch_norm_frozen(attributes, src, mean, variance, gamma, beta)
    return dst
