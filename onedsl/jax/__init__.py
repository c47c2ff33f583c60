"""Batch normalization for JAX on CPUs, with onedsl's kernels.

JAX is imported here and nowhere else in onedsl: ``import onedsl.jax`` needs
``pip install 'onedsl[jax]'``.

The forward pass of training and the gradient are calls out of XLA's program into onedsl, by XLA's
foreign function interface. XLA calls onedsl's C++ itself, and neither Python nor its GIL has a part
in it. Next to a JAX whose interface has another major version than that (0.6.1 to 0.10.2 have it),
the calls go by way of Python, through `jax.experimental.buffer_callback`: slower, and programs
cannot be exported or cached then.

**What works**

- `jax.jit`, and no jit; `jax.vmap`; `jax.checkpoint`, `jax.lax.scan` and `jax.lax.cond`.
- `jax.grad`, as often as one likes: the second and all further derivatives are JAX's own, of the
  formulas in `jax.numpy`. `batch_norm_backward` has forward mode, too.
- Arrays that are split over devices, under jit: with the batch split, statistics and sums are those
  of the whole batch (synchronized batch norm), and the devices send two numbers a channel twice;
  with the channels split, they send nothing. Results are split as src is. Axes that do not divide
  evenly are gathered first. This is for meshes with axes of type Auto, and of type Explicit.
- `jax.shard_map`, with and without ``check_vma``: every device has the statistics of its own part,
  and `batch_norm_backward` gives the sums of that part. Add them up with `jax.lax.psum`. The
  gradients of parameters that are the same on all devices come summed, as JAX does it.
- `jax.export`, also with sizes that are not known yet. It wants to be told that a program may call
  onedsl, and the process that runs it must have imported onedsl.jax::

      calls = "onedsl_batch_norm_forward_training", "onedsl_batch_norm_training_backward"
      allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in calls]
      jax.export.export(jax.jit(step), disabled_checks=allowed)(*arguments).serialize()

- The persistent compilation cache.

**What does not**

- Other devices than CPUs.
- Forward mode (`jax.jvp`, `jax.jacfwd`) of the layers themselves; of their gradient it works.
- To be split under `jax.vmap`, or inside of a `jax.shard_map` over some axes of a mesh alone:
  results are right there, and every device computes all of them.
- The export of a program that jit splits over devices; with `jax.shard_map` in it, it works.

**Memory.** onedsl reads and writes XLA's own buffers, and copies none. XLA itself copies where its
program has a tensor in another order than that of its shape, since it hands over row-major buffers
alone. Its convolutions are NXC inside, so in a network of NCX tensors that is before and behind
each call, and fewer copies are left (15 in place of 24, with three convolutions) if calls are NXC::

    dst, mean, variance = onedsl.jax.batch_norm(jnp.moveaxis(src, 1, -1), gamma, beta, epsilon=1e-5)
    dst = jnp.moveaxis(dst, -1, 1)

**Threads.** XLA makes a call from whatever thread runs its program: the caller's, or one of its
own. How many OpenMP threads that uses is each calling thread's own setting: ``OMP_NUM_THREADS`` is
for all of them, and threadpoolctl for the thread that it is called in.
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

from ..operators.batch_norm_training_backward import SCHEMA, BatchNormGradients
from ..tensors.spec import DataFormat, DataFormatLike
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
        If an argument is not as above, or is on another device than a CPU. In a program that is
        compiled for a GPU, that comes as JAX's own error.
    ImportError
        On ``import onedsl.jax``, if JAX is missing or older than 0.6.1.

    Notes
    -----
    This may be differentiated again, in forward and reverse mode, any number of times. The further
    derivatives are JAX's own, of the formulas in `jax.numpy`.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormTrainingBackward.
    .. [2] DirectML reference, DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC.
    """
    attributes = parse_attributes(epsilon, data_format, statistics)
    check(SCHEMA, attributes.data_format, src, diff_dst, mean, variance, gamma)
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
