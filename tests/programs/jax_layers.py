"""Checks axis_name of the layers of Flax and Equinox. XLA_FLAGS sets the number of devices."""

import functools
import sys

import equinox as eqx
import flax.linen as nn
import jax
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

import onedsl.equinox
import onedsl.flax

DEVICES = int(sys.argv[1])
assert len(jax.devices()) == DEVICES
X = 3 * jax.random.normal(jax.random.key(0), (DEVICES, 4, 6, 8)) + 1
WEIGHT = jax.random.normal(jax.random.key(1), X.shape)
mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def linen(cls, groups=None):
    """Return an initial state, and a function of one device's arrays and the state.

    The function returns results and running statistics.
    """
    layer = cls(use_running_average=False, axis_name="d", axis_index_groups=groups)
    variables = cls(use_running_average=False).init(jax.random.key(0), X[0])

    def call(x, variables):
        dst, new = layer.apply(variables, x, mutable=["batch_stats"])
        return dst, jax.tree.leaves(new)

    return variables, call


def of_nnx(cls, groups=None):
    def call(x, _):
        layer = cls(8, axis_name="d", axis_index_groups=groups, rngs=nnx.Rngs(0))
        dst = layer(x)
        return dst, [layer.mean[...], layer.var[...]]

    return (), call


def of_equinox(cls, names, **options):
    layer, state = eqx.nn.make_with_state(cls)(8, names, **options)

    def call(x, state):
        def item(x):
            dst, new = layer(x.T, state)
            return dst.T, new

        dst, new = jax.vmap(item, out_axes=(0, None), axis_name="batch")(x)
        return dst, jax.tree.leaves(new)

    return state, call


def with_gradient(call):
    def step(x, weight, state):
        def loss(x):
            dst, others = call(x, state)
            return (weight * dst).sum(), (dst, others)

        return jax.grad(loss, has_aux=True)(x)

    return step


def by_shard_map(step):
    def local(x, weight, state):
        results = step(x[0], weight[0], state)
        return jax.tree.map(lambda a: a[None], results)

    specs = {"in_specs": (P("d"), P("d"), P()), "out_specs": P("d"), "check_vma": False}
    return jax.jit(jax.shard_map(local, mesh=mesh, **specs))


WAYS = {
    "vmap": lambda step: jax.jit(jax.vmap(step, (0, 0, None), axis_name="d")),
    "pmap": functools.partial(jax.pmap, in_axes=(0, 0, None), axis_name="d"),
    "shard_map": by_shard_map,
}
own, theirs = onedsl.equinox.BatchNorm, eqx.nn.BatchNorm
pairs = {
    "linen": [linen(module.BatchNorm) for module in (onedsl.flax.linen, nn)],
    "nnx": [of_nnx(module.BatchNorm) for module in (onedsl.flax.nnx, nnx)],
    "equinox": [of_equinox(cls, ("batch", "d"), mode="batch") for cls in (own, theirs)],
    "equinox ema": [of_equinox(cls, ("batch", "d"), mode="ema") for cls in (own, theirs)],
    "equinox items": [of_equinox(cls, "batch", mode="batch") for cls in (own, theirs)],
}
if DEVICES == 4:
    groups = [[0, 1], [2, 3]]
    modules = (onedsl.flax.linen, nn)
    pairs["linen groups"] = [linen(module.BatchNorm, groups) for module in modules]
for name, calls in pairs.items():
    for way, wrap in WAYS.items():
        # Not supported by JAX, and by Equinox's layer.
        if (name, way) == ("linen groups", "vmap") or (name == "equinox ema" and way != "vmap"):
            continue
        got, wanted = (
            jax.tree.leaves(wrap(with_gradient(call))(X, WEIGHT, state)) for state, call in calls
        )
        for a, b in zip(got, wanted, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), (name, way)
            np.testing.assert_allclose(
                np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4, err_msg=f"{name} {way}"
            )
