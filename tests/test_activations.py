"""Operators with an activation: the activations' formulas, their errors, and invalid attributes."""

import functools
import itertools

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import testing

ACTIVATIONS = [
    {"activation": "relu"},
    {"activation": "relu", "clip": 1.5},
    {"activation": "leaky_relu"},
    {"activation": "leaky_relu", "negative_slope": -0.5},
    {"activation": "silu"},
    {"activation": "hardswish"},
    {"activation": "gelu"},
    {"activation": "gelu_tanh"},
]
activations = pytest.mark.parametrize("attributes", ACTIVATIONS, ids=str)
SMOOTH = ["silu", "gelu", "gelu_tanh"]
SHAPES = [(9, 8, ()), (3, 37, (5, 7)), (2, 5, (19, 23)), (40, 96, (3,))]


def values_of(shape, dtype, stats, data_format, seed=0):
    """Return src, diff_dst, mean, variance, gamma, beta and residual."""
    shape = helpers.shape_of(data_format, *shape)
    problem = testing.random_problem(shape, dtype, stats, data_format=data_format, seed=seed)
    rng = np.random.default_rng(seed)
    beta = rng.uniform(-1, 1, problem.gamma.shape).astype(problem.gamma.dtype)
    residual = rng.standard_normal(shape).astype(problem.src.dtype)
    return (*problem, beta, residual)


@helpers.types
@helpers.formats
@activations
@pytest.mark.parametrize("with_residual", [False, True])
def test_against_the_reference(with_residual, attributes, data_format, dtype, stats):
    forward = onedsl.BatchNormActForwardTraining(EPSILON, 0.9, data_format, **attributes)
    backward = onedsl.BatchNormActTrainingBackward(EPSILON, data_format, **attributes)
    for seed, shape in enumerate(SHAPES):
        x, d, mean, variance, gamma, beta, added = values_of(shape, dtype, stats, data_format, seed)
        residual = added if with_residual else None
        options = {"epsilon": EPSILON, "data_format": data_format, **attributes}
        arguments = x, mean, variance, gamma, beta, residual
        result = forward(*arguments)
        expected = testing.batch_norm_forward_training(*arguments, momentum=0.9, **options)
        testing.assert_close(result, expected)
        arguments = x, d, mean, variance, gamma, beta, residual
        gradients = backward(*arguments)
        assert (gradients.diff_residual is None) == (residual is None)
        testing.assert_close(gradients, testing.batch_norm_act_backward(*arguments, **options))


@helpers.formats
def test_relu_is_that_of_the_operators_for_it(data_format):
    """With the same bits, and a mask recomputed from the residual as from dst."""
    for clip in (None, 1.5):
        options = {"data_format": data_format, "clip": clip}
        relu = onedsl.BatchNormReLUForwardTraining(EPSILON, **options)
        act = onedsl.BatchNormActForwardTraining(EPSILON, activation="relu", **options)
        relu_gradient = onedsl.BatchNormReLUTrainingBackward(EPSILON, **options)
        act_gradient = onedsl.BatchNormActTrainingBackward(EPSILON, activation="relu", **options)
        for (shape, (dtype, stats)), with_residual in itertools.product(
            zip(
                SHAPES,
                [("f32", "f32"), ("bf16", "f32"), ("f16", "f32"), ("f32", "f32")],
                strict=True,
            ),
            (False, True),
        ):
            x, d, mean, variance, gamma, beta, added = values_of(shape, dtype, stats, data_format)
            residual = added if with_residual else None
            a = relu(x, mean, variance, gamma, beta, residual)
            b = act(x, mean, variance, gamma, beta, residual)
            assert [v.tobytes() for v in a] == [v.tobytes() for v in b]
            arguments = x, d, a.batch_mean, a.batch_variance, gamma, beta
            c = relu_gradient(*arguments, a.dst, residual=with_residual)
            e = act_gradient(*arguments, residual)
            same = [None if v is None else v.tobytes() for v in c]
            assert same == [None if v is None else v.tobytes() for v in e]


@functools.cache
def all_magnitudes():
    """Return numbers of all binades and both signs, and more between 2^-12 and 32."""
    bits = np.arange(0, 0x7F800000, 9973, dtype=np.uint32)
    near = np.linspace(-32, 32, 200_001).astype(np.float32)
    positive = bits.view(np.float32)
    return np.concatenate([positive, -positive, near, [0.0, -0.0, 3.0, -3.0, 6.0]]).astype("f4")


def evaluate(y, **attributes):
    """Return the activation at f32 numbers, and its derivative.

    With gamma = 0, the activation's argument is beta; diff_residual is the derivative.
    """
    src = np.float32([[0.0], [1.0]]) + np.zeros_like(y)
    zeros, ones = np.zeros_like(y), np.ones_like(y)
    forward = onedsl.BatchNormActForwardTraining(EPSILON, **attributes)
    backward = onedsl.BatchNormActTrainingBackward(EPSILON, **attributes)
    dst = forward(src, zeros, ones, zeros, y).dst
    diff_src = np.ones_like(src)
    gradients = backward(src, diff_src, zeros, ones, zeros, y, np.zeros_like(src))
    return dst[0], gradients.diff_residual[0]


def units_of_last_place(got, expected):
    """Return the errors in units of the last place of f32, those of subnormal numbers included."""
    spacing = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    return np.abs(got - expected) / spacing


@pytest.mark.parametrize("attributes", ACTIVATIONS[2:], ids=str)
def test_error_in_units_of_last_place(attributes):
    y = all_magnitudes()
    value, derivative = evaluate(y, **attributes)
    with np.errstate(over="ignore", invalid="ignore"):
        exact, exact_derivative = reference(y.astype(np.float64), attributes)
    assert np.all(np.isfinite(value))
    units = units_of_last_place(value, exact)
    # Where factors of the result are subnormal, their rounding shows.
    tiny = np.abs(exact) < 1e-35
    assert np.all(np.abs(value - exact)[tiny] <= 1e-40)
    # In its left tail, gelu_tanh is as inexact as the rounded argument of its exponential function.
    allowed = np.full(y.shape, {"gelu": 8}.get(attributes["activation"], 4), np.float64)
    if attributes["activation"] == "gelu_tanh":
        allowed += np.minimum(np.abs(y), 100.0) ** 3
    wrong = ~tiny & (units > allowed)
    assert not wrong.any(), (y[wrong][:5], units[wrong][:5])
    if attributes["activation"] == "silu":  # where it is y * e^y
        assert units[(y > -80) & (y < -20)].max() <= 2
    # Derivatives cross zero, next to which only the absolute error is bounded.
    assert np.all(np.isfinite(derivative))
    assert np.abs(derivative - exact_derivative).max() <= 3e-7
    far = (np.abs(y) > 6) & (np.abs(exact_derivative) > 1e-35)
    relative = units_of_last_place(derivative, exact_derivative)[far]
    assert np.all(relative <= 2 * allowed[far]), (y[far][relative.argmax()], relative.max())


def reference(y, attributes):
    """Return an activation and its derivative in float64."""
    src = np.stack([np.zeros_like(y), np.ones_like(y)])
    zeros, ones = np.zeros_like(y), np.ones_like(y)
    options = {"epsilon": EPSILON, **attributes}
    value = testing.batch_norm_forward_training(src, zeros, ones, zeros, y, **options).dst[0]
    gradients = testing.batch_norm_act_backward(
        src, np.ones_like(src), zeros, ones, zeros, y, **options
    )
    return value, gradients.diff_residual[0]


@activations
def test_special_values(attributes):
    """NaN and infinities as PyTorch's vectorized kernels; subnormal numbers are not flushed."""
    y = np.float32([np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38])
    value, derivative = evaluate(y, **attributes)
    name = attributes["activation"]
    nan = np.nan
    slope = np.float32(attributes.get("negative_slope", 0.01))
    clip = attributes.get("clip")
    expected = {
        "relu": ([nan, clip or np.inf, 0, 1e-40, 0], [1, 0 if clip else 1, 0, 1, 0]),
        "leaky_relu": (
            [nan, np.inf, -slope * np.inf, 1e-40, np.float32(-1e-40) * slope],
            [slope, 1, slope, 1, slope],
        ),
        "hardswish": ([nan, np.inf, nan, 5e-41, -5e-41], [nan, 1, 0, 0.5, 0.5]),
    }.get(name, ([nan, np.inf, nan, 5e-41, -5e-41], [nan, nan, nan, 0.5, 0.5]))
    np.testing.assert_allclose(value[:5], np.float32(expected[0]), rtol=1e-4, atol=3e-45)
    np.testing.assert_allclose(derivative[:5], np.float32(expected[1]), rtol=3e-7)
    assert np.all(np.isfinite(value[5:]))
    assert np.all(np.isfinite(derivative[5:]))


@activations
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_error_is_not_larger_than_pytorchs(dtype, attributes):
    torch = pytest.importorskip("torch", reason="PyTorch is optional, and not installed here")
    functional = torch.nn.functional
    name = attributes["activation"]
    function = {
        "relu": lambda y: functional.hardtanh(y, 0.0, attributes.get("clip", np.inf)),
        "leaky_relu": lambda y: functional.leaky_relu(y, attributes.get("negative_slope", 0.01)),
        "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    }.get(name) or getattr(functional, name)
    x, d, mean, variance, gamma, beta, _ = values_of((8, 16, (24, 24)), dtype, "f32", "NCX")
    of = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    src = torch.tensor(x.astype("f4")).to(of).requires_grad_()
    weight, bias = (torch.tensor(a, requires_grad=True) for a in (gamma, beta))
    dst = function(functional.batch_norm(src, None, None, weight, bias, True, eps=EPSILON))
    dst.backward(torch.tensor(d.astype("f4")).to(of))
    options = {"epsilon": EPSILON, "data_format": "NCX", **attributes}
    exact = testing.batch_norm_forward_training(x, mean, variance, gamma, beta, **options)
    statistics = exact.batch_mean, exact.batch_variance
    gradients = testing.batch_norm_act_backward(x, d, *statistics, gamma, beta, **options)
    forward = onedsl.BatchNormActForwardTraining(EPSILON, data_format="NCX", **attributes)
    own = forward(x, mean, variance, gamma, beta)
    backward = onedsl.BatchNormActTrainingBackward(EPSILON, "NCX", **attributes)
    own_gradients = backward(x, d, own.batch_mean, own.batch_variance, gamma, beta)

    def errors(dst, diff_src):
        pairs = (dst, exact.dst), (diff_src, gradients.diff_src)
        return [testing.relative_l2(np.asarray(a, np.float64), b) for a, b in pairs]

    ours = errors(own.dst, own_gradients.diff_src)
    theirs = errors(dst.detach().float().numpy(), src.grad.float().numpy())
    assert all(a <= 1.05 * b + 1e-8 for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"activation": "mish"}, ValueError, 'activation must be one of "relu", "leaky_relu"'),
        ({"activation": None}, ValueError, "activation must be one of .*, got None"),
        ({"activation": "silu", "clip": 6.0}, ValueError, "clip must be None with .*'silu'.*relu"),
        (
            {"activation": "silu", "negative_slope": 0.1},
            ValueError,
            "negative_slope must be None with activation='silu', got 0.1.*\"leaky_relu\"",
        ),
        (
            {"activation": "leaky_relu", "negative_slope": np.nan},
            ValueError,
            "negative_slope must be finite in float32, or None, got nan",
        ),
        (
            {"activation": "leaky_relu", "negative_slope": 1e39},
            ValueError,
            "negative_slope must be finite",
        ),
        (
            {"activation": "leaky_relu", "negative_slope": "1"},
            TypeError,
            "negative_slope must be a",
        ),
        ({"activation": "relu", "clip": -1.0}, ValueError, "clip must be positive"),
    ],
    ids=str,
)
def test_invalid_attributes(attributes, error, message):
    for cls in (onedsl.BatchNormActForwardTraining, onedsl.BatchNormActTrainingBackward):
        with pytest.raises(error, match=message):
            cls(1e-5, **attributes)
    if attributes["activation"] is not None and attributes.get("negative_slope", 0) != 1e39:
        x, s = np.ones((2, 3)), np.ones(3)
        with pytest.raises(ValueError, match=message.split()[0]):
            testing.batch_norm_act_backward(x, x, s, s, epsilon=1, **attributes)


def test_gamma_and_beta_are_given_both_or_neither():
    x, s = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    op = onedsl.BatchNormActTrainingBackward(1e-5, activation="silu")
    with pytest.raises(TypeError, match="gamma and beta must be given together, beta is missing"):
        op(x, x, s, s, s)


@helpers.formats
@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "gelu"},
        {"activation": "hardswish"},
        {"activation": "leaky_relu", "negative_slope": 0.2},
    ],
    ids=str,
)
def test_onednn(attributes, data_format):
    x, _, mean, variance, gamma, beta, residual = values_of(
        (4, 8, (5, 6)), "f32", "f32", data_format
    )
    op = onedsl.BatchNormActForwardTraining(EPSILON, data_format=data_format, **attributes)
    for added in (None, residual):
        arguments = x, mean, variance, gamma, beta, added
        expected = testing.batch_norm_forward_training(
            *arguments, epsilon=EPSILON, data_format=data_format, **attributes
        )
        testing.assert_close(op(*arguments, backend="onednn"), expected, backend="onednn")


def test_what_onednn_lacks():
    x, s = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    for name in ("silu", "gelu_tanh"):
        op = onedsl.BatchNormActForwardTraining(1e-5, activation=name)
        with pytest.raises(onedsl.UnsupportedError, match=f"no op for {name}"):
            op(x, s, s, backend="onednn")
    gradient = onedsl.BatchNormActTrainingBackward(1e-5, activation="gelu")
    with pytest.raises(onedsl.UnsupportedError, match="gradient of gelu"):
        gradient(x, x, s, s, backend="onednn")
