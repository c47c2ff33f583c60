"""Flax's BatchNorm layers, linen and NNX, computed by onedsl, compared with Flax's own layers.

The subclasses have the parameters, variables and arguments of Flax's layers, so that checkpoints
fit both. The last axis has the channels. ``mask`` and ``axis_name`` are not supported.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import onedsl.jax


def normalize(layer: Any, x: Any, frozen: bool, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """Return the normalized x and the new running statistics."""
    assert layer.axis == -1
    assert layer.axis_name is None
    if frozen:
        dst = onedsl.jax.batch_norm_frozen(x, mean, var, scale, bias, epsilon=layer.epsilon)
        return dst, mean, var
    dst, *batch = onedsl.jax.batch_norm(x, scale, bias, epsilon=layer.epsilon)
    keep = layer.momentum
    return dst, *(keep * a + (1 - keep) * b for a, b in zip((mean, var), batch, strict=True))


class LinenBatchNorm(nn.BatchNorm):
    """flax.linen.BatchNorm."""

    @nn.compact
    def __call__(self, x: jax.Array, use_running_average: bool | None = None) -> jax.Array:
        """Normalize by the batch statistics, or by the running ones."""
        frozen = nn.merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        shape = (x.shape[-1],)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        var = self.variable("batch_stats", "var", jnp.ones, shape)
        scale = bias = None
        if self.use_scale:
            scale = self.param("scale", self.scale_init, shape, self.param_dtype)
        if self.use_bias:
            bias = self.param("bias", self.bias_init, shape, self.param_dtype)
        dst, *running = normalize(self, x, frozen, scale, bias, mean.value, var.value)
        if not frozen and not self.is_initializing():
            mean.value, var.value = running
        return dst


class NNXBatchNorm(nnx.BatchNorm):
    """flax.nnx.BatchNorm."""

    def __call__(self, x: jax.Array, use_running_average: bool | None = None) -> jax.Array:
        """Normalize by the batch statistics, or by the running ones."""
        frozen = self.use_running_average if use_running_average is None else use_running_average
        scale = None if self.scale is None else self.scale[...]
        bias = None if self.bias is None else self.bias[...]
        dst, *running = normalize(self, x, frozen, scale, bias, self.mean[...], self.var[...])
        self.mean[...], self.var[...] = jax.lax.stop_gradient(running)
        return dst


x = 3 * jax.random.normal(jax.random.key(1), (8, 6, 6, 32)) + 1
weight = jax.random.normal(jax.random.key(2), x.shape)


def linen_step(layer: nn.BatchNorm) -> Any:
    """Return gradients, results and running statistics of a step, and the results in evaluation."""
    variables = layer.init(jax.random.key(0), x, False)

    def loss(params: Any, x: jax.Array) -> Any:
        dst, new = layer.apply(variables | {"params": params}, x, False, mutable=["batch_stats"])
        return (weight * dst).sum(), (dst, new)

    step = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    gradients, (dst, new) = step(variables["params"], x)
    return gradients, dst, new, layer.apply(variables | new, x, True)


def nnx_step(layer: nnx.BatchNorm) -> Any:
    """Return the same for a layer of NNX."""

    def loss(layer: nnx.BatchNorm, x: jax.Array) -> Any:
        dst = layer(x)
        return (weight * dst).sum(), dst

    step = nnx.jit(nnx.grad(loss, argnums=(0, 1), has_aux=True))
    (of_parameters, of_x), dst = step(layer, x)
    states = of_parameters, nnx.state(layer, nnx.BatchStat)
    return *map(nnx.to_pure_dict, states), of_x, dst, layer(x, use_running_average=True)


for name, step, own, flax in (
    ("linen", linen_step, LinenBatchNorm(), nn.BatchNorm()),
    ("nnx", nnx_step, NNXBatchNorm(32, rngs=nnx.Rngs(0)), nnx.BatchNorm(32, rngs=nnx.Rngs(0))),
):
    got, expected = step(own), step(flax)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, expected)
    print(f"{name}: results, gradients and running statistics are those of Flax's layer")
