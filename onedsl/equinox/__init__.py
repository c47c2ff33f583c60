"""A batch norm layer for Equinox on CPUs, by `onedsl.jax`.

The extra ``equinox`` installs JAX and Equinox. ``import onedsl`` alone does not import them.
Equinox 0.13 is tested.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal

try:
    import equinox as eqx
except ImportError as _error:
    raise ImportError(
        "onedsl.equinox needs Equinox. Install it with: pip install 'onedsl[equinox]'",
        name="equinox",
    ) from _error

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from ..jax import batch_norm, batch_norm_frozen
from ..jax.layers import batch_statistics, evaluate
from ..tensors.options import Activation
from ..tensors.spec import DataFormat, DataFormatLike, parse_data_format

__docformat__ = "numpy"

__all__ = ["BatchNorm"]


def __dir__() -> list[str]:
    return __all__


class BatchNorm(eqx.nn.BatchNorm):
    """`equinox.nn.BatchNorm`, with an optional residual and activation.

    Parameters
    ----------
    input_size : int
        Number of channels.
    axis_name : str or sequence of str, optional
        As in Equinox's layer: an input is an item of the batch, and the statistics are those of all
        items along the axis of `jax.vmap` of this name. The default is none: an input is a batch.
    eps, channelwise_affine, momentum, inference, dtype
        As in Equinox's layer.
    mode : {"batch", "ema"}, default "ema" with a warning
        As in Equinox's layer, which recommends "batch" for new code. A checkpoint needs the mode
        that it was trained with.
    data_format : {"NCX", "NXC"} or DataFormat, default "NCX"
        Position of the channels: first (NCX), as in Equinox's convolutions, or last (NXC), not
        counting the axis of the batch.
    activation, clip, negative_slope
        As in `onedsl.jax.batch_norm`. The default is no activation.

    Notes
    -----
    The parameters and the state are those of Equinox's layer, so `equinox.tree_serialise_leaves`
    of one and `equinox.tree_deserialise_leaves` of the other fit.

    In training in mode "batch", the layer calls `onedsl.jax.batch_norm` for the whole batch, also
    inside of a `jax.vmap` with ``axis_name``. In mode "ema", and with several names or the name of
    an axis of `jax.shard_map`, `jax.numpy` computes the statistics, and onedsl the gradient for
    given statistics. In inference, `jax.numpy` computes the result and its gradient.

    Differences from Equinox's layer:

    - Forward mode (`jax.jvp`, `jax.linearize`) works in inference, not in training. Of a gradient,
      it works in both: `jax.hessian`, or `jax.jvp` of `jax.grad`.
    - In training, `jax.grad` inside of the `jax.vmap` with ``axis_name`` raises
      NotImplementedError. Call `jax.grad` of the function that calls `jax.vmap`.
    - Results are computed in f32. f64 inputs raise TypeError. f64 parameters and statistics, the
      default under ``jax_enable_x64``, are converted, and an f32 input has an f32 result.
    - If a residual is added or there is an activation, the result is rounded once to the dtype,
      not after each operation.

    Examples
    --------
    >>> class Block(equinox.Module):
    ...     conv: equinox.nn.Conv2d
    ...     norm: onedsl.equinox.BatchNorm
    ...
    ...     def __call__(self, x, state):  # under jax.vmap with axis_name="batch"
    ...         return self.norm(self.conv(x), state, residual=x)
    """

    data_format: DataFormat = eqx.field(static=True)
    activation: Activation | None = eqx.field(static=True)
    clip: float | None = eqx.field(static=True)
    negative_slope: float | None = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        axis_name: Hashable | Sequence[Hashable] = None,
        eps: float = 1e-5,
        channelwise_affine: bool = True,
        momentum: float = 0.99,
        inference: bool = False,
        dtype: Any = None,
        mode: Literal["batch", "ema", "legacy"] = "legacy",
        *,
        data_format: DataFormatLike = DataFormat.NCX,
        activation: Activation | None = None,
        clip: float | None = None,
        negative_slope: float | None = None,
    ) -> None:
        own = (input_size, axis_name, eps, channelwise_affine, momentum, inference, dtype, mode)
        super().__init__(*own)
        self.data_format = parse_data_format(data_format)
        self.activation = activation
        self.clip = clip
        self.negative_slope = negative_slope

    def __call__(
        self,
        x: Any,
        state: eqx.nn.State,
        *,
        key: Any = None,
        inference: bool | None = None,
        residual: Any = None,
    ) -> tuple[Any, eqx.nn.State]:
        """Normalize x, add the residual, apply the activation, update the running statistics.

        Parameters
        ----------
        x : array
            A batch, or an item of a batch if the layer has an axis_name.
        state, key, inference
            As in Equinox's layer.
        residual : array, x's shape, optional
            Added before the activation.

        Returns
        -------
        tuple
            An array of x's shape, and the new state.
        """
        del key
        inference = self.inference if inference is None else inference
        given = [x, *self._affine()]
        if inference:
            running = self._running(state)
            given += running
        x = jnp.asarray(x, jnp.result_type(*(array for array in given if array is not None)))
        tensors = [x] if residual is None else [x, jnp.asarray(residual, x.dtype)]
        if inference:
            return self._normalize(evaluate, tensors, *running), state
        if self.mode == "batch" and self.axis_name is None:
            return self._in_training(tensors, state)
        if self.mode == "batch" and _is_of_vmap(self.axis_name):
            whole = [jax.lax.all_gather(tensor, self.axis_name) for tensor in tensors]
            dst, state = self._in_training(whole, state)
            return _item(dst, jax.lax.axis_index(self.axis_name)), state
        batch = batch_statistics(x, self._summed_axes(x.ndim), axis_name=self.axis_name)
        state = self._updated(state, batch)
        statistics = self._running(state) if self.mode == "ema" else batch
        return self._normalize(batch_norm_frozen, tensors, *statistics), state

    def _in_training(self, tensors: list[Any], state: eqx.nn.State) -> tuple[Any, eqx.nn.State]:
        """Normalize a batch by its own statistics."""
        dst, *batch = batch_norm(tensors[0], *self._affine(), **self._options(tensors))
        return dst, self._updated(state, batch)

    def _normalize(self, compute: Any, tensors: list[Any], mean: Any, variance: Any) -> Any:
        """Normalize a batch, or an item of one, by the given statistics and a function."""
        is_item = self.axis_name is not None
        if is_item:
            tensors = [tensor[None] for tensor in tensors]
        statistics = mean.astype(jnp.float32), variance.astype(jnp.float32)
        dst = compute(tensors[0], *statistics, *self._affine(), **self._options(tensors))
        return dst[0] if is_item else dst

    def _affine(self) -> list[Any]:
        """Return weight and bias, at most in f32, or None."""
        return [
            None if array is None else _at_most_f32(array) for array in (self.weight, self.bias)
        ]

    def _options(self, tensors: list[Any]) -> dict[str, Any]:
        return {
            "epsilon": self.eps,
            "data_format": self.data_format,
            "activation": self.activation,
            "clip": self.clip,
            "negative_slope": self.negative_slope,
            "residual": tensors[1] if len(tensors) > 1 else None,
        }

    def _summed_axes(self, rank: int) -> list[int]:
        """Return the axes of the statistics of a batch, or of an item of one."""
        if self.axis_name is None:
            return [*self.data_format.summed_axes(rank)]
        return [axis - 1 for axis in self.data_format.summed_axes(rank + 1) if axis > 0]

    def _running(self, state: eqx.nn.State) -> list[Any]:
        """Return the running statistics that inference normalizes by, at most in f32."""
        if self.mode == "ema":
            return [*map(_at_most_f32, state.get(self.ema_state_index))]
        steps = state.get(self.batch_counter)
        share = jnp.where(steps == 0, 1, 1 - self.momentum**steps)
        return [_at_most_f32(hidden / share) for hidden in state.get(self.batch_state_index)]

    def _updated(self, state: eqx.nn.State, batch: Any) -> eqx.nn.State:
        """Return the state with the updated running statistics."""
        index = self.ema_state_index if self.mode == "ema" else self.batch_state_index
        old = state.get(index)
        new = [self.momentum * a + (1 - self.momentum) * b for a, b in zip(old, batch, strict=True)]
        if self.mode == "ema":
            is_first = state.get(self.ema_first_time_index)
            state = state.set(self.ema_first_time_index, jnp.array(False))
            new = [jnp.where(is_first, b, a) for a, b in zip(new, batch, strict=True)]
        else:
            state = state.set(self.batch_counter, state.get(self.batch_counter) + 1)
        cast = (value.astype(a.dtype) for value, a in zip(new, old, strict=True))
        return state.set(index, tuple(cast))


def _is_of_vmap(axis_name: Any) -> bool:
    """Return whether this is one name, and not that of an axis of `jax.shard_map`."""
    is_name = isinstance(axis_name, str)
    return is_name and axis_name not in jax.sharding.get_abstract_mesh().manual_axes


def _at_most_f32(array: Any) -> Any:
    """Convert an array of f64 to f32."""
    return array.astype(jnp.float32) if array.dtype == jnp.float64 else array


def _raise_not_differentiable(*_: Any) -> Any:
    raise NotImplementedError(
        "onedsl.equinox.BatchNorm must be differentiated outside of the jax.vmap with its "
        "axis_name, got a derivative inside of it. Call jax.grad of the function that calls "
        "jax.vmap"
    )


# JAX differentiates the item only inside of the named axis; outside, `_items` is the derivative's.
_differentiated_item = jax.custom_vjp(
    lambda whole, index: jax.lax.dynamic_index_in_dim(whole, index, keepdims=False)
)
_differentiated_item.defvjp(_raise_not_differentiable, _raise_not_differentiable)


@custom_vmap
def _item(whole: Any, index: Any) -> Any:
    """Return the item of a batch at the index along a named axis of `jax.vmap`.

    Under that `jax.vmap`, this is the batch itself, without a copy.
    """
    return _differentiated_item(whole, index)


@_item.def_vmap
def _items(_size: int, is_batched: Any, whole: Any, index: Any) -> tuple[Any, bool]:
    if is_batched[1]:  # only along the named axis
        return whole, True
    return _item(jnp.moveaxis(whole, 0, 1), index), True
