"""Checks the layers on sharded arrays under jit. XLA_FLAGS sets the number of devices."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from helpers import EPSILON, even_problem
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_helpers import composed, in_float64

import onedsl.jax
from onedsl import testing

DEVICES = int(sys.argv[1])
assert len(jax.devices()) == DEVICES
MESH_SHAPE = {1: (1, 1), 4: (2, 2)}[DEVICES]


def put(mesh, spec, *arrays):
    return tuple(jax.device_put(a, NamedSharding(mesh, P(*spec))) for a in arrays)


def in_dtype_of_gamma(src, gamma, beta, residual, **options):
    dtype = gamma.dtype
    residual = None if residual is None else residual.astype(dtype)
    return composed(src.astype(dtype), gamma, beta, residual=residual, **options)


def gradients_of(layer, **after):
    def loss(src, gamma, beta, diff_dst):
        residual = src / 2 if after else None
        dst, mean, variance = layer(src, gamma, beta, residual=residual, **after)
        of_statistics = (mean * variance).sum()
        return (dst.astype(mean.dtype) * diff_dst.astype(mean.dtype)).sum() + of_statistics

    return jax.grad(loss, (0, 1, 2))


def communication(program):
    """Return the shapes that the program sums over devices, and its other communication."""
    text = program.as_text()
    sums = [shape for line in re.findall(r"= (.*?) all-reduce\(", text) for shape in shapes(line)]
    others = re.findall(r" (all-gather|all-to-all|collective-permute|dynamic-slice)\(", text)
    return sums, others


def shapes(text):
    return [tuple(map(int, s.split(","))) for s in re.findall(r"\w+\[([\d,]+)\]", text)]


def check(mesh, data_format, spec, dtype="f32", stats="f32", statistics="batch"):
    axis = 1 if data_format == "NCX" else 3
    shape = (8, 8, 4, 6) if data_format == "NCX" else (8, 4, 6, 8)
    axes = tuple(a for a in range(4) if a != axis)
    problem = even_problem(shape, dtype, stats, data_format=data_format)
    options = {"epsilon": EPSILON, "data_format": data_format}
    channels = spec[axis] if axis < len(spec) else None
    src, diff_dst = put(mesh, spec, *problem[:2])
    # mean and variance are sharded like src; gamma is replicated.
    mean, variance = put(mesh, (channels,), *problem[2:4])
    (gamma,) = put(mesh, (), problem.gamma)

    sizes = dict(mesh.shape)
    channel_shards = 1 if channels is None else sizes[channels]
    is_summed = any(sizes[n] > 1 for a in axes if a < len(spec) for n in np.ravel(spec[a] or []))
    call = functools.partial(onedsl.jax.batch_norm_backward, statistics=statistics, **options)
    program = jax.jit(call).lower(src, diff_dst, mean, variance, gamma).compile()
    got = program(src, diff_dst, mean, variance, gamma)
    testing.assert_close(
        got, testing.batch_norm_backward(*problem, statistics=statistics, **options)
    )
    assert got.diff_src.sharding.is_equivalent_to(src.sharding, 4)
    assert got.diff_beta.sharding.is_equivalent_to(mean.sharding, 1)
    sums, others = communication(program)
    # Only diff_gamma and diff_beta of the device's channels are summed; gamma is sliced.
    assert sums == ([(8 // channel_shards,)] * 2 if is_summed else []), (spec, sums)
    assert set(others) <= ({"dynamic-slice"} if channel_shards > 1 else set()), (spec, others)
    if (stats, statistics) != ("f32", "batch"):
        return

    (beta,) = put(mesh, (), problem.mean)
    arguments = src, gamma, beta, diff_dst
    for after in ({}, {"activation": "relu"}, {"activation": "gelu"}):
        check_layer(arguments, data_format, dtype, spec, after)


def check_layer(arguments, data_format, dtype, spec, after):
    options = {"epsilon": EPSILON, "data_format": data_format}
    layer = gradients_of(functools.partial(onedsl.jax.batch_norm, **options), **after)
    of_jax = functools.partial(in_dtype_of_gamma, data_format=data_format)
    reference = gradients_of(of_jax, **after)
    ours, theirs = (jax.jit(f).lower(*arguments).compile() for f in (layer, reference))
    got = ours(*arguments)
    expected = in_float64(reference, *arguments)
    assert testing.relative_l2(got[0], expected[0]) <= 2 * testing.TOLERANCES[dtype]
    for a, b in zip(got[1:], expected[1:], strict=True):
        assert testing.relative_l2(a, b) <= 4e-6
    for a, b in zip(got, theirs(*arguments), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    summed, summed_by_jax = (sum(map(np.prod, communication(p)[0])) for p in (ours, theirs))
    assert summed <= summed_by_jax, (spec, summed, summed_by_jax)


call = functools.partial(onedsl.jax.batch_norm_backward, epsilon=EPSILON)
for kind in (AxisType.Auto, AxisType.Explicit) if hasattr(jax.sharding, "reshard") else (None,):
    types = {} if kind is None else {"axis_types": (kind, kind)}
    mesh = jax.make_mesh(MESH_SHAPE, ("a", "b"), **types)
    check(mesh, "NXC", ("a", None, None, "b"))
    check(mesh, "NCX", (None, "a"))
    if DEVICES > 1 and kind is not AxisType.Explicit:
        check(mesh, "NXC", ("a",), statistics="frozen")
        for spec in [(), (None, None, "a"), (("a", "b"),)]:
            check(mesh, "NCX", spec)
        check(mesh, "NXC", ("a",), "bf16", "bf16")
        check(mesh, "NXC", ("a",), "bf16", "f32")
        # Sums over devices are f32: 257 on one device is no bf16 number, and 257 + 2 rounds to 260.
        diff_dst = np.zeros((514, 8), jnp.bfloat16)
        diff_dst[:259] = 1
        statistics = np.ones((3, 8), jnp.bfloat16)
        got = jax.jit(call)(*put(mesh, ("a",), diff_dst, diff_dst), *statistics)
        assert (got.diff_beta == 260).all(), got.diff_beta

    if kind is not AxisType.Explicit:  # JAX rejects uneven shardings of explicit axes
        problem = testing.random_problem((5, 3, 8))

        def uneven(src, *rest, mesh=mesh):
            return call(jax.lax.with_sharding_constraint(src, NamedSharding(mesh, P("a"))), *rest)

        got = jax.jit(uneven)(*problem)
        testing.assert_close(got, testing.batch_norm_backward(*problem, epsilon=EPSILON))

    # Under vmap, where the call is not partitioned.
    items = [np.stack([a, a]) for a in testing.random_problem((4, 3, 8))]
    got = jax.jit(jax.vmap(call))(*put(mesh, (None, "a"), *items[:2]), *items[2:])
    expected = testing.batch_norm_backward(*(a[0] for a in items), epsilon=EPSILON)
    for item in range(2):
        testing.assert_close(onedsl.BatchNormGradients(*(a[item] for a in got)), expected)
