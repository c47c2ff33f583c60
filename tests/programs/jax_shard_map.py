"""The layers inside of jax.shard_map; XLA_FLAGS of the caller makes the devices."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import onedsl.jax
from onedsl import testing

EPSILON = 1e-5
DEVICES = int(sys.argv[1])
assert len(jax.devices()) == DEVICES
SIZES = {1: (1, 1), 2: (2, 1), 4: (2, 2)}[DEVICES]
mesh = jax.make_mesh(SIZES, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
problem = testing.random_problem((8, 4, 6, 8))
src, diff_dst, mean, variance, gamma = problem
AXES = (0, 1, 2)


def frozen(src, gamma, beta, mean, variance):
    return gamma * (src - mean) / jnp.sqrt(variance + EPSILON) + beta


def composed(src, gamma, beta):
    mean, variance = src.mean(AXES), src.var(AXES)
    return frozen(src, gamma, beta, mean, variance), mean, variance


def ours_frozen(src, gamma, beta, mean, variance):
    return onedsl.jax.batch_norm_frozen(src, mean, variance, gamma, beta, epsilon=EPSILON)


ours = functools.partial(onedsl.jax.batch_norm, epsilon=EPSILON)


def sharded(function, in_specs, out_specs, **options):
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    )


def gradients_of(layer, split, parameters, count, uses="dst", **options):
    """Differentiate a layer on each device's part, with respect to src and all parameters."""

    def local(src, diff_dst, *rest):
        def loss(src, *rest):
            results = layer(src, *rest)
            dst, mean, variance = results if isinstance(results, tuple) else (results, 0, 0)
            of_statistics = (mean * variance**2).sum() if uses != "dst" else 0
            return ((dst * diff_dst).sum() if uses != "statistics" else 0) + of_statistics

        return jax.grad(loss, tuple(range(1 + count)))(src, *rest)

    in_specs = (split, split, *[parameters] * count)
    return sharded(local, in_specs, (split, *[parameters] * count), **options)


def same(got, wanted, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert testing.relative_l2(a, b) <= tolerance, testing.relative_l2(a, b)


def in_float64(function, *arguments):
    with jax.enable_x64(True):
        wide = [np.asarray(a, np.float64) for a in arguments]
        return jax.tree.map(np.asarray, function(*wide))


for split, parameters in [
    (P(), P()),
    (P("a"), P()),
    (P(("a", "b")), P()),
    (P(None, None, None, "a"), P("a")),
    (P("a", None, None, "b"), P("b")),
]:
    for options in ({}, {"check_vma": False}):
        for uses in ("dst", "statistics", "both"):
            of = [gradients_of(f, split, parameters, 2, uses, **options) for f in (ours, composed)]
            arguments = src, diff_dst, gamma, mean
            if uses == "statistics":  # on which gamma and beta have no bearing
                got, wanted = of[0](*arguments)[0], in_float64(of[1], *arguments)[0]
                same(got, wanted, 4e-6)
            else:
                same(of[0](*arguments), in_float64(of[1], *arguments), 4e-6)
        of = [gradients_of(f, split, parameters, 4, **options) for f in (ours_frozen, frozen)]
        arguments = src, diff_dst, gamma, mean, mean, variance
        same(of[0](*arguments), in_float64(of[1], *arguments), 4e-6)


def backward(*arguments):
    return onedsl.jax.batch_norm_backward(*arguments, epsilon=EPSILON)


rows = P(("a", "b"))
inputs = (rows, rows, P(), P(), P())

# The sum of one device's part is not that of all.
if DEVICES > 1:
    local = sharded(lambda *a: backward(*a).diff_beta, inputs, rows)(*problem)
    assert local.shape == (8 * DEVICES,)
    for call in (backward, lambda *a: jax.vmap(backward)(*(x[None] for x in a))):
        with pytest.raises(ValueError, match="require replication"):
            sharded(lambda *a, call=call: call(*a).diff_beta, inputs, P())(*problem)

summed = sharded(lambda *a: jax.lax.psum(backward(*a)[1:], ("a", "b")), inputs, P())(*problem)
wanted = testing.batch_norm_backward(*problem, epsilon=EPSILON)
same(summed, wanted[1:], 1e-6)

# Twice differentiable there, under vmap, and without jit.


def squares(layer, src):
    return (jax.grad(lambda src: jnp.sin(layer(src, gamma, mean)[0]).sum())(src) ** 2).sum()


def second(layer):
    return sharded(jax.grad(functools.partial(squares, layer)), rows, rows)


same(second(ours)(src), in_float64(second(composed), src), 2e-5)
batch = np.stack([src, diff_dst])
stacked = P(None, *rows)
of_items = jax.vmap(backward, (0, 0, None, None, None))
each = sharded(lambda *a: of_items(*a).diff_src, (stacked, stacked, P(), P(), P()), stacked)
assert each(batch, batch, *problem[2:]).shape == batch.shape
eager = jax.shard_map(backward, mesh=mesh, in_specs=inputs, out_specs=rows)(*problem)
same(eager, sharded(backward, inputs, rows)(*problem), 0)
