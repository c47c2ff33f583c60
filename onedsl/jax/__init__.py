"""Batch normalization for JAX on CPUs.

The extra ``jax`` installs JAX. ``import onedsl`` alone does not import it.

onedsl's kernels compute the gradient, and the training forward pass if the batch is not sharded.
XLA calls them through its foreign function interface (FFI), without Python and without the GIL.
`jax.numpy` computes `batch_norm_frozen`, and the training forward pass if the batch is sharded. JAX
0.6.1 to 0.10.2 are tested.

The layers also compute what follows batch norm, the addition of a residual and an activation. If
the kernels compute a layer, this takes no further pass over memory, neither forward nor backward:
the gradient recomputes the argument of the activation, and reads src and the residual for that.

**Supported**

- `jax.jit` and eager execution; `jax.vmap`; `jax.checkpoint`, `jax.lax.scan` and `jax.lax.cond`.
- `jax.grad` of any order. Second and further derivatives are JAX's own derivatives of the formulas
  in `jax.numpy`. `batch_norm_backward` also supports forward mode.
- Sharded arrays under `jax.jit`, on meshes with axes of type Auto or Explicit. If the batch is
  sharded, statistics and sums are those of the whole batch (synchronized batch norm), and each pass
  sums two numbers per channel over the devices. If the channels are sharded, nothing is
  communicated. Results have src's sharding. An axis that is not evenly divisible is gathered first.
- `jax.shard_map`, with and without ``check_vma``. Each device uses the statistics of its own
  shard, and `batch_norm_backward` returns the sums of that shard; add them with `jax.lax.psum`. As
  everywhere in JAX, gradients of replicated parameters are summed over the devices.
- `jax.export`, also with symbolic shapes. The export must allow the custom calls, as in this
  example. The process that runs the exported program must import onedsl.jax first:

      calls = "forward_training", "training_backward"
      calls += "act_forward_training", "act_training_backward"  # with an activation or a residual
      names = [f"onedsl_batch_norm_{call}" for call in calls]
      allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
      jax.export.export(jax.jit(step), disabled_checks=allowed)(*arguments).serialize()

- The persistent compilation cache.

**Not supported**

- Devices other than CPUs.
- Forward mode (`jax.jvp`, `jax.jacfwd`, `jax.linearize`) of `batch_norm` and `batch_norm_frozen`:
  JAX has no public way to define both modes of a function. Their gradients support it (`jax.jvp` of
  `jax.grad`), and so does evaluation with the layers of `onedsl.flax` and `onedsl.equinox`.
- Second derivatives inside `jax.shard_map` before JAX 0.8.
- Distribution of the work over devices under `jax.vmap`, and inside a `jax.shard_map` over only
  some axes of a mesh. Such programs return correct results, but each device computes the whole
  array.
- Export of a program that `jax.jit` partitions over devices. Export with `jax.shard_map` works.

**Memory.** onedsl reads and writes XLA's own buffers and copies none. XLA passes row-major buffers
only, so XLA itself copies a tensor that it stores in another order. Under `jax.vmap`, it copies an
array that the items share once for each item. XLA stores the tensors around convolutions as NXC. In
an NCX network, pass NXC tensors to reduce these copies. In a step of a network with three
convolutions, XLA then made 15 copies instead of 24:

    dst, mean, variance = onedsl.jax.batch_norm(jnp.moveaxis(src, 1, -1), gamma, beta, epsilon=1e-5)
    dst = jnp.moveaxis(dst, -1, 1)

**Threads.** XLA runs a call on the caller's thread or on one of its own threads, and the loops of a
call run on the threads of XLA's own pool. XLA gives its pool as many threads as the process may use
CPUs. Settings of OpenMP, such as ``OMP_NUM_THREADS``, have no effect.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

try:
    import jax

    if jax.__version_info__ < (0, 6, 1):
        raise ImportError(f"got JAX {jax.__version__}")
except ImportError as _error:
    raise ImportError(
        "onedsl.jax needs JAX 0.6.1 or newer. Install it with: pip install 'onedsl[jax]'",
        name="jax",
    ) from _error

from ..operators.batch_norm_training_backward import SCHEMA, BatchNormGradients
from ..tensors.arrays import AnyArray
from ..tensors.options import Activation
from ..tensors.spec import DataFormat, DataFormatLike
from . import _rules
from ._arguments import FROZEN_LAYER, TRAINING_LAYER, check, parse_attributes

__docformat__ = "numpy"

__all__ = ["batch_norm", "batch_norm_backward", "batch_norm_frozen"]


def __dir__() -> list[str]:
    return __all__


class Array(AnyArray, Protocol):
    """An array of JAX or NumPy, for type checkers."""

    def astype(self, dtype: Any, /) -> Any: ...


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
) -> BatchNormGradients[jax.Array]:
    """Compute the gradients of batch normalization.

    Parameters
    ----------
    src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
        Input of the forward pass.
    diff_dst : array, src's shape and dtype
        Gradient of the loss with respect to the output of the forward pass.
    mean, variance : array, (C,), f32, or bf16 where src is bf16
        Statistics that the forward pass normalized by; the variance is the biased one.
    gamma : array, (C,), f32, bf16 or f16 where mean is f32, otherwise bf16, optional
        Scale of the forward pass. The default is ones. It is converted to the dtype of mean.
    epsilon : float
        Positive and finite; added to the variance.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Position of the channels in src's shape: last (NXC) or second (NCX).
    statistics : {"batch", "frozen"}
        ``"batch"``: mean and variance are functions of src, and the gradient flows through them.
        ``"frozen"``: they are constants, and diff_src = gamma / sqrt(variance + epsilon) *
        diff_dst.

    Returns
    -------
    BatchNormGradients
        diff_src, with src's shape and dtype; diff_gamma and diff_beta, (C,), with mean's dtype.

    Raises
    ------
    TypeError, ValueError
        If an argument does not meet the requirements above, was deleted, or is not on a CPU; also
        in the layers. If JAX compiles a program for another device, JAX raises its own error.

    Notes
    -----
    The formulas are those of `onedsl.BatchNormTrainingBackward`. The result is differentiable in
    forward and reverse mode, to any order, by JAX's own derivatives of the formulas in `jax.numpy`.
    """
    attributes = parse_attributes(epsilon, data_format, statistics)
    others = check(SCHEMA, attributes.data_format, src, diff_dst, mean, variance, gamma)
    return BatchNormGradients(*_rules.gradients(attributes, src, *others, None, None)[:3])


def batch_norm(
    src: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    activation: Activation | None = None,
    clip: float | None = None,
    negative_slope: float | None = None,
    residual: Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize by the batch statistics, as in training.

    For each channel, dst = activation(gamma * (src - mean) / sqrt(variance + epsilon) + beta +
    residual). It is rounded once.

    Parameters
    ----------
    src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
        Input.
    gamma, beta : array, (C,), f32, bf16 or f16, optional
        Scale and shift. The defaults are ones and zeros. 16-bit ones are converted to f32; dst
        keeps src's dtype, and their gradients have their own dtypes.
    epsilon, data_format
        As in `batch_norm_backward`.
    activation : {"relu", "leaky_relu", "silu", "hardswish", "gelu", "gelu_tanh"}, optional
        As in `onedsl.BatchNormActForwardTraining`. The default is none.
    clip : float, optional
        Upper bound of "relu": 6.0 for ReLU6. By default there is no bound.
    negative_slope : float, optional
        Slope of "leaky_relu" below zero. Default: 0.01.
    residual : array, src's shape and dtype, optional
        Added before the activation. The default is zeros.

    Returns
    -------
    dst : array, src's shape and dtype
        The result.
    mean, variance : array, (C,), f32
        Statistics of src; the variance is the biased one.

    Notes
    -----
    The gradient with respect to src, gamma, beta and residual is that of
    `onedsl.BatchNormActTrainingBackward`, or of `batch_norm_backward` without an activation. If the
    loss also depends on the returned mean and variance, diff_src has the additional term

        diff_mean / M + diff_variance * 2 * (src - mean) / M

    where M is the number of elements per channel, and diff_mean and diff_variance are the gradients
    of the loss with respect to mean and variance. Forward mode (`jax.jvp`, `jax.jacfwd`) raises
    JAX's TypeError. Second derivatives work, with `jax.grad` of a gradient and with `jax.hessian`.

    Examples
    --------
    Update running statistics with the returned statistics:

    >>> def layer(params, running, src):
    ...     dst, mean, variance = onedsl.jax.batch_norm(src, *params, epsilon=1e-5)
    ...     new = mean, variance
    ...     return dst, jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, new)
    """
    parameters = {"clip": clip, "negative_slope": negative_slope}
    attributes = parse_attributes(epsilon, data_format, "batch", activation, **parameters)
    inputs = src, None, None, gamma, beta, residual
    others = check(TRAINING_LAYER, attributes.data_format, *inputs)[2:]
    dst, mean, variance = _rules.batch_norm(attributes, src, *others)
    return dst, mean, variance


def batch_norm_frozen(
    src: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: float,
    data_format: DataFormatLike = DataFormat.NXC,
    activation: Activation | None = None,
    clip: float | None = None,
    negative_slope: float | None = None,
    residual: Array | None = None,
) -> jax.Array:
    """Normalize by the given statistics, as in evaluation.

    For each channel, dst = activation(gamma * (src - mean) / sqrt(variance + epsilon) + beta +
    residual). Errors, forward mode and second derivatives are as for `batch_norm`.

    Parameters
    ----------
    src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
    mean, variance : array, (C,), f32, or bf16 where src is bf16
        For example the running statistics.
    gamma, beta : array, (C,), f32, bf16 or f16 where mean is f32, otherwise bf16, optional
        Scale and shift. The defaults are ones and zeros.
    epsilon, data_format
        As in `batch_norm_backward`.
    activation, clip, negative_slope, residual
        As in `batch_norm`.

    Returns
    -------
    array, src's shape and dtype

    Notes
    -----
    The gradient with respect to src, gamma and beta is that of `batch_norm_backward` with
    ``statistics="frozen"``, for the gradient of the activation's argument, which is rounded to
    src's dtype. The gradients with respect to mean and variance are the derivatives of the formula
    above.
    """
    parameters = {"clip": clip, "negative_slope": negative_slope}
    attributes = parse_attributes(epsilon, data_format, "frozen", activation, **parameters)
    inputs = src, mean, variance, gamma, beta, residual
    others = check(FROZEN_LAYER, attributes.data_format, *inputs)
    dst: jax.Array = _rules.batch_norm_frozen(attributes, src, *others)
    return dst
