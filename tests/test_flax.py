"""onedsl.flax: the layers compute what Flax's layers compute, followed by JAX's functions.

The laws have onedsl.jax, which the layers call.
"""

import functools
import importlib.util

import helpers
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is optional, and not installed here")
pytest.importorskip("flax", reason="Flax is optional, and not installed here")

import flax.linen as nn  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx, serialization  # noqa: E402
from jax_helpers import AFTER, activated, assert_close, enable_x64  # noqa: E402

import onedsl  # noqa: E402
import onedsl.flax  # noqa: E402

X = 3 * jax.random.normal(jax.random.key(1), (8, 6, 4, 10)) + 1
RESIDUAL = jax.random.normal(jax.random.key(2), X.shape)
WEIGHT = jax.random.normal(jax.random.key(3), X.shape)
MASK = jax.random.bernoulli(jax.random.key(4), 0.7, (8, 6, 4, 1))
BF16, F16 = jnp.bfloat16, jnp.float16
normal = nn.initializers.normal()

# Attributes of a layer, the dtype of the input, a mask.
CASES = [
    ({}, "float32", None),
    ({"axis": 1}, "bfloat16", None),  # the result is float32, as the parameters
    ({"axis": -2}, "float32", None),
    ({"dtype": BF16}, "bfloat16", None),
    ({"dtype": BF16}, "float32", None),
    ({"dtype": F16, "param_dtype": BF16, "use_bias": False}, "float16", None),
    ({"use_scale": False}, "float32", None),
    ({"use_scale": False, "use_bias": False, "use_fast_variance": False}, "float32", None),
    ({"scale_init": normal, "bias_init": normal}, "float32", None),
    ({"momentum": 0.5, "epsilon": 0.1}, "float32", None),
    ({}, "float32", MASK),
    ({"axis": 1, "dtype": BF16}, "bfloat16", MASK),
]
LINEN_CASES = [*CASES, ({"axis": (1, -1)}, "float32", None), ({"axis": (3, 1)}, "float32", MASK)]
LINEN_CASES += [({}, "float32", mask) for mask in (MASK.astype("int32"), 2.0 * MASK)]
CLASSES = {"linen": (onedsl.flax.linen, nn), "nnx": (onedsl.flax.nnx, nnx)}
kinds = pytest.mark.parametrize("kind", CLASSES)


def composed(layer, **attributes):
    """Return the layer of Flax, followed by the addition and JAX's activation."""

    def call(x, *arguments, residual=None, **options):
        dst = layer(x, *arguments, **options)
        dst = dst if residual is None else dst + residual.astype(dst.dtype)
        return activated(dst, **attributes)

    return call


def linen_steps(is_ours, options, after, x, residual, mask):
    """Return gradients, results and statistics of a step, and the same in evaluation."""
    layer = onedsl.flax.linen.BatchNorm(**options, **after) if is_ours else nn.BatchNorm(**options)
    variables = nn.BatchNorm(**options).init(jax.random.key(0), x, False)

    def loss(params, x, residual, batch_stats, frozen):
        def apply(x, frozen, **others):
            every = {"params": params, "batch_stats": batch_stats}
            return layer.apply(every, x, frozen, mutable=["batch_stats"], **others)

        if is_ours:
            dst, new = apply(x, frozen, mask=mask, residual=residual)
        else:
            dst, new = apply(x, frozen, mask=mask)
            dst = composed(lambda _: dst, **after)(None, residual=residual)
        return (WEIGHT * dst).sum(), (dst, new)

    step = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True, allow_int=True), static_argnums=4)
    inputs = variables.get("params", {}), x, residual
    training = step(*inputs, variables["batch_stats"], False)
    return training, step(*inputs, training[1][1]["batch_stats"], True)


def nnx_steps(is_ours, options, after, x, residual, mask):
    """Return the same for a layer of NNX."""
    channels = x.shape[options.get("axis", -1)]
    own = onedsl.flax.nnx.BatchNorm if is_ours else nnx.BatchNorm
    layer = own(channels, **options, **(after if is_ours else {}), rngs=nnx.Rngs(0))

    def loss(layer, x, residual, frozen):
        call = layer if is_ours else composed(layer, **after)
        dst = call(x, frozen, mask=mask, residual=residual)
        return (WEIGHT * dst).sum(), dst

    step = nnx.jit(nnx.grad(loss, argnums=(0, 1, 2), has_aux=True), static_argnums=3)
    results = []
    for frozen in (False, True):
        (of_parameters, *others), dst = step(layer, x, residual, frozen)
        states = of_parameters, nnx.state(layer, nnx.BatchStat)
        results.append((*map(nnx.to_pure_dict, states), *others, dst))
    return results


STEPS = {"linen": linen_steps, "nnx": nnx_steps}


def check_equal(tolerance, got, wanted):
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert_close(got, wanted, tolerance)


def check_steps(kind, options, after, dtype, mask, residual):
    x = X.astype(dtype)
    residual = None if residual is None else residual.astype(dtype)
    got, wanted = (STEPS[kind](own, options, after, x, residual, mask) for own in (True, False))
    tolerance = 1e-5 if dtype == "float32" and "dtype" not in options else 4e-2
    jax.tree.map(functools.partial(check_equal, tolerance), got, wanted)


@pytest.mark.parametrize(
    ("kind", "options", "dtype", "mask"),
    [*(("linen", *case) for case in LINEN_CASES), *(("nnx", *case) for case in CASES)],
)
def test_attributes(kind, options, dtype, mask):
    """Results, gradients, running statistics, and the order of feature axes are Flax's."""
    check_steps(kind, options, {"activation": "gelu"}, dtype, mask, RESIDUAL)


@kinds
@pytest.mark.parametrize(("after", "with_residual"), [({}, False), *AFTER])
def test_activations(kind, after, with_residual):
    check_steps(kind, {}, after, "float32", None, RESIDUAL if with_residual else None)


@pytest.mark.parametrize(
    ("options", "x", "mask"),
    [
        # Regression: onedsl's layer rejected masks that are not of bools, unlike linen's.
        ({}, X, np.asarray(MASK).astype(int).tolist()),
        ({"axis_name": "batch"}, X, None),  # the layer is initialized outside of the axis
        ({}, jnp.arange(5.0), None),  # channels alone
    ],
    ids=["mask of lists", "named axis", "item"],
)
def test_first_calls_of_linen(options, x, mask):
    layers = [m.BatchNorm(False, **options) for m in (onedsl.flax.linen, nn)]
    got, wanted = (layer.init_with_output(jax.random.key(0), x, mask=mask) for layer in layers)
    jax.tree.map(functools.partial(check_equal, 1e-5), got, wanted)


def test_an_item_of_nnx():
    """It has channels alone."""
    layers = [m.BatchNorm(5, rngs=nnx.Rngs(0)) for m in (onedsl.flax.nnx, nnx)]
    check_equal(1e-6, *(layer(jnp.arange(5.0)) for layer in layers))


@kinds
def test_forward_mode_in_evaluation(kind):
    """Of x, parameters and statistics. Regression: JAX's TypeError."""

    def tangents(module):
        if kind == "linen":
            layer = module.BatchNorm(use_running_average=True)
            variables, call = layer.init(jax.random.key(0), X), layer.apply
        else:
            layer = module.BatchNorm(10, use_running_average=True, rngs=nnx.Rngs(0))
            structure, variables = nnx.split(layer)
            call = lambda state, x: nnx.merge(structure, state)(x)  # noqa: E731
        primals = jax.tree.map(lambda a: a + 0.5, variables)
        directions = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)), variables)
        return jax.jvp(lambda *a: jax.nn.silu(call(*a)), (primals, X), (directions, RESIDUAL))

    ours, theirs = CLASSES[kind]
    jax.tree.map(functools.partial(check_equal, 1e-5), tangents(ours), tangents(theirs))


def test_the_running_statistics_of_nnx_have_no_gradient():
    """As Flax's: a loss that depends on them does not change the gradient."""

    def loss(x, module):
        layer = module.BatchNorm(10, rngs=nnx.Rngs(0))
        layer(x)
        return (layer.mean[...] + layer.var[...]).sum()

    for module in (onedsl.flax.nnx, nnx):
        assert not jax.grad(loss)(X, module).any()


class Network(nn.Module):
    """Layers with the names that linen derives."""

    norm: type[nn.Module]

    @nn.compact
    def __call__(self, x, *, train=True):
        x = self.norm(use_running_average=not train)(nn.Dense(7)(x))
        return nn.Dense(2)(self.norm(not train)(x))


def test_checkpoints_of_linen():
    """Those of Flax's layers fit and vice versa, by names that linen derives from the class."""
    networks = [Network(onedsl.flax.linen.BatchNorm), Network(nn.BatchNorm)]
    trees = [network.init(jax.random.key(seed), X) for seed, network in enumerate(networks)]
    names = [jax.tree.map(jnp.shape, tree) for tree in trees]
    assert names[0] == names[1]
    assert "BatchNorm_1" in names[0]["params"]
    for i in range(2):
        loaded = serialization.from_bytes(trees[i], serialization.to_bytes(trees[1 - i]))
        got = networks[i].apply(loaded, X, train=False)
        check_equal(1e-5, got, networks[1 - i].apply(trees[1 - i], X, train=False))


def test_checkpoints_of_nnx():
    layers = [m.BatchNorm(10, rngs=nnx.Rngs(0)) for m in (onedsl.flax.nnx, nnx)]
    for layer, other in (layers, layers[::-1]):
        state = jax.tree.map(lambda a: a + jnp.arange(10.0), nnx.state(layer))
        assert set(nnx.to_pure_dict(state)) == {"scale", "bias", "mean", "var"}
        nnx.update(layer, state)
        nnx.update(other, nnx.state(layer))
        check_equal(1e-5, *(own(X, use_running_average=True) for own in (layer, other)))


def test_train_and_eval_of_nnx():
    layer = onedsl.flax.nnx.BatchNorm(10, activation="relu", rngs=nnx.Rngs(0))
    layer.eval()
    frozen = layer(X)
    assert (nnx.state(layer)["mean"][...] == 0).all()
    layer.train()
    assert not np.allclose(layer(X), frozen)
    assert (nnx.state(layer)["mean"][...] != 0).all()


def test_the_kernels_compute_a_step():
    """Also on the layout that Flax's convolutions have, without a transposition."""
    layer = onedsl.flax.linen.BatchNorm(use_running_average=False, activation="relu")
    variables = layer.init(jax.random.key(0), X)

    def loss(x):
        return layer.apply(variables, x, residual=x, mutable=["batch_stats"])[0].sum()

    program = jax.jit(jax.grad(loss)).lower(X).as_text()
    for call in ("act_forward_training", "act_training_backward"):
        assert f"custom_call @onedsl_batch_norm_{call}" in program
    assert "stablehlo.transpose" not in program


def test_unsupported_arguments():
    layer = functools.partial(onedsl.flax.linen.BatchNorm, use_running_average=False)
    init = lambda x=X, residual=None, **options: layer(**options).init(  # noqa: E731
        jax.random.key(0), x, residual=residual
    )
    with pytest.raises(NotImplementedError, match="force_float32_reductions must be True"):
        init(force_float32_reductions=False)
    with pytest.raises(ValueError, match="activation must be one of"):
        init(activation="tanh")
    with pytest.raises(ValueError, match="clip must be None"):
        init(activation="silu", clip=6.0)
    with pytest.raises(ValueError, match="residual must have src's shape"):
        init(residual=X[:1])
    with enable_x64(True), pytest.raises(TypeError, match=r"src must be f32, .*float64"):
        init(np.ones((2, 3)))
    with pytest.raises(ValueError, match="use_running_average"):
        onedsl.flax.nnx.BatchNorm(10, use_running_average=None, rngs=nnx.Rngs(0))(X)


@pytest.mark.parametrize("name", ["flax", "equinox"])
def test_import_without_the_library(name):
    code = f"import sys; sys.modules['{name}'] = None; import onedsl.{name}"
    child = helpers.run_child(code, status=1)
    library = name.capitalize()
    assert (
        f"ImportError: onedsl.{name} needs {library}. Install it with: pip install" in child.stderr
    )


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_named_axes(devices):
    """Of jax.vmap, jax.pmap and jax.shard_map, for the layers of Flax and Equinox."""
    if importlib.util.find_spec("equinox") is None:
        pytest.skip("Equinox is optional, and not installed here")
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    helpers.run_script("jax_layers.py", str(devices), environment=flags)
