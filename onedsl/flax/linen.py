"""Batch norm for `flax.linen`."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import canonicalize_dtype

from ..tensors.options import Activation
from ._normalize import normalize

__docformat__ = "numpy"

__all__ = ["BatchNorm"]


def __dir__() -> list[str]:
    return __all__


class BatchNorm(nn.BatchNorm):
    """`flax.linen.BatchNorm`, with an optional residual and activation.

    Attributes
    ----------
    activation, clip, negative_slope
        As in `onedsl.jax.batch_norm`. The default is no activation.

    Notes
    -----
    The other attributes are those of Flax's layer. So are the parameters ``scale`` and ``bias``,
    the variables ``mean`` and ``var``, and the name that linen derives from the class.
    """

    activation: Activation | None = None
    clip: float | None = None
    negative_slope: float | None = None

    @nn.compact
    def __call__(
        self,
        x: Any,
        use_running_average: bool | None = None,
        *,
        mask: Any = None,
        residual: Any = None,
    ) -> Any:
        """Normalize x, add the residual, apply the activation, update the running statistics.

        Parameters
        ----------
        x, use_running_average, mask
            As in Flax's layer.
        residual : array, x's shape, optional
            Added before the activation.
        """
        if not self.force_float32_reductions:
            raise NotImplementedError("force_float32_reductions must be True, got False")
        frozen = nn.merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        shape = [x.shape[axis] for axis in sorted({axis % x.ndim for axis in axes})]
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        scale = bias = None
        if self.use_scale:
            scale = self.param("scale", self.scale_init, shape, self.param_dtype)
        if self.use_bias:
            bias = self.param("bias", self.bias_init, shape, self.param_dtype)
        given = [array for array in (x, scale, bias) if array is not None]
        dtype = canonicalize_dtype(*given, dtype=self.dtype)
        dst, *batch = normalize(
            self,
            jnp.asarray(x, jnp.promote_types(x.dtype, dtype)),
            (mean.value, var.value) if frozen else None,
            scale,
            bias,
            residual,
            mask=mask,
            axis_name=None if self.is_initializing() else self.axis_name,
        )
        if not frozen and not self.is_initializing():
            for running, new in zip((mean, var), batch, strict=True):
                running.value = self.momentum * running.value + (1 - self.momentum) * new
        return dst.astype(dtype)
