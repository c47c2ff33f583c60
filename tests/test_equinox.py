"""onedsl.equinox: the layer computes what Equinox's layer computes, followed by JAX's functions.

The laws have onedsl.jax, which the layer calls.
"""

import functools
import io
import re

import pytest

jax = pytest.importorskip("jax", reason="JAX is optional, and not installed here")
eqx = pytest.importorskip("equinox", reason="Equinox is optional, and not installed here")

import jax.numpy as jnp  # noqa: E402
from jax_helpers import AFTER, activated, assert_close, enable_x64  # noqa: E402

import onedsl.equinox  # noqa: E402

X = 3 * jax.random.normal(jax.random.key(1), (8, 10, 6, 4)) + 1
RESIDUAL = jax.random.normal(jax.random.key(2), X.shape)
WEIGHT = jax.random.normal(jax.random.key(3), X.shape)
OPTIONS = {"axis_name": "batch", "mode": "batch"}
OURS, THEIRS = onedsl.equinox.BatchNorm, eqx.nn.BatchNorm
batches = functools.partial(jax.vmap, out_axes=(0, None), axis_name="batch")


def make(cls=OURS, **options):
    """Return a layer and its state."""
    return eqx.nn.make_with_state(cls)(10, **OPTIONS | options)


def model_of(layer, after, is_ours):
    """Return a function of an item of the batch: the layer, the addition and the activation."""

    def model(layer, x, residual, state):
        if is_ours:
            return layer(x, state, residual=residual)
        dst, state = layer(x, state)
        dst = dst if residual is None else dst + residual
        return activated(dst, **after), state

    return functools.partial(model, layer)


def run(cls, options, after, x, residual, *, in_training=True, is_ours=True, wrap=eqx.filter_jit):
    """Return the gradients, results and states of two steps, and the results in inference."""
    layer, state = make(cls, **options, **(after if is_ours else {}))

    @eqx.filter_value_and_grad(has_aux=True)
    def loss(inputs, state, inference):
        layer, x, residual = inputs
        layer = eqx.nn.inference_mode(layer, inference)
        axes = 0, None if residual is None else 0, None
        model = jax.vmap(model_of(layer, after, is_ours), axes, (0, None), axis_name="batch")
        dst, state = model(x, residual, state)
        return (WEIGHT * dst).sum(), (dst, state)

    step = wrap(loss)
    results = []
    for inference in (False, False, True)[0 if in_training else 2 :]:
        (_, (dst, state)), gradients = step((layer, x, residual), state, inference)
        results.append((gradients, dst, state))
    return jax.tree.leaves(results)


def check_equal(got, wanted, tolerance=1e-5):
    for a, b in zip(got, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert_close(a, b, tolerance)


def check(options, after, x=X, residual=None, tolerance=1e-5, **others):
    ours, theirs = (
        run(cls, options, after, x, residual, is_ours=cls is OURS, **others)
        for cls in (OURS, THEIRS)
    )
    check_equal(ours, theirs, tolerance)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, "float32"),
        ({"mode": "ema"}, "float32"),
        ({"channelwise_affine": False}, "float32"),
        ({"momentum": 0.5, "eps": 0.1}, "float32"),
        ({}, "bfloat16"),  # the result is float32, as the parameters
        ({"channelwise_affine": False}, "bfloat16"),  # in inference, as the statistics
        ({"dtype": jnp.bfloat16}, "bfloat16"),
        ({"dtype": jnp.float16, "mode": "ema", "momentum": 0.5}, "float16"),
    ],
)
def test_arguments(options, dtype):
    """Results, gradients and states of steps and in inference are Equinox's."""
    x, tolerance = X.astype(dtype), 1e-5 if dtype == "float32" else 2e-2
    check(options, {"activation": "gelu"}, x, RESIDUAL.astype(dtype), tolerance)


@pytest.mark.parametrize(("after", "with_residual"), [({}, False), *AFTER])
def test_activations(after, with_residual):
    check({}, after, residual=RESIDUAL if with_residual else None)


def test_inference_of_a_new_layer():
    check({}, {"activation": "silu"}, residual=RESIDUAL, in_training=False)


def test_without_jit():
    check({}, {"activation": "relu"}, residual=RESIDUAL, wrap=lambda function: function)


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_batches_without_vmap(data_format, mode):
    """A layer without axis_name normalizes a batch, with the channels in either position."""
    after = {"activation": "relu"}
    like = run(OURS, {"mode": mode}, after, X, RESIDUAL)
    layer, state = make(axis_name=None, mode=mode, data_format=data_format, **after)
    move = lambda a: jnp.moveaxis(a, 1, -1) if data_format == "NXC" else a  # noqa: E731

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def loss(inputs, state, inference):
        layer, x, residual = inputs
        layer = eqx.nn.inference_mode(layer, inference)
        dst, state = layer(move(x), state, residual=move(residual))
        dst = jnp.moveaxis(dst, -1, 1) if data_format == "NXC" else dst
        return (WEIGHT * dst).sum(), (dst, state)

    results = []
    for inference in (False, False, True):
        (_, (dst, state)), gradients = loss((layer, X, RESIDUAL), state, inference)
        results.append((gradients, dst, state))
    check_equal(jax.tree.leaves(results), like)


def test_channels_last_under_vmap():
    layer, state = make(data_format="NXC")
    got, _ = batches(lambda x: layer(x, state))(jnp.moveaxis(X, 1, -1))
    like, state = make(THEIRS)
    wanted, _ = batches(lambda x: like(x, state))(X)
    check_equal([jnp.moveaxis(got, -1, 1)], [wanted])


@pytest.mark.parametrize("inner", [False, True])
def test_nested_vmap(inner):
    """Another jax.vmap outside, over networks, or inside, over time steps."""
    stacked = jnp.stack([X, RESIDUAL], 1 if inner else 0)

    def result(cls):
        layer, state = make(cls)

        def batch(x):
            def item(x):
                call = lambda x: layer(x, state)[0]  # noqa: E731
                return jax.vmap(call)(x) if inner else call(x)

            return jax.vmap(item, axis_name="batch")(x)

        def loss(x):
            dst = batch(x) if inner else jax.vmap(batch)(x)
            return (jnp.sin(dst) * dst).sum(), dst

        return jax.tree.leaves(jax.jit(jax.grad(loss, has_aux=True))(stacked))

    check_equal(result(OURS), result(THEIRS))


def test_the_kernels_compute_a_step():
    """One call computes the whole batch, without a copy of an item."""
    layer, state = make(activation="relu")

    def loss(x):
        model = jax.vmap(lambda x: layer(x, state, residual=x)[0], axis_name="batch")
        return model(x).sum()

    program = jax.jit(jax.grad(loss)).lower(X).as_text()
    for call in ("act_forward_training", "act_training_backward"):
        assert program.count(f"custom_call @onedsl_batch_norm_{call}") == 1
    assert not re.search(r"stablehlo\.(gather|scatter|transpose|dynamic_slice)", program)


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_checkpoints(mode):
    """Those of Equinox's layer fit, and vice versa."""
    first, second = (make(cls, mode=mode) for cls in (OURS, THEIRS))
    first = jax.tree.map(lambda a: a + jnp.ones_like(a) if eqx.is_inexact_array(a) else a, first)
    for saved, like in ((first, second), (second, first)):
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, saved)
        file.seek(0)
        loaded = eqx.tree_deserialise_leaves(file, like)
        check_equal(
            *(jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (loaded, saved)), 0
        )


def test_defaults():
    """They are Equinox's, with its warning. Regression: mode was "batch" without one."""
    with pytest.warns(UserWarning, match="is unspecified it defaults to 'ema'") as caught:
        ours, theirs = (cls(10, "batch") for cls in (OURS, THEIRS))
    assert len(caught) == 2
    for name in ("momentum", "eps", "inference", "channelwise_affine", "mode"):
        assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize("inference", [False, True])
def test_the_argument_inference(inference):
    """It overrides that of the layer."""
    found = []
    for given in (None, inference):
        layer, state = make(inference=inference if given is None else not inference)
        found.append(batches(lambda x, a=layer, b=state, c=given: a(x, b, inference=c))(X))
    check_equal(*map(jax.tree.leaves, found), 0)


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_forward_mode_in_inference(mode):
    """Of x, parameters and statistics. Regression: JAX's TypeError."""

    def tangents(cls):
        layer, state = make(cls, mode=mode, inference=True)
        arrays, others = eqx.partition((layer, state), eqx.is_inexact_array)
        arrays = jax.tree.map(lambda a: a + 1.5, arrays)

        def result(arrays, x):
            layer, state = eqx.combine(arrays, others)
            return jax.nn.silu(jax.vmap(lambda x: layer(x, state)[0], axis_name="batch")(x))

        directions = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size)).reshape(a.shape), arrays)
        return jax.tree.leaves(jax.jvp(result, (arrays, X), (directions, RESIDUAL)))

    check_equal(tangents(OURS), tangents(THEIRS))


def test_derivatives_inside_of_the_named_axis():
    """Regression: JAX's message, which names an internal function."""
    layer, state = make()
    gradient = jax.grad(lambda x: layer(x, state)[0].sum())
    with pytest.raises(NotImplementedError, match=r"differentiated outside of the jax\.vmap"):
        jax.vmap(gradient, axis_name="batch")(X)


@pytest.mark.parametrize("options", [{}, {"mode": "ema"}], ids=str)
def test_f64_parameters(options):
    """The default under jax_enable_x64. Regression: an f32 input raised TypeError."""
    wanted = run(OURS, options, {}, X, None)
    with enable_x64(True):
        got = run(OURS, options, {}, X, None)
        layer, state = make(axis_name=None)
        with pytest.raises(TypeError, match=r"src must be f32, .*float64"):
            layer(X.astype("float64"), state)
        assert layer(X, state)[0].dtype == "float32"
        assert got[0].dtype == "float64"
    assert_close(got, wanted, 1e-5)


@pytest.mark.parametrize(
    ("options", "residual", "message"),
    [
        ({"activation": "tanh"}, None, "activation must be one of"),
        ({"activation": "silu", "clip": 6.0}, None, "clip must be None"),
        ({"data_format": "NHWC"}, None, "data_format must be"),
        ({"mode": "other"}, None, "Invalid mode"),
        ({}, X[:1], "residual must have src's shape"),
    ],
)
def test_invalid_arguments(options, residual, message):
    with pytest.raises(ValueError, match=message):
        layer, state = make(axis_name=None, **options)
        layer(X, state, residual=residual)
