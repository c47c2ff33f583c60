"""Flax's BatchNorm layers, linen and NNX, computed by onedsl, compared with Flax's own layers.

The subclasses have the parameters, variables and arguments of Flax's layers. Checkpoints fit both,
if the layer has a name. linen derives the other names from the class, such as ``BatchNorm_0``, so
call the copy of the class in your program ``BatchNorm``. A mask, ``axis_name``, several axes and
``force_float32_reductions=False`` are not supported.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.linen.dtypes import canonicalize_dtype

import onedsl.jax


def check_supported(layer: Any, mask: jax.Array | None) -> None:
    """Raise NotImplementedError for a mask or an attribute that is not supported."""
    is_f32 = getattr(layer, "force_float32_reductions", True)  # only linen has it
    is_supported = layer.axis_name is None and isinstance(layer.axis, int) and is_f32
    if mask is not None or not is_supported:
        unsupported = "a mask, axis_name, several axes and force_float32_reductions=False"
        raise NotImplementedError(f"{unsupported} are not supported, got {layer}")


def normalize(layer: Any, x: Any, frozen: bool, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """Return the normalized x, of Flax's dtype, and the new running statistics."""
    given = [array for array in (x, scale, bias) if array is not None]
    dtype = canonicalize_dtype(*given, dtype=layer.dtype)
    x = jnp.moveaxis(x, layer.axis, -1).astype(jnp.promote_types(x.dtype, dtype))
    if frozen:
        dst = onedsl.jax.batch_norm_frozen(x, mean, var, scale, bias, epsilon=layer.epsilon)
    else:
        dst, *batch = onedsl.jax.batch_norm(x, scale, bias, epsilon=layer.epsilon)
        keep = layer.momentum
        mean, var = (keep * a + (1 - keep) * b for a, b in zip((mean, var), batch, strict=True))
    return jnp.moveaxis(dst, -1, layer.axis).astype(dtype), mean, var


class LinenBatchNorm(nn.BatchNorm):
    """flax.linen.BatchNorm."""

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Normalize by the batch statistics, or by the running ones."""
        check_supported(self, mask)
        frozen = nn.merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        shape = (x.shape[self.axis],)
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

    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Normalize by the batch statistics, or by the running ones."""
        check_supported(self, mask)
        frozen = self.use_running_average if use_running_average is None else use_running_average
        scale = None if self.scale is None else self.scale[...]
        bias = None if self.bias is None else self.bias[...]
        mean, var = self.mean[...], self.var[...]
        # Flax also rounds mean and var to the dtype.
        x, _, _, scale, bias = self.promote_dtype((x, mean, var, scale, bias), dtype=self.dtype)
        dst, *running = normalize(self, x, frozen, scale, bias, mean, var)
        if not frozen:
            self.mean[...], self.var[...] = jax.lax.stop_gradient(running)
        return dst


inputs = 3 * jax.random.normal(jax.random.key(1), (8, 6, 6, 32)) + 1
weight = jax.random.normal(jax.random.key(2), inputs.shape)


def linen_step(cls: type[nn.BatchNorm], options: dict[str, Any], x: jax.Array) -> Any:
    """Return gradients, results and running statistics of a step, and the results in evaluation."""
    layer = cls(**options)
    variables = layer.init(jax.random.key(0), x, False)

    def loss(params: Any, x: jax.Array) -> Any:
        new_variables = variables | {"params": params}
        dst, new = layer.apply(new_variables, x, False, mask=None, mutable=["batch_stats"])
        return (weight * dst).sum(), (dst, new)

    step = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    gradients, (dst, new) = step(variables["params"], x)
    return gradients, dst, new, layer.apply(variables | new, x, True)


def nnx_step(cls: type[nnx.BatchNorm], options: dict[str, Any], x: jax.Array) -> Any:
    """Return the same for a layer of NNX."""
    layer = cls(x.shape[options.get("axis", -1)], **options, rngs=nnx.Rngs(0))

    def loss(layer: nnx.BatchNorm, x: jax.Array) -> Any:
        dst = layer(x, mask=None)
        return (weight * dst).sum(), dst

    step = nnx.jit(nnx.grad(loss, argnums=(0, 1), has_aux=True))
    (of_parameters, of_x), dst = step(layer, x)
    states = of_parameters, nnx.state(layer, nnx.BatchStat)
    return *map(nnx.to_pure_dict, states), of_x, dst, layer(x, use_running_average=True)


def check_equal(tolerance: float, got: jax.Array, expected: jax.Array) -> None:
    """Raise AssertionError for another dtype or other values."""
    assert got.dtype == expected.dtype
    pair = got.astype(jnp.float32), expected.astype(jnp.float32)
    np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance)


for name, step, own, flax in (
    ("linen", linen_step, LinenBatchNorm, nn.BatchNorm),
    ("nnx", nnx_step, NNXBatchNorm, nnx.BatchNorm),
):
    for options, dtype in (
        ({}, "float32"),
        ({"axis": 1}, "bfloat16"),  # the result is float32, as the parameters
        ({"dtype": jnp.bfloat16}, "float32"),
        ({"dtype": jnp.float16, "param_dtype": jnp.bfloat16, "use_bias": False}, "float16"),
    ):
        got, expected = (step(cls, options, inputs.astype(dtype)) for cls in (own, flax))
        tolerance = 1e-4 if dtype == "float32" and "dtype" not in options else 2e-2
        jax.tree.map(functools.partial(check_equal, tolerance), got, expected)
    print(f"{name}: results, gradients and running statistics are those of Flax's layer")
