"""onedsl.jax where JAX has more than calls: JAX's derivatives, transformations and programs.

The laws have single calls, with jit and vmap. Here are losses that depend on batch statistics,
frozen statistics, other uses of vmap, other derivatives, arguments of JAX itself, and programs.
"""

import functools
import importlib
import re
import types
from typing import Any, NamedTuple

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core, testing
from onedsl.testing import activations

jax = pytest.importorskip("jax", reason="JAX is optional, and not installed here")

import jax.numpy as jnp  # noqa: E402
from jax_helpers import AFTER, assert_close, composed, enable_x64, in_float64  # noqa: E402

import onedsl.jax  # noqa: E402
from onedsl.jax import _call  # noqa: E402

modes = pytest.mark.parametrize("mode", ["batch", "frozen"])


class Layer(NamedTuple):
    """A layer, its inputs, and what follows."""

    data_format: str = "NXC"
    mode: str = "batch"
    dtype: str = "f32"
    stats: str = "f32"
    spatial: tuple[int, ...] = (4, 3)
    jit: bool = True
    with_gamma: bool = True
    after: dict[str, Any] | None = None
    with_residual: bool = False


PLAIN = {"jit": False, "with_gamma": False}
ADD_SILU = {"after": {"activation": "silu"}, "with_residual": True}
LAYERS = [
    *(Layer(), Layer("NCX", "batch", "bf16", **ADD_SILU)),
    *(Layer(spatial=(), **PLAIN), Layer("NCX", "frozen", spatial=(2, 3, 2), **PLAIN)),
    *(Layer("NCX", "frozen", *row) for row in helpers.TYPES),
    # The laws have the layers of all activations with the statistics of the batch.
    *(Layer("NXC", "frozen", after=after[0], with_residual=after[1]) for after in AFTER),
    Layer("NXC", "frozen", "bf16", "bf16", **ADD_SILU),
]


layer = functools.partial(onedsl.jax.batch_norm, epsilon=EPSILON)
backward = functools.partial(onedsl.jax.batch_norm_backward, epsilon=EPSILON)


def problem_of(data_format="NXC", spatial=(4, 3), dtype="f32", stats="f32", seed=0):
    shape = helpers.shape_of(data_format, 3, 8, spatial)
    return helpers.even_problem(shape, dtype, stats, data_format=data_format, seed=seed)


def arrays(*values):
    return tuple(jnp.asarray(value) for value in values)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_layers(case):
    """Results and all gradients are right, for a loss that also depends on batch statistics."""
    problem = problem_of(case.data_format, case.spatial, case.dtype, case.stats)
    is_frozen, after = case.mode == "frozen", case.after or {}
    statistics = (problem.mean, problem.variance) if is_frozen else ()
    parameters = (problem.gamma, problem.mean) if case.with_gamma else ()
    residuals = (problem.diff_dst[::-1],) if case.with_residual else ()
    inputs = (*residuals, problem.src, *statistics, *parameters)
    options = {"data_format": case.data_format, **after}

    def ours(residual, *inputs):
        call = onedsl.jax.batch_norm_frozen if is_frozen else onedsl.jax.batch_norm
        results = call(*inputs, epsilon=EPSILON, residual=residual, **options)
        return (results,) if is_frozen else results

    def theirs(residual, src, *rest):
        given, affine = rest[: len(statistics)], rest[len(statistics) :] or (None, None)
        results = composed(src, *affine, *(given or ()), residual=residual, **options)
        return results[: 1 if given else 3]

    def loss(layer, *inputs):
        results = dst, *batch = layer(*(inputs if residuals else (None, *inputs)))
        wide = jnp.promote_types(dst.dtype, jnp.float32)
        value = (jnp.asarray(problem.diff_dst).astype(wide) * dst.astype(wide)).sum()
        if batch:
            mean, variance = batch
            value += (mean * variance**2).sum()
        return value, results

    def grad(layer):
        argnums = tuple(range(len(inputs)))
        return jax.value_and_grad(functools.partial(loss, layer), argnums, has_aux=True)

    (value, results), got = (jax.jit(grad(ours)) if case.jit else grad(ours))(*arrays(*inputs))
    (wanted_value, wanted_results), wanted = in_float64(grad(theirs), *inputs)
    tolerance = testing.TOLERANCES[case.dtype]
    assert results[0].dtype == problem.src.dtype
    assert all(a.dtype == "float32" for a in results[1:])
    assert [a.dtype for a in got] == [a.dtype for a in inputs]
    assert_close(results[0], wanted_results[0], tolerance)
    assert_close(results[1:], wanted_results[1:], 1e-6)
    if residuals:
        assert_close(got[0], wanted[0], tolerance)
        got, wanted = got[1:], wanted[1:]
    # Batch statistics are rounded to f32, and their own gradient adds one rounding; so does the
    # gradient of the argument of an activation that is not fused.
    assert_close(got[0], wanted[0], tolerance if statistics and not after else 2 * tolerance)
    is_rounded = after and statistics and case.dtype != "f32"  # that gradient, before it is summed
    of_sums = tolerance if is_rounded else max(2e-6, testing.SUM_TOLERANCES[case.stats])
    assert_close(got[1:], wanted[1:], 2 * of_sums)
    assert abs(value - wanted_value) <= 4 * tolerance * abs(wanted_value)


@pytest.mark.parametrize("used", ["dst", "mean", "variance"])
def test_each_result_has_its_gradient(used):
    """If the loss depends on one result, the other cotangents are symbolic zeros."""
    problem = problem_of()
    index = ["dst", "mean", "variance"].index(used)

    def loss(layer, src):
        result = layer(src)[index]
        return (result * jnp.arange(result.size, dtype=result.dtype).reshape(result.shape)).sum()

    got = jax.grad(functools.partial(loss, layer))(jnp.asarray(problem.src))
    wanted = in_float64(jax.grad(functools.partial(loss, composed)), problem.src)
    assert_close(got, wanted, 2e-6)


@pytest.mark.parametrize(("after", "with_residual"), [({}, False), *AFTER])
def test_nothing_but_the_call_remains(after, with_residual):
    """The compiled step has no pass of its own, if the loss depends on dst alone."""
    src = jnp.asarray(problem_of().src)
    residual = src if with_residual else None
    _, gradient = jax.vjp(lambda src, r: layer(src, residual=r, **after)[0], src, residual)
    kind = "_act" if "activation" in after else ""
    program = jax.jit(gradient).lower(src).as_text()
    call = "stablehlo.custom_call @onedsl_batch_norm"
    assert program.count(call) == program.count(f"{call}{kind}_training_backward") == 1
    for operation in ("add", "subtract", "multiply", "select", "maximum"):
        assert f"stablehlo.{operation}" not in program
    program = jax.jit(lambda src, r: layer(src, residual=r, **after)[0]).lower(src, residual)
    assert not re.search(r"stablehlo\.(add|multiply|select|maximum)", program.as_text())


@modes
def test_vmap(mode):
    """It is tested nested, and over the last axis of one argument."""
    problems = [problem_of("NCX", seed=seed) for seed in range(4)]
    options = {"epsilon": EPSILON, "data_format": "NCX", "statistics": mode}
    function = functools.partial(onedsl.jax.batch_norm_backward, **options)
    stacked = tuple(np.stack(values) for values in zip(*problems, strict=True))
    wanted = [function(*problem) for problem in problems]
    wanted = tuple(np.stack(values) for values in zip(*wanted, strict=True))

    twice = arrays(*(a.reshape(2, 2, *a.shape[1:]) for a in stacked))
    got = jax.jit(jax.vmap(jax.vmap(function)))(*twice)
    assert_close([a.reshape(b.shape) for a, b in zip(got, wanted, strict=True)], wanted, 0)

    last = jnp.moveaxis(jnp.asarray(stacked[1]), 0, -1)
    src, _, *rest = arrays(*problems[0])
    got = jax.vmap(lambda diff_dst: function(src, diff_dst, *rest), in_axes=-1)(last)
    for i, problem in enumerate(problems):
        one = function(src, problem.diff_dst, *rest)
        assert_close([a[i] for a in got], one, 0)


@pytest.mark.parametrize(
    ("mode", "order", "with_gamma", "tolerance", "after"),
    [
        ("batch", 2, True, 2e-5, {"activation": "silu"}),
        ("batch", 3, False, 2e-4, {"activation": "gelu_tanh"}),
        ("frozen", 2, True, 2e-5, {}),
        ("frozen", 2, False, 2e-5, {}),
        ("frozen", 2, True, 2e-5, {"activation": "silu"}),
        ("frozen", 3, False, 2e-4, {"activation": "gelu_tanh"}),
    ],
)
def test_higher_derivatives(mode, order, with_gamma, tolerance, after):
    """In reverse mode, and in forward mode over reverse mode."""
    problem = problem_of(spatial=())
    gamma = (problem.gamma,) if with_gamma else ()
    residual = lambda src: src[::-1] / 2 if after else None  # noqa: E731

    def statistics(src):
        return tuple(jnp.asarray(a).astype(src.dtype) for a in (problem.mean, problem.variance))

    def ours(src, *gamma):
        options = {"epsilon": EPSILON, "residual": residual(src)} | after
        if mode == "batch":
            return onedsl.jax.batch_norm(src, *gamma, **options)[0]
        return onedsl.jax.batch_norm_frozen(src, *statistics(src), *gamma, **options)

    def theirs(src, gamma=None):
        mean, variance = (None, None) if mode == "batch" else statistics(src)
        return composed(src, gamma, None, mean, variance, "NXC", residual(src), **after)[0]

    def derivatives(layer):
        argnums = tuple(range(1 + len(gamma)))
        forward = reverse = jax.grad(lambda *a: jnp.sin(layer(*a)).sum(), argnums)
        for _ in range(order - 1):
            squares = lambda *a, g=reverse: sum((x**2).sum() for x in g(*a))  # noqa: E731
            reverse, forward = jax.grad(squares, argnums), jax.jacfwd(forward)
        return lambda *a: (reverse(*a), forward(*a))

    inputs = (problem.src, *gamma)
    got = jax.jit(derivatives(ours))(*arrays(*inputs))
    assert_close(got, in_float64(derivatives(theirs), *inputs), tolerance)


def test_forward_mode_of_a_layer_raises():
    src = jnp.asarray(problem_of().src)
    with pytest.raises(TypeError, match=r"forward-mode autodiff .* custom_vjp"):
        jax.jvp(layer, (src,), (src,))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"src": [[1.0]]}, TypeError, "src must be a JAX or NumPy array, got list"),
        ({"src": np.ma.ones((2, 8), "f4")}, TypeError, "src must be .* got a masked array"),
        ({"src": np.ones((2, 8))}, TypeError, "src must be f32, bf16 or f16, .*float64"),
        ({"beta": np.ones(8)}, TypeError, "beta must be f32, bf16 or f16, .*float64"),
        ({"epsilon": jnp.float32(1)}, TypeError, r"epsilon must be .* Pass float\(epsilon\)"),
        ({"data_format": "NHWC"}, ValueError, "data_format must be 'NXC' or 'NCX'"),
        ({"activation": "tanh"}, ValueError, "activation must be one of \"relu\", .* got 'tanh'"),
        ({"activation": "relu", "clip": 0.0}, ValueError, "clip must be positive and finite"),
        ({"activation": "relu", "clip": jnp.float32(6)}, TypeError, r"clip .* Pass float"),
        ({"activation": "silu", "clip": 6.0}, ValueError, "clip must be None with activation="),
        ({"negative_slope": 0.1}, ValueError, "negative_slope must be None with activation=None"),
        ({"residual": np.ones((2, 8), "f2")}, TypeError, "residual must be f32 like src, got f16"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_layers_reject_invalid_arguments(changes, error, message):
    arguments = {"src": np.ones((2, 8), "f4"), "epsilon": EPSILON} | changes
    with pytest.raises(error, match=message):
        onedsl.jax.batch_norm(**arguments)
    statistics = {name: np.ones(8, "f4") for name in ("mean", "variance")}
    with pytest.raises(error, match=message):
        onedsl.jax.batch_norm_frozen(**statistics, **arguments)


@pytest.mark.parametrize("parameter", ["bf16", "f16"])
@pytest.mark.parametrize("src", ["f32", "f16"])
def test_parameters_of_16_bits_are_converted(src, parameter):
    """Results and gradients are those of f32 parameters, the latter rounded to 16 bits."""
    problem = problem_of(dtype=src)
    half = [a.astype(helpers.NUMPY[parameter]) for a in (problem.gamma, problem.mean)]
    rows = {
        onedsl.jax.batch_norm: (problem.src,),
        onedsl.jax.batch_norm_frozen: (problem.src, problem.mean, problem.variance),
    }
    for layer, inputs in rows.items():

        def loss(*parameters, layer=layer, inputs=inputs):
            dst = jax.tree.leaves(layer(*inputs, *parameters, epsilon=EPSILON))[0]
            return (jnp.asarray(problem.diff_dst, "f4") * dst.astype("f4")).sum()

        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        (value, got), (wanted_value, wanted) = step(*half), step(*(a.astype("f4") for a in half))
        assert value == wanted_value
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == helpers.NUMPY[parameter]
            assert (a == b.astype(a.dtype)).all()
    inputs = *problem[:4], half[0]
    got, wanted = backward(*inputs), backward(*inputs[:4], half[0].astype("f4"))
    assert all((a == b).all() for a, b in zip(got, wanted, strict=True))


def test_parameters_wider_than_the_statistics_are_rejected():
    bf16 = helpers.NUMPY["bf16"]
    src, mean, gamma = np.ones((2, 8), bf16), np.ones(8, bf16), np.ones(8, "f4")
    with pytest.raises(TypeError, match=r"^gamma must be bf16 like mean, got f32$"):
        onedsl.jax.batch_norm_frozen(src, mean, mean, gamma, epsilon=EPSILON)


def test_epsilon_is_static():
    src = jnp.asarray(problem_of().src)
    with pytest.raises(TypeError, match=r"epsilon must be a Python number, .* static_argnames"):
        jax.jit(lambda src, e: onedsl.jax.batch_norm(src, epsilon=e))(src, 1e-5)
    call = jax.jit(onedsl.jax.batch_norm, static_argnames="epsilon")
    assert_close(call(src, epsilon=1e-5), onedsl.jax.batch_norm(src, epsilon=1e-5), 0)


def test_deleted_arrays_are_rejected():
    src, *rest = arrays(*problem_of())
    src.delete()
    with pytest.raises(ValueError, match=r"^src must be an array with memory, .* deleted"):
        onedsl.jax.batch_norm(src, epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"^src .* deleted"):
        onedsl.BatchNormTrainingBackward(EPSILON)(src, *rest)


def test_backward_rejects_invalid_arguments():
    src, diff_dst, *rest = problem_of()
    for inputs, message in (
        ((src, diff_dst.tolist(), *rest), "diff_dst must be a JAX or NumPy array, got list"),
        ((src, diff_dst, None, *rest[1:]), "mean must be a JAX or NumPy array, got NoneType"),
        ((src, diff_dst.astype("f2"), *rest), "diff_dst must be f32 like src, got f16"),
        (
            (src, diff_dst, *(jnp.asarray(a, jnp.bfloat16) for a in rest)),
            "mean must be f32 where src is f32, .*bf16",
        ),
    ):
        with pytest.raises(TypeError, match=message):
            backward(*inputs)
    with pytest.raises(ValueError, match="statistics must be"):
        backward(src, diff_dst, *rest, statistics=True)
    with enable_x64(True), pytest.raises(TypeError, match=r"src must be .*, .*float64"):
        jax.jit(backward)(src.astype("f8"), diff_dst, *rest)


def test_another_device(monkeypatch):
    src = jnp.asarray(problem_of().src)
    gpu = types.SimpleNamespace(platform="cuda")
    monkeypatch.setattr(type(src), "devices", lambda _: [gpu])
    message = r"src must be on the CPU, got an array on cuda\. Move it with jax.device_put\(src, "
    with pytest.raises(ValueError, match=message):
        onedsl.jax.batch_norm(src, epsilon=EPSILON)


def test_values_at_the_bounds_of_activations():
    """NaN, infinities, and arguments at which an activation has no derivative."""
    src = np.float32([[np.nan, -np.inf, np.inf, -3, -0.0, 0, 1, 3]])
    zeros, ones = np.zeros(8, "f4"), np.ones(8, "f4")
    for after in [after for after, _ in AFTER if after]:
        parameter = after.get("clip", after.get("negative_slope"))
        frozen = functools.partial(onedsl.jax.batch_norm_frozen, epsilon=1e-30, **after)
        dst, pull_back = jax.vjp(lambda src, frozen=frozen: frozen(src, zeros, ones), src)
        (got,) = pull_back(jnp.ones_like(dst))
        with np.errstate(invalid="ignore"):
            wanted = activations.evaluate(after["activation"], src.astype("f8"), parameter)
        np.testing.assert_allclose(dst, wanted[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(got[:, 3:], wanted[1][:, 3:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8)])
def test_derivatives_of_empty_tensors(shape):
    """The mean of no elements does not depend on them."""
    src, weights = jnp.zeros(shape), jnp.ones(8)

    def loss(src, weights):
        return (weights * onedsl.jax.batch_norm(src, epsilon=EPSILON)[1]).sum()

    def mean(src):  # in reverse mode, because the layer has no forward mode
        return jax.grad(loss, (0, 1))(src, weights)[1]

    assert not any(a.any() for a in jax.jvp(mean, (src,), (src,)))


def test_no_tensor_is_copied():
    """The compiled program consists of the call, its parameters and its results."""
    problem = arrays(*testing.random_problem((2, 3, 5, 24), "bf16"))
    program = jax.jit(backward).lower(*problem).compile().as_text()
    operations = set(re.findall(r"^ .* = .*? ([a-z-]+)\(", program, re.MULTILINE))
    assert operations - {"get-tuple-element", "tuple"} == {"parameter", "custom-call"}


def test_in_a_scan_and_a_checkpoint():
    problem = problem_of()

    def loss(layer, src):
        def step(carry, _):
            return jax.checkpoint(lambda x: jnp.sin(layer(x)[0]) + x)(carry), None

        return (jax.lax.scan(step, src, length=3)[0] ** 2).sum()

    got = jax.jit(jax.grad(functools.partial(loss, layer)))(problem.src)
    wanted = in_float64(jax.grad(functools.partial(loss, composed)), problem.src)
    assert_close(got, wanted, 4e-6)


def test_many_concurrent_calls():
    """Several calls in one program and many queued programs on one CPU do not deadlock."""
    helpers.run_script("jax_many_calls.py", "1")


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_sharded_arrays(devices):
    code = "import runpy, sys\nfor program in sys.argv[2:]: runpy.run_path(program)"
    programs = (str(helpers.PROGRAMS / f"jax_{name}.py") for name in ("shard_map", "sharded_jit"))
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {"XLA_FLAGS": flags, "PYTHONPATH": str(helpers.TESTS)}
    helpers.run_child(code, (str(devices), *programs), environment=environment)


def test_import_without_jax():
    child = helpers.run_child("import sys; sys.modules['jax'] = None; import onedsl.jax", status=1)
    assert "ImportError: onedsl.jax needs JAX 0.6.1 or newer. Install it" in child.stderr


@pytest.mark.parametrize(
    ("header", "version"),
    [("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n", 1), ("", "unknown")],
)
def test_import_with_another_ffi_version(header, version, tmp_path, monkeypatch):
    file = tmp_path / "xla/ffi/api/c_api.h"
    file.parent.mkdir(parents=True)
    file.write_text(header)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    message = rf"onedsl\.jax needs a JAX .* got JAX {jax.__version__} with version {version}"
    with pytest.raises(ImportError, match=message):
        importlib.reload(_call)


@helpers.types
def test_jax_arrays_as_arguments_of_operators(dtype, stats):
    """Arguments and results are exchanged by DLPack without a copy."""
    problem = problem_of("NCX", (4, 3), dtype, stats)
    op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
    src, *rest = arrays(*problem)
    assert _core.import_array(src).ctypes.data == src.unsafe_buffer_pointer()
    got = op(src, *rest)
    for a, b in zip(got, op(*problem), strict=True):
        assert isinstance(a, jax.Array)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    numbers = _core.import_array(src)
    aligned = np.frombuffer(bytearray(1 << 12), np.uint8)
    aligned = aligned[-aligned.ctypes.data % 64 :][: 16 * numbers.itemsize].view(numbers.dtype)
    assert _core.export_array(aligned, src).unsafe_buffer_pointer() == aligned.ctypes.data


def test_jax_arrays_are_never_written_to():
    problem = arrays(*problem_of())
    out = tuple(jnp.zeros_like(a) for a in (problem[0], *problem[3:]))
    with pytest.raises(ValueError, match=r"out\.diff_src must be writable"):
        onedsl.BatchNormTrainingBackward(EPSILON)(*problem, out=out)
    assert not any(a.any() for a in out)
    with enable_x64(True), pytest.raises(TypeError, match=r"src must be .*, .*float64"):
        onedsl.BatchNormTrainingBackward(EPSILON)(problem[0].astype("f8"), *problem[1:])


def test_operators_reject_tracers():
    problem = arrays(*problem_of())
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    with pytest.raises(TypeError, match=r"src must be .* got a JAX tracer. Use onedsl\.jax"):
        jax.jit(lambda src: op(src, *problem[1:]).diff_src)(problem[0])


@pytest.mark.parametrize("jit", [False, True])
def test_evaluation_at_compile_time(jit):
    """Regression: a bare AssertionError of JAX."""
    src = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)

    def results(offset):
        with jax.ensure_compile_time_eval():
            layer = functools.partial(onedsl.jax.batch_norm, epsilon=1e-5)
            gradient = jax.grad(lambda x: jnp.sin(layer(x)[0]).sum())(src)
            return *(r + offset for r in layer(src)), gradient + offset

    got = (jax.jit(results) if jit else results)(np.float32(0))
    dst, mean, _, gradient = got
    assert np.allclose(mean, src.mean((0, 1)), atol=1e-6)
    assert np.allclose(dst, (src - src.mean((0, 1))) / src.std((0, 1)), atol=1e-4)
    assert np.allclose(np.asarray(gradient).sum((0, 1)), 0, atol=1e-5)
