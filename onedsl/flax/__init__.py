"""Batch norm layers for Flax on CPUs, by `onedsl.jax`.

The extra ``flax`` installs JAX and Flax. ``import onedsl`` alone does not import them. Flax 0.12 is
tested.

`linen.BatchNorm` and `nnx.BatchNorm` are subclasses of Flax's layers of these names. They have the
same arguments, parameters and variables, so checkpoints of Flax's layers fit them and vice versa.
They also compute what follows batch norm, the addition of a residual and an activation:

    from onedsl.flax import linen, nnx

    norm = linen.BatchNorm(use_running_average=not train, activation="relu")(x, residual=skip)

**Differences from Flax's layers**

- Statistics are computed in f32, and by deviations from the mean: ``use_fast_variance`` has no
  effect. ``force_float32_reductions=False`` raises NotImplementedError.
- f64 and complex inputs raise TypeError.
- Forward mode (`jax.jvp`, `jax.linearize`) works in evaluation, not in training. Of a gradient, it
  works in both: `jax.hessian`, or `jax.jvp` of `jax.grad`.
- If a residual is added or there is an activation, the result is rounded once to the dtype, not
  after each operation.

In training with a mask or ``axis_name``, `jax.numpy` computes the statistics, and onedsl the
gradient for given statistics. Without them, the layers call `onedsl.jax.batch_norm`. In evaluation,
`jax.numpy` computes the result and its gradient. On arrays that `jax.jit` shards, the statistics
are those of the whole batch, as Flax's are.
"""

from __future__ import annotations

try:
    import flax as _flax  # noqa: F401
except ImportError as _error:
    raise ImportError(
        "onedsl.flax needs Flax. Install it with: pip install 'onedsl[flax]'", name="flax"
    ) from _error

from . import linen, nnx

__docformat__ = "numpy"

__all__ = ["linen", "nnx"]


def __dir__() -> list[str]:
    return __all__
