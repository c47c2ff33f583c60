"""Activations: their errors in units in the last place, special values.

The laws have random values, with the tolerances of operators.
"""

import functools
import itertools
from typing import get_args

import helpers
import numpy as np
import pytest
from cases.activations import ACTIVATIONS
from helpers import EPSILON

import onedsl
from onedsl import testing
from onedsl.operators._graph_of import ACTIVATION_KINDS
from onedsl.operators.attributes import ACTIVATIONS as TABLE
from onedsl.tensors import options

activations = pytest.mark.parametrize("row", ACTIVATIONS, ids=str)
SHAPES = [(9, 8, ()), (3, 37, (5, 7)), (2, 5, (19, 23)), (40, 96, (3,))]


def values_of(shape, dtype, data_format):
    """Return src, diff_dst, mean, variance, gamma, beta and residual."""
    shape = helpers.shape_of(data_format, *shape)
    problem = helpers.even_problem(shape, dtype, data_format=data_format)
    rng = np.random.default_rng(0)
    beta = rng.uniform(-1, 1, problem.gamma.shape).astype(np.float32)
    return (*problem, beta, rng.standard_normal(shape).astype(problem.src.dtype))


@helpers.dtypes
@helpers.formats
@pytest.mark.parametrize("row", [row for row in ACTIVATIONS if row.follows_from_dst], ids=str)
def test_derivative_from_dst_is_that_from_the_argument(row, data_format, dtype):
    """With the same bits."""
    attributes = row.attributes
    forward = onedsl.BatchNormActForwardTraining(EPSILON, None, data_format, **attributes)
    gradient = onedsl.BatchNormActTrainingBackward(EPSILON, data_format, **attributes)
    for shape, with_residual, wanted in itertools.product(SHAPES, (False, True), (False, True)):
        x, d, mean, variance, gamma, beta, added = values_of(shape, dtype, data_format)
        residual = added if with_residual or wanted else None
        result = forward(x, mean, variance, gamma, beta, residual)
        arguments = x, d, result.batch_mean, result.batch_variance, gamma
        recomputed = gradient(*arguments, beta, residual, diff_residual=wanted)
        read = gradient(*arguments, dst=result.dst, diff_residual=wanted)
        for a, b in zip(recomputed, read, strict=True):
            assert (a is None) == (b is None) == (b is read.diff_residual and not wanted)
            assert a is None or a.tobytes() == b.tobytes()
        options = {"epsilon": EPSILON, "data_format": data_format, **attributes}
        expected = testing.batch_norm_act_backward(*arguments, dst=result.dst, **options)
        testing.assert_close(read, expected, factor=2)


def test_dst_of_other_activations():
    x, s = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    others = [row.attributes for row in ACTIVATIONS if not row.follows_from_dst]
    for attributes in (*others, {"activation": "leaky_relu", "negative_slope": 0.0}):
        op = onedsl.BatchNormActTrainingBackward(1, **attributes)
        message = 'dst must be None unless activation is "relu", or "leaky_relu" with a positive'
        with pytest.raises(ValueError, match=message):
            op(x, x, s, s, dst=x)
        with pytest.raises(ValueError, match="dst must be None unless activation is relu"):
            testing.batch_norm_act_backward(x, x, s, s, dst=x, epsilon=1, **attributes)
    with pytest.raises(ValueError, match="dst must be None with a residual"):
        testing.batch_norm_act_backward(x, x, s, s, residual=x, dst=x, epsilon=1, activation="relu")


@functools.cache
def all_magnitudes():
    """Return numbers of all binades and both signs, and more between 2^-12 and 32."""
    bits = np.arange(0, 0x7F800000, 29_989, dtype=np.uint32)
    near = np.linspace(-32, 32, 100_001).astype(np.float32)
    positive = bits.view(np.float32)
    return np.concatenate([positive, -positive, near, [0.0, -0.0, 3.0, -3.0, 6.0]]).astype("f4")


def evaluate(y, attributes, *, exact=False):
    """Return the activation at some numbers, and its derivative, by the kernels or in float64.

    With gamma = 0, the activation's argument is beta; diff_residual is the derivative.
    """
    if exact:
        y = y.astype(np.float64)
        forward, backward = testing.batch_norm_forward_training, testing.batch_norm_act_backward
        forward, backward = (
            functools.partial(of, epsilon=EPSILON, **attributes) for of in (forward, backward)
        )
    else:
        forward = onedsl.BatchNormActForwardTraining(EPSILON, **attributes)
        backward = onedsl.BatchNormActTrainingBackward(EPSILON, **attributes)
    zeros, ones = np.zeros_like(y), np.ones_like(y)
    src, residual = np.stack([zeros, ones]), np.stack([zeros, zeros])
    dst = forward(src, zeros, ones, zeros, y).dst
    gradients = backward(src, np.ones_like(src), zeros, ones, zeros, y, residual)
    return dst[0], gradients.diff_residual[0]


def units_of_last_place(got, expected):
    """Return the errors in units of the last place of f32, those of subnormal numbers included."""
    spacing = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    return np.abs(got - expected) / spacing


@pytest.mark.parametrize("row", [row for row in ACTIVATIONS if row.name != "relu"], ids=str)
def test_error_in_units_of_last_place(row):
    attributes = row.attributes
    y = all_magnitudes()
    value, derivative = evaluate(y, attributes)
    with np.errstate(over="ignore", invalid="ignore"):
        exact, exact_derivative = evaluate(y, attributes, exact=True)
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


# NaN, infinities, the kinks of all activations, and subnormal and large numbers.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, -3.0, 3.0, 1.5, 1e-40, -1e-40, 3e38, -3e38]
SPECIAL = np.float32(SPECIAL)


@activations
def test_special_values(row):
    """Subnormal numbers are not flushed."""
    value, derivative = evaluate(SPECIAL, row.attributes)
    with np.errstate(invalid="ignore"):
        exact, exact_derivative = evaluate(SPECIAL, row.attributes, exact=True)
    np.testing.assert_allclose(value, exact.astype(np.float32), rtol=2e-6, atol=3e-45)
    np.testing.assert_allclose(derivative, exact_derivative, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(derivative[:4], row.special, rtol=1e-6)
    # The sum of two derivatives, without a residual.
    zeros, ones = np.zeros_like(SPECIAL), np.ones_like(SPECIAL)
    op = onedsl.BatchNormActTrainingBackward(EPSILON, **row.attributes)
    tensors = np.stack([zeros, ones]), np.ones((2, SPECIAL.size), np.float32)
    found = op(*tensors, zeros, ones, zeros, SPECIAL).diff_beta
    np.testing.assert_allclose(found, 2 * derivative, rtol=1e-6)


def pytorch_function(row):
    """Return PyTorch's function of an activation, and PyTorch."""
    torch = pytest.importorskip("torch", reason="PyTorch is optional, and not installed here")
    return functools.partial(row.pytorch, torch.nn.functional), torch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@activations
@pytest.mark.parametrize("compiled", [False, True])
def test_special_values_are_those_of_pytorch(compiled, row):
    """At NaN, the derivatives of some of PyTorch's vectorized kernels differ from its others."""
    function, torch = pytorch_function(row)
    if compiled:
        torch._dynamo.reset()  # it compiles eight forms of the one function of all rows
        function = torch.compile(function, backend="aot_eager_decomp_partition")
    values, derivatives = [], []
    for number in SPECIAL.tolist():  # tensors of one element are not vectorized
        y = torch.tensor([number], requires_grad=True)
        dst = function(y)
        dst.backward(torch.ones(1))
        values.append(dst.item())
        derivatives.append(y.grad.item())
    value, derivative = evaluate(SPECIAL, row.attributes)
    is_large = np.abs(SPECIAL) == np.float32(3e38)  # where some of PyTorch's formulas overflow
    for ours, theirs, tolerance in (value, values, 2e-5), (derivative, derivatives, 1e-6):
        expected = np.where(is_large, ours, np.float32(theirs))
        np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=1e-6)


@activations
@helpers.dtypes
def test_error_is_not_larger_than_pytorchs(dtype, row):
    function, torch = pytorch_function(row)
    functional, attributes = torch.nn.functional, row.attributes
    x, d, mean, variance, gamma, beta, _ = values_of((8, 16, (24, 24)), dtype, "NCX")
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


def test_what_onednn_lacks():
    x, s = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    for name in TABLE.keys() - ACTIVATION_KINDS.keys():
        op = onedsl.BatchNormActForwardTraining(1e-5, activation=name)
        with pytest.raises(onedsl.UnsupportedError, match=f"no op for {name}"):
            op(x, s, s, backend="onednn")
    for name in (name for name in TABLE if name != "relu"):
        gradient = onedsl.BatchNormActTrainingBackward(1e-5, activation=name)
        with pytest.raises(onedsl.UnsupportedError, match=f"gradient of {name}"):
            gradient(x, x, s, s, backend="onednn")
        with pytest.raises(onedsl.UnsupportedError, match=f"gradient of {name}"):
            gradient.graph(onedsl.TensorSpec((2, 3)))


def test_every_list_of_activations_is_that_of_the_table():
    assert get_args(options.Activation) == tuple(TABLE)
    for name, info in TABLE.items():  # the parameter's default, and another value
        found = {row.parameter is None for row in ACTIVATIONS if row.name == name}
        assert found == ({True, False} if info.parameter else {True}), name
    root = helpers.TESTS.parent
    names = "activation : {" + ", ".join(f'"{name}"' for name in TABLE) + "}"
    formulas = onedsl.BatchNormActForwardTraining.__doc__
    assert all(f"\n    - {name}(y) = " in formulas for name in TABLE)
    assert names in formulas
    for file in "onedsl/torch/_layers.py", "onedsl/jax/__init__.py":
        assert names in (root / file).read_text(), file
    own = " and ".join(f'"{name}"' for name in TABLE if name not in ACTIVATION_KINDS)
    assert f"oneDNN has none for {own}." in formulas
    layers = [*dict.fromkeys(info.name.split()[0] for info in TABLE.values())]
    layers.insert(1, "ReLU6")
    for file in "onedsl/__init__.py", "onedsl/torch/__init__.py", "examples/README.md":
        text = " ".join((root / file).read_text().split())
        for word in (" or ", " and "):
            text = text.replace(word, ", ")
        assert ", ".join(layers) in text, file
    kinds = {"ReLU", "Clamp", *ACTIVATION_KINDS.values()}
    words = formulas.replace(",", " ").replace(".", " ").split()
    assert kinds <= {*words}
