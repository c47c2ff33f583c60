"""Checks the layers inside jax.shard_map. XLA_FLAGS sets the number of devices."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EPSILON, even_problem
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jax_helpers import assert_close, composed, in_float64

import onedsl.jax
from onedsl import testing

DEVICES = int(sys.argv[1])
assert len(jax.devices()) == DEVICES
mesh = jax.make_mesh({1: (1, 1), 4: (2, 2)}[DEVICES], ("a", "b"), axis_types=(AxisType.Auto,) * 2)
problem = even_problem((8, 4, 6, 8))
src, diff_dst, mean, variance, gamma = problem


def composed_frozen(*arguments):
    return composed(*arguments)[0]


def onedsl_frozen(src, gamma, beta, mean, variance):
    return onedsl.jax.batch_norm_frozen(src, mean, variance, gamma, beta, epsilon=EPSILON)


onedsl_layer = functools.partial(onedsl.jax.batch_norm, epsilon=EPSILON)


def sharded(function, in_specs, out_specs, **options):
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    )


def gradients_of(layer, spec, parameter_spec, parameters, uses, **options):
    """Return a function that differentiates a layer on each shard, by src and all parameters."""

    def local(src, diff_dst, *rest):
        def loss(src, *rest):
            results = layer(src, *rest)
            dst, mean, variance = results if isinstance(results, tuple) else (results, 0, 0)
            of_statistics = (mean * variance**2).sum() if uses != "dst" else 0
            return ((dst * diff_dst).sum() if uses != "statistics" else 0) + of_statistics

        return jax.grad(loss, tuple(range(1 + parameters)))(src, *rest)

    in_specs = (spec, spec, *[parameter_spec] * parameters)
    return sharded(local, in_specs, (spec, *[parameter_spec] * parameters), **options)


def check_gradients(ours, theirs, arguments, *specs_and_uses, **options):
    parameters = len(arguments) - 2
    spec, parameter_spec, uses = specs_and_uses
    got, expected = (
        gradients_of(layer, spec, parameter_spec, parameters, uses, **options)
        for layer in (ours, theirs)
    )
    results, wide = got(*arguments), in_float64(expected, *arguments)
    if uses == "statistics":  # the gradients of gamma and beta are 0
        results, wide = results[0], wide[0]
    assert_close(results, wide, 4e-6)


ROWS, CHANNELS = P(("a", "b")), P("a", None, None, "b")
unchecked = {"check_vma": False}
for *specs_and_uses, options in [
    (P(), P(), "both", {}),
    (P("a"), P(), "both", {}),
    (ROWS, P(), "dst", {}),
    (ROWS, P(), "statistics", {}),
    (ROWS, P(), "both", unchecked),
    (P(None, None, None, "a"), P("a"), "both", {}),
    (CHANNELS, P("b"), "both", {}),
    (CHANNELS, P("b"), "both", unchecked),
][:: 1 if DEVICES > 1 else 4]:
    arguments = src, diff_dst, gamma, mean
    check_gradients(onedsl_layer, composed, arguments, *specs_and_uses, **options)
for spec, parameter_spec, options in [(ROWS, P(), {}), (CHANNELS, P("b"), unchecked)]:
    arguments = src, diff_dst, gamma, mean, mean, variance
    specs_and_uses = spec, parameter_spec, "dst"
    check_gradients(onedsl_frozen, composed_frozen, arguments, *specs_and_uses, **options)


def activated(layer):
    """Return the layer with the addition of a tensor and an activation."""

    def call(src, *parameters):
        return layer(src, *parameters, residual=jnp.cos(src), activation="silu")

    return call


for spec, parameter_spec, options in [(ROWS, P(), {}), (CHANNELS, P("b"), unchecked)]:
    arguments, specs = (src, diff_dst, gamma, mean), (spec, parameter_spec)
    layers = activated(onedsl_layer), activated(composed)
    check_gradients(*layers, arguments, *specs, "both", **options)


def backward(*arguments):
    return onedsl.jax.batch_norm_backward(*arguments, epsilon=EPSILON)


inputs = (ROWS, ROWS, P(), P(), P())
if DEVICES > 1:
    # Each device returns the sum of its own shard, and JAX rejects these sums as replicated.
    local = sharded(lambda *a: backward(*a).diff_beta, inputs, ROWS)(*problem)
    assert local.shape == (8 * DEVICES,)
    for call in (backward, lambda *a: jax.vmap(backward)(*(x[None] for x in a))):
        with pytest.raises(ValueError, match="require replication"):
            sharded(lambda *a, call=call: call(*a).diff_beta, inputs, P())(*problem)

summed = sharded(lambda *a: jax.lax.psum(backward(*a)[1:], ("a", "b")), inputs, P())(*problem)
expected = testing.batch_norm_backward(*problem, epsilon=EPSILON)
assert_close(summed, expected[1:], 1e-6)

# Second derivatives, vmap, and a call without jit.


def sum_of_squares(layer, src):
    return (jax.grad(lambda src: jnp.sin(layer(src, gamma, mean)[0]).sum())(src) ** 2).sum()


def second_derivative(layer):
    return sharded(jax.grad(functools.partial(sum_of_squares, layer)), ROWS, ROWS)


if jax.__version_info__ >= (0, 8):  # earlier versions change the sharding type of results
    for ours, theirs in ((onedsl_layer, composed), (activated(onedsl_layer), activated(composed))):
        got = second_derivative(ours)(src)
        assert_close(got, in_float64(second_derivative(theirs), src), 2e-5)
batch = np.stack([src, diff_dst])
batch_spec = P(None, *ROWS)
batched = jax.vmap(backward, (0, 0, None, None, None))
in_specs = (batch_spec, batch_spec, P(), P(), P())
each = sharded(lambda *a: batched(*a).diff_src, in_specs, batch_spec)
assert each(batch, batch, *problem[2:]).shape == batch.shape
eager = jax.shard_map(backward, mesh=mesh, in_specs=inputs, out_specs=ROWS)(*problem)
assert_close(eager, sharded(backward, inputs, ROWS)(*problem), 0)
