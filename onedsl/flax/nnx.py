"""Batch norm for `flax.nnx`."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from flax.nnx.nn.dtypes import canonicalize_dtype

from ..tensors.options import Activation
from ._normalize import normalize

__docformat__ = "numpy"

__all__ = ["BatchNorm"]


def __dir__() -> list[str]:
    return __all__


class BatchNorm(nnx.BatchNorm):
    """`flax.nnx.BatchNorm`, with an optional residual and activation.

    Parameters
    ----------
    num_features : int
        Number of channels.
    activation, clip, negative_slope
        As in `onedsl.jax.batch_norm`. The default is no activation.
    **options
        Those of Flax's layer.

    Notes
    -----
    The parameters ``scale`` and ``bias`` and the statistics ``mean`` and ``var`` are those of
    Flax's layer.
    """

    def __init__(
        self,
        num_features: int,
        *,
        activation: Activation | None = None,
        clip: float | None = None,
        negative_slope: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_features, **options)
        self.activation = activation
        self.clip = clip
        self.negative_slope = negative_slope

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
        frozen = nnx.module.first_from(
            use_running_average,
            self.use_running_average,
            error_msg="use_running_average must be passed to the layer or to the call, got None",
        )
        scale, bias = (None if p is None else p[...] for p in (self.scale, self.bias))
        # Flax rounds mean and var, too.
        statistics = self.mean[...], self.var[...]
        x, _, _, scale, bias = self.promote_dtype((x, *statistics, scale, bias), dtype=self.dtype)
        dst, *batch = normalize(
            self,
            x,
            statistics if frozen else None,
            scale,
            bias,
            residual,
            mask=mask,
            axis_name=self.axis_name,
        )
        if not frozen:
            for running, new in zip((self.mean, self.var), batch, strict=True):
                old = running[...]
                running[...] = jax.lax.stop_gradient(
                    self.momentum * old + (1 - self.momentum) * new
                )
        given = [array for array in (x, scale, bias) if array is not None]
        return dst.astype(canonicalize_dtype(*given, dtype=self.dtype))
