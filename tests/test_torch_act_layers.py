"""Layers that include an activation, as modules of PyTorch.

The laws have the values and derivatives in training. Here are evaluation and attributes, what is
left to PyTorch, checkpoints, parameters that change before the gradient, exports, and errors.
"""

import contextlib
import copy
import functools
import inspect
import io
import itertools
import re

import helpers
import numpy as np
import pytest
from cases import activations
from torch_helpers import (
    LIMITS,
    SHAPES,
    WITHOUT_BIAS,
    dynamo,
    inputs,
    nn,
    onedsl_torch,
    relative_error,
    step,
    torch,
)

ACTIVATIONS = {str(row): row for row in activations.ACTIVATIONS}

residuals = pytest.mark.parametrize("with_residual", [False, True])
kinds = pytest.mark.parametrize("activation", ["relu", "silu"])


def make(activation="relu", **kwargs):
    """Return a layer with an activation by its name above."""
    options = ACTIVATIONS[activation].attributes | kwargs
    layer = onedsl_torch.BatchNormAct2d(SHAPES[2][1], **options)
    generator = torch.Generator().manual_seed(5)
    for t in (*layer.parameters(), *layer.buffers()):
        if t.is_floating_point():
            t.data.uniform_(0.5, 1.5, generator=generator)
    return layer


class Exact(nn.Module):
    """A layer by PyTorch's batch norm, addition and activation."""

    def __init__(self, layer, activation="relu"):
        super().__init__()
        self.norm, self.row = copy.deepcopy(layer), ACTIVATIONS[activation]
        self.norm.__class__ = nn.BatchNorm2d

    def forward(self, src, *residual):
        return self.row.pytorch(nn.functional, sum(residual, start=self.norm(src)))


def given(with_residual, memory="contiguous"):
    """Return the inputs of a layer, and a gradient of its result."""
    src, diff_dst = inputs(2, "f32", memory)
    return (src, src.flip(0))[: 1 + with_residual], diff_dst


@pytest.fixture
def calls():
    """The backward passes that onedsl computes."""
    with helpers.run_records("Backward") as seen:
        yield seen


def check_layer(layer, activation, with_residual, memory="contiguous"):
    """Compare outputs, gradients and buffers."""
    (src, *residual), diff_dst = given(with_residual, memory)
    exact = Exact(layer, activation).double()
    ours = step(layer, src, diff_dst, *residual)
    theirs = step(exact, src.double(), diff_dst.double(), *(t.double() for t in residual))
    assert ours["dst"].stride() == src.stride()
    for a, b in zip(ours.values(), theirs.values(), strict=True):
        assert relative_error(a, b) < LIMITS[torch.float32]


@residuals
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_evaluation(calls, with_residual, activation):
    check_layer(make(activation).eval(), activation, with_residual, "channels_last")
    assert not calls


@residuals
@pytest.mark.parametrize(
    "kwargs",
    [
        *({"affine": False}, *WITHOUT_BIAS, {"track_running_stats": False}, {"momentum": None}),
        {"eps": 0.1},
    ],
    ids="-".join,
)
def test_attributes(calls, with_residual, kwargs):
    check_layer(make(**kwargs), "relu", with_residual)
    assert len(calls) == 1


# The inputs, and whether onedsl computes the gradient.
INPUTS = {
    "float64": (lambda src, r: (src.double(), r.double()), False),
    "residual of another type": (lambda src, r: (src, r.double()), False),
    "sparse residual": (lambda src, r: (src, r.to_sparse()), False),
    "residual of another layout": (
        lambda src, r: (src, r.to(memory_format=torch.channels_last)),
        True,
    ),
    "strided weight": (lambda src, r: (src, r), True),
}


@pytest.mark.parametrize("what", INPUTS)
def test_fallback_to_pytorch(calls, what):
    change, is_onedsl = INPUTS[what]
    src, residual = change(*inputs(2, "f32"))
    layer = make().to(src.dtype)
    if what == "strided weight":
        layer.weight.data = layer.weight.data.repeat_interleave(2)[::2]
    ours = [t.detach().requires_grad_() for t in (src, residual)]
    twins = [t.double().detach().requires_grad_() for t in ours]
    got = torch.autograd.grad(layer(*ours).sum(), ours)
    expected = torch.autograd.grad(Exact(layer).double()(*twins).sum(), twins)
    for a, b in zip(got, expected, strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5)
    assert bool(calls) == is_onedsl


@residuals
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant, place, momentum, with_residual):
    """Regression: the recomputation ended between the count and the statistics."""
    layer = make(momentum=momentum)
    exact = Exact(layer)

    def run(norm, x):
        x = x if place == "first" else x * x
        x = norm(x, x) if with_residual else norm(x)
        return x if place == "last" else x * x

    for offset in range(4):
        src = (inputs(2, "f32")[0] + offset).requires_grad_()
        for norm in layer, exact:
            dst = torch.utils.checkpoint.checkpoint(run, norm, src, use_reentrant=reentrant)
            dst.sum().backward()
    for ours, theirs in zip(layer.buffers(), exact.buffers(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5)
    for ours, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-3)


@residuals
@kinds
def test_saved_tensors(with_residual, activation):
    """The gradient needs dst only for a residual."""
    (src, *residual), _ = given(with_residual)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        make(activation)(src.requires_grad_(), *residual)
    assert sum(t.shape == src.shape for t in saved) == 1 + with_residual


# How a program computes batch norm, addition and ReLU: a function, and the layer in it.
ENTRY_POINTS = {
    "layer": lambda layer, *_: (layer, layer),
    "compiled layer": lambda layer, *_: (compiled(layer), layer),
    "compiled modules": lambda layer, *of: (compiled(exact := Exact(*of)), exact.norm),
    "enable": lambda layer, *of: (exact := Exact(*of), exact.norm),
}


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="onedsl")


def gradients_after_a_change(run, norm, name, tensors, diff_dst, create_graph):
    """Return the gradients if a parameter changes after the forward pass, and is then as before.

    Autograd does not notice a change by `.data`. It notices that of the bias, which no gradient
    needs.
    """
    parameter = getattr(norm, name)
    output = run(*tensors)
    with torch.no_grad():
        (parameter if name == "bias" else parameter.data)[-1] *= -2
    needed = [*tensors, *norm.parameters()]
    gradients = torch.autograd.grad(output, needed, diff_dst, create_graph=create_graph)
    parameter.data[-1] /= -2
    return gradients


@dynamo
@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("absent", "with_residual", "activation"),
    [
        *(("", *kind) for kind in itertools.product((False, True), ("relu(1.5)", "silu"))),
        *((name, False, "relu(1.5)") for name in ("weight", "bias")),
    ],
)
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_parameters_that_change_before_the_gradient(
    calls, entry, absent, with_residual, activation
):
    """Regression: the ReLU's mask followed from the new parameters, and a new bias raised.

    The gradients are those of PyTorch's layers. The law of changes has a new weight.
    """
    tensors, diff_dst = given(with_residual)
    tensors = [t.clone().requires_grad_() for t in tensors]
    layer = make(activation)
    if absent:
        setattr(layer, absent, None)
    of = layer, layer, activation
    theirs, ours = ENTRY_POINTS["enable"](*of), ENTRY_POINTS[entry](*of)
    # PyTorch supports no second derivatives of compiled functions.
    orders = (False,) if "compiled" in entry else (False, True)
    names = {"weight", "bias"} - {absent}
    for name, create_graph in itertools.product(names, orders):
        rest = name, tensors, diff_dst, create_graph
        expected = gradients_after_a_change(*theirs, *rest)
        with onedsl_torch.enable() if entry == "enable" else contextlib.nullcontext():
            found = gradients_after_a_change(*ours, *rest)
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), (name, create_graph)
    assert calls


@residuals
@pytest.mark.parametrize("dual", ["src", "weight"])
@dynamo  # make_dual uses torch.jit.script
def test_forward_mode_derivatives(with_residual, dual):
    """They need no grad mode."""
    layer, (src, _) = make(), inputs(2, "f32")

    def tangent(layer, dtype):
        values = {"src": src.to(dtype), "weight": layer.weight.detach()}
        with torch.no_grad(), torch.autograd.forward_ad.dual_level():
            direction = torch.ones_like(values[dual])
            values[dual] = torch.autograd.forward_ad.make_dual(values[dual], direction)
            given = values["src"], *[src.flip(0).to(dtype)] * with_residual
            result = torch.func.functional_call(layer, {"weight": values["weight"]}, given)
            return torch.autograd.forward_ad.unpack_dual(result).tangent

    wide = tangent(copy.deepcopy(layer).double(), torch.float64)
    assert relative_error(tangent(layer, torch.float32), wide) < 1e-4


def test_torch_func():
    layer, (src, _) = make(track_running_stats=False), inputs(2, "f32")
    exact = Exact(layer).double()
    got = torch.func.grad(lambda x: layer(x).pow(2).sum())(src)
    expected = torch.func.grad(lambda x: exact(x).pow(2).sum())(src.double())
    assert relative_error(got, expected) < 1e-4
    batches = torch.stack([src, 2 * src])
    assert torch.allclose(torch.func.vmap(layer)(batches)[0], layer(src), atol=1e-6)


@dynamo
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_exported_programs_contain_no_operators_of_onedsl(activation):
    program = torch.export.export(make(activation), inputs(2, "f32")[:1])
    assert "onedsl" not in str(program.graph)


@dynamo
@residuals
@kinds
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # PyTorch's own layers warn
def test_traced_layers_contain_no_operators_of_onedsl(with_residual, activation):
    """Regression: in training they could not be saved."""
    layer, (tensors, _) = make(activation), given(with_residual)
    memory = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, tensors, check_trace=False), memory)
    memory.seek(0)
    loaded = torch.jit.load(memory)
    assert "onedsl::" not in str(loaded.graph)
    assert torch.allclose(loaded(*tensors), layer(*tensors), atol=1e-6)
    for ours, theirs in zip(loaded.buffers(), layer.buffers(), strict=True):
        assert torch.allclose(ours, theirs)


@dynamo
def test_scripted_layers_are_not_supported():
    """As the docstring says."""
    with pytest.raises((ValueError, RuntimeError), match="Unknown type annotation"):
        torch.jit.script(make())


NUMBERS = {
    "np.float64": np.float64,
    "np.float32": np.float32,
    "0-d array": np.array,
    "0-d tensor": torch.tensor,
    "float64 tensor": lambda number: torch.tensor(number, dtype=torch.float64),
}


@dynamo
@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_numpy_and_tensors(kind):
    """Regression: under torch.compile they were an error; np.float32 was a warning."""
    src, diff_dst = inputs(2, "f32")
    number = NUMBERS[kind]  # of numbers that are exact in all types
    expected = step(make("relu(1.5)", eps=0.125, momentum=0.25), src, diff_dst)
    for backend in None, "onedsl":
        layer = make(eps=number(0.125), momentum=number(0.25))
        layer.clip = number(1.5)
        torch._dynamo.reset()
        run = torch.compile(layer, fullgraph=True, backend=backend) if backend else layer
        dst = run(x := src.clone().requires_grad_())
        dst.backward(diff_dst)
        found = dst, x.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()
        for ours, exact in zip(found, expected.values(), strict=True):
            assert torch.allclose(ours, exact, rtol=1e-5, atol=1e-5)
    layer.negative_slope = number(0.5)
    assert type(layer.negative_slope) is float


def test_parameters_are_those_of_the_layer_without_activation():
    ours = dict(inspect.signature(onedsl_torch.BatchNormAct2d).parameters)
    theirs = inspect.signature(nn.BatchNorm2d).parameters
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind)
    assert ours.keys() - theirs.keys() <= {"bias", "clip", "activation", "negative_slope"}
    for options in WITHOUT_BIAS:
        assert make(**options).bias is None
    assert make().state_dict().keys() == nn.BatchNorm2d(4).state_dict().keys()


def test_repr():
    act = functools.partial(onedsl_torch.BatchNormAct2d, 4)
    layer = act(activation="relu", eps=1e-3, clip=6)
    assert repr(layer).startswith("BatchNormAct2d(4, eps=0.001, momentum=0.1")
    assert repr(layer).endswith(", activation='relu', clip=6.0)")
    assert (layer.activation, layer.clip, layer.negative_slope) == ("relu", 6.0, None)
    assert repr(act(activation="silu")).endswith(", activation='silu')")
    assert repr(act(activation="leaky_relu", negative_slope=1)).endswith("negative_slope=1.0)")


def test_errors_of_calls():
    layer = onedsl_torch.BatchNormAct2d(4, activation="relu")
    src, other = torch.ones(2, 4, 1, 2), torch.ones(4, 1, 2)
    with pytest.raises(TypeError, match=r"BatchNormAct\.__init__\(\) missing .* 'activation'"):
        onedsl_torch.BatchNormAct2d(4)
    with pytest.raises(ValueError, match="negative_slope must be None with activation='silu'"):
        onedsl_torch.BatchNormAct2d(4, activation="silu", negative_slope=0.1)
    with pytest.raises(ValueError, match="expected 4D input"):
        layer(other)
    with pytest.raises(TypeError, match="residual must be a Tensor, got int"):
        layer(src, 1)
    for train in False, True:  # regression: PyTorch broadcast it
        expected = re.escape("residual must have the input's shape (2, 4, 1, 2), got (4, 1, 2)")
        with pytest.raises(ValueError, match=expected):
            layer.train(train)(src, other)
    layer.running_var = None
    with pytest.raises((RuntimeError, ValueError), match="both be None"):
        layer(src)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("activation", "nothing", ValueError, 'activation must be one of "relu", "leaky_relu", '),
        ("clip", "x", TypeError, "clip must be a number, got 'x'"),
        ("clip", -3.0, ValueError, "clip must be positive and finite in float32, or None, got -3"),
        ("clip", torch.tensor(float("inf")), ValueError, "clip must be positive and finite"),
        ("negative_slope", float("nan"), ValueError, "negative_slope must be finite"),
    ],
)
def test_attributes_are_validated(name, value, error, message):
    """Regression: a call raised different errors, or raised in training only."""
    layer = make()
    with pytest.raises(error, match=message):
        setattr(layer, name, value)
    assert repr(layer) == repr(make())
    with pytest.raises(error, match=message):
        onedsl_torch.BatchNormAct2d(4, **{"activation": "relu", name: value})


@pytest.mark.parametrize("train", [True, False])
def test_a_parameter_of_another_activation_that_was_assigned(train):
    """Regression: the slope was used as the bound of the ReLU."""
    layer = make("relu(1.5)").train(train)
    layer.negative_slope = 0.5
    with pytest.raises(ValueError, match="negative_slope must be None with activation='relu'"):
        layer(inputs(2, "f32")[0])
    layer.activation, layer.clip = "leaky_relu", None
    layer(inputs(2, "f32")[0])
