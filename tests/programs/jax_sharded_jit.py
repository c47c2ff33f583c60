"""Arrays that are split over devices, under jit; XLA_FLAGS of the caller makes the devices."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import onedsl.jax
from onedsl import testing

EPSILON = 1e-5
DEVICES = int(sys.argv[1])
assert len(jax.devices()) == DEVICES
SHAPES = {1: (1, 1), 2: (2, 1), 4: (2, 2)}


def put(mesh, spec, *arrays):
    return tuple(jax.device_put(a, NamedSharding(mesh, P(*spec))) for a in arrays)


def composed(src, gamma, beta, axes):
    """Write the layer in jax.numpy."""
    shape = [1 if axis in axes else size for axis, size in enumerate(src.shape)]
    x = src.astype(gamma.dtype)
    mean, variance = x.mean(axes), x.var(axes)
    dst = (x - mean.reshape(shape)) / jnp.sqrt(variance + EPSILON).reshape(shape)
    return dst * gamma.reshape(shape) + beta.reshape(shape), mean, variance


def gradients_of(layer):
    def loss(src, gamma, beta, diff_dst):
        dst, mean, variance = layer(src, gamma, beta)
        return (dst.astype(mean.dtype) * diff_dst.astype(mean.dtype)).sum() + (
            mean * variance
        ).sum()

    return jax.grad(loss, (0, 1, 2))


def moved(program):
    """What devices send: the shapes that are summed over them, and the number of gathers."""
    sums = [s for line in re.findall(r"= (.*?) all-reduce\(", program) for s in shapes(line)]
    others = re.findall(r" (all-gather|all-to-all|collective-permute|dynamic-slice)\(", program)
    return sums, others


def shapes(text):
    return [tuple(map(int, s.split(","))) for s in re.findall(r"\w+\[([\d,]+)\]", text)]


def check(mesh, data_format, spec, dtype, stats):
    axis = 1 if data_format == "NCX" else 3
    shape = (8, 8, 4, 6) if data_format == "NCX" else (8, 4, 6, 8)
    axes = tuple(a for a in range(4) if a != axis)
    problem = testing.random_problem(shape, dtype, stats, data_format=data_format)
    options = {"epsilon": EPSILON, "data_format": data_format}
    channels = spec[axis] if axis < len(spec) else None
    src, diff_dst = put(mesh, spec, *problem[:2])
    # Half of the arguments are split as src, half are not.
    mean, variance = put(mesh, (channels,), *problem[2:4])
    (gamma,) = put(mesh, (), problem.gamma)

    sizes = dict(mesh.shape)
    split = 1 if channels is None else sizes[channels]
    summed = any(sizes[n] > 1 for a in axes if a < len(spec) for n in np.ravel(spec[a] or []))
    for statistics in ("batch", "frozen"):
        call = functools.partial(onedsl.jax.batch_norm_backward, statistics=statistics, **options)
        program = jax.jit(call)
        got = program(src, diff_dst, mean, variance, gamma)
        testing.assert_gradients_close(
            got, testing.batch_norm_backward(*problem, statistics=statistics, **options)
        )
        assert got.diff_src.sharding.is_equivalent_to(src.sharding, 4)
        assert got.diff_beta.sharding.is_equivalent_to(mean.sharding, 1)
        text = program.lower(src, diff_dst, mean, variance, gamma).compile().as_text()
        sums, others = moved(text)
        # The two sums of each channel that a device has, and gamma's part of it.
        assert sums == ([(8 // split,)] * 2 if summed else []), (spec, sums)
        assert set(others) <= ({"dynamic-slice"} if split > 1 else set()), (spec, others)

    if stats == "bf16":
        return
    (beta,) = put(mesh, (), problem.mean)
    layer = gradients_of(functools.partial(onedsl.jax.batch_norm, **options))
    reference = gradients_of(functools.partial(composed, axes=axes))
    arguments = src, gamma, beta, diff_dst
    got = jax.jit(layer)(*arguments)
    with jax.enable_x64(True):
        wide = [np.asarray(a, np.float64) for a in arguments]
        wanted = jax.tree.map(np.asarray, jax.jit(reference)(*wide))
    tolerance = testing.TOLERANCES[dtype]
    assert testing.relative_l2(got[0], wanted[0]) <= 2 * tolerance
    for a, b in zip(got[1:], wanted[1:], strict=True):
        assert testing.relative_l2(a, b) <= 4e-6
    theirs = jax.jit(reference)
    for a, b in zip(got, theirs(*arguments), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    sums, _ = moved(jax.jit(layer).lower(*arguments).compile().as_text())
    by_jax, _ = moved(theirs.lower(*arguments).compile().as_text())
    channel_sums = sum(map(np.prod, sums))
    assert channel_sums <= sum(map(np.prod, by_jax)), (spec, sums, by_jax)
    print(
        data_format,
        dtype,
        spec,
        4 * channel_sums,
        "bytes summed, jnp",
        4 * sum(map(np.prod, by_jax)),
    )


for kind in (AxisType.Auto, AxisType.Explicit) if hasattr(jax.sharding, "reshard") else (None,):
    types = {} if kind is None else {"axis_types": (kind, kind)}
    mesh = jax.make_mesh(SHAPES[DEVICES], ("a", "b"), **types)
    check(mesh, "NXC", ("a",), "f32", "f32")
    check(mesh, "NXC", ("a", None, None, "b"), "f32", "f32")
    check(mesh, "NCX", (None, "a"), "f32", "f32")
    if kind is not AxisType.Explicit:
        for spec in [(), (None, None, "a"), (("a", "b"),), ("a", "b")]:
            check(mesh, "NCX", spec, "f32", "f32")
        check(mesh, "NXC", ("a",), "bf16", "bf16")
        check(mesh, "NXC", ("a",), "bf16", "f32")

    # A batch of five does not go evenly into two devices.
    problem = testing.random_problem((5, 3, 8))
    call = functools.partial(onedsl.jax.batch_norm_backward, epsilon=EPSILON)

    def uneven(src, diff_dst, *rest, call=call, mesh=mesh):
        split = NamedSharding(mesh, P("a"))
        src = jax.lax.with_sharding_constraint(src, split)
        return call(src, diff_dst, *rest)

    if kind is not AxisType.Explicit:  # where such a constraint is an error
        got = jax.jit(uneven)(*problem)
        testing.assert_gradients_close(got, testing.batch_norm_backward(*problem, epsilon=EPSILON))

    # Under vmap, too, where nothing is split.
    many = [np.stack([a, a]) for a in testing.random_problem((4, 3, 8))]
    got = jax.jit(jax.vmap(call))(*(put(mesh, (None, "a"), *many[:2]) + tuple(many[2:])))
    wanted = testing.batch_norm_backward(*(a[0] for a in many), epsilon=EPSILON)
    for item in range(2):
        testing.assert_gradients_close(onedsl.BatchNormGradients(*(a[item] for a in got)), wanted)
