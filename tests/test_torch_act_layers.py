"""Layers that include an activation, as modules of PyTorch.

The laws have the values and derivatives in training, of all activations, dtypes and layouts. Here
are evaluation and attributes, what is left to PyTorch, checkpoints, parameters that change before
the gradient, transforms, exports, and errors.
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

F = nn.functional

residuals = pytest.mark.parametrize("with_residual", [False, True], ids=["relu", "add_relu"])
kinds = pytest.mark.parametrize(
    ("with_residual", "activation"),
    [(False, None), (True, None), (False, "silu"), (True, "silu")],
    ids=["relu", "add_relu", "silu", "add_silu"],
)

ACTIVATIONS = {str(row): row for row in activations.ACTIVATIONS}
variants = pytest.mark.parametrize(
    ("with_residual", "clip", "activation"),
    [
        *((True, None, None), (True, 1.5, None), (True, None, "silu")),
        *((False, None, name) for name in ACTIVATIONS),
    ],
    ids=["add_relu", "add_relu6", "add_silu", *ACTIVATIONS],
)


def make(clip=None, activation=None, **kwargs):
    """Return a layer with an activation by its name above, or with a ReLU."""
    named = {"activation": "relu", "clip": clip}
    if activation is not None:
        named = ACTIVATIONS[activation].attributes
    layer = onedsl_torch.BatchNormAct2d(SHAPES[2][1], **named, **kwargs)
    generator = torch.Generator().manual_seed(5)
    for t in (*layer.parameters(), *layer.buffers()):
        if t.is_floating_point():
            t.data.uniform_(0.5, 1.5, generator=generator)
    return layer


class Exact(nn.Module):
    """A layer by PyTorch's batch norm, addition and activation in float64."""

    def __init__(self, layer, activation=None):
        super().__init__()
        self.norm = copy.deepcopy(layer).double()
        self.norm.__class__ = nn.BatchNorm2d
        if activation is None:
            clip = layer.clip
            self.bounds = [0.0] if clip is None else [0.0, clip]
            self.function = F.relu if clip is None else lambda y: F.hardtanh(y, 0, clip)
        else:
            row = ACTIVATIONS[activation]
            self.function, self.bounds = lambda y: row.pytorch(F, y), row.jumps

    def before_activation(self, src, *residual):
        return sum(residual, start=self.norm(src))

    def forward(self, *inputs):
        return self.function(self.before_activation(*inputs))


@pytest.fixture
def calls():
    """The backward passes that onedsl computes."""
    with helpers.run_records("Backward") as seen:
        yield seen


def check_layer(layer, src, diff_dst, *residual, activation=None):
    """Compare outputs, gradients and buffers."""
    exact, wide = Exact(layer, activation), [t.double() for t in (src, *residual)]
    # Exclude elements so close to a bound of the activation that rounding may change their
    # gradient.
    limit = LIMITS[src.dtype]
    argument = copy.deepcopy(exact).before_activation(*wide).detach()
    for bound in exact.bounds:
        diff_dst = diff_dst.masked_fill((argument - bound).abs() < 20 * limit, 0)
    ours = step(layer, src, diff_dst, *residual)
    theirs = step(exact, wide[0], diff_dst.double(), *wide[1:])
    assert ours["dst"].dtype == src.dtype
    assert ours["dst"].stride() == src.stride()
    for a, b in zip(ours.values(), theirs.values(), strict=True):
        assert relative_error(a, b) < limit


@variants
def test_evaluation(calls, with_residual, clip, activation):
    layer = make(clip, activation).eval()
    src, diff_dst = inputs(2, "f32", "channels_last")
    residual = [torch.empty_like(src).copy_(diff_dst.flip(0))] if with_residual else []
    check_layer(layer, src, diff_dst, *residual, activation=activation)
    assert not calls


@residuals
@pytest.mark.parametrize(
    "kwargs",
    [
        {"affine": False},
        *WITHOUT_BIAS,
        {"track_running_stats": False},
        {"momentum": None},
        {"eps": 0.1},
    ],
    ids="-".join,
)
def test_attributes(calls, with_residual, kwargs):
    src, diff_dst = inputs(2, "f32")
    residual = [src.flip(0)] if with_residual else []
    check_layer(make(**kwargs), src, diff_dst, *residual)
    assert len(calls) == 1


UNSUPPORTED = {
    "float64": lambda src, r: (src.double(), r.double()),
    "residual of another type": lambda src, r: (src, r.double()),
    "sparse residual": lambda src, r: (src, r.to_sparse()),
}

LAYOUTS = {
    "residual of another layout": lambda src, r: (src, r.to(memory_format=torch.channels_last)),
    "gaps": lambda src, r: (src.repeat_interleave(2, -1)[..., ::2], r),
    "strided weight": lambda src, r: (src, r),
}


@pytest.mark.parametrize("what", [*UNSUPPORTED, *LAYOUTS])
def test_fallback_to_pytorch(calls, what):
    src, residual = {**UNSUPPORTED, **LAYOUTS}[what](*inputs(2, "f32"))
    layer = make().to(src.dtype)
    if what == "strided weight":
        layer.weight.data = layer.weight.data.repeat_interleave(2)[::2]
    exact = Exact(layer)
    given = [src.detach().requires_grad_(), residual.detach().requires_grad_()]
    twins = [t.double().detach().requires_grad_() for t in given]
    got = torch.autograd.grad(layer(*given).sum(), given)
    expected = torch.autograd.grad(exact(*twins).sum(), twins)
    for a, b in zip(got, expected, strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5)
    assert bool(calls) == (what in LAYOUTS)


@residuals
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant, place, momentum, with_residual):
    """Regression: the recomputation ended between the count and the statistics."""
    layer = make(momentum=momentum)
    exact = Exact(layer).float()

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
    grads = [[p.grad for p in norm.parameters()] for norm in (layer, exact)]
    for ours, theirs in zip(*grads, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-3)


@residuals
def test_inputs_modified_in_place_raise(with_residual):
    src, diff_dst = inputs(2, "f32")
    residual = (src.clone(),) if with_residual else ()
    output = make()(src, *residual)
    (output if with_residual else src).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward(diff_dst)


@kinds
def test_saved_tensors(with_residual, activation):
    """The gradient needs dst only for a residual."""
    src, _ = inputs(2, "f32")
    given = (src.requires_grad_(), src.flip(0))[: 1 + with_residual]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        make(activation=activation)(*given)
    assert sum(t.shape == src.shape for t in saved) == 1 + with_residual


# How a program computes batch norm, addition and ReLU: a function, and the layer in it.
ENTRY_POINTS = {
    "layer": lambda layer, *_: (layer, layer),
    "compiled layer": lambda layer, *_: (compiled(layer), layer),
    "compiled modules": lambda layer, *of: (compiled(exact := Exact(*of).float()), exact.norm),
    "enable": lambda layer, *of: ((exact := Exact(*of).float()), exact.norm),
}


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="onedsl")


def gradients_after_a_change(run, norm, name, is_noticed, given, diff_dst, create_graph):
    """Return the gradients if a parameter changes after the forward pass, or the begin of an error.

    The parameter is then as before. Autograd does not notice changes by `.data`.
    """
    parameter = getattr(norm, name)
    before = parameter.detach().clone()
    output = run(*given)
    with torch.no_grad():
        (parameter if is_noticed else parameter.data).copy_(before.flip(0) * -2)
    try:
        needed = [*given, *norm.parameters()]
        return torch.autograd.grad(output, needed, diff_dst, create_graph=create_graph)
    except RuntimeError as error:
        return str(error).partition(" modified by an inplace operation")[1]
    finally:
        parameter.data.copy_(before)


@dynamo
@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("present", "with_residual", "activation"),
    [
        *((("weight", "bias"), *kind) for kind in itertools.product((False, True), (None, "silu"))),
        *(((name,), False, None) for name in ("weight", "bias")),
    ],
)
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_parameters_that_change_before_the_gradient(
    calls, entry, present, with_residual, activation
):
    """Regression: the ReLU's mask followed from the new parameters, and a new bias raised.

    The gradients are those of PyTorch's layers.
    """
    src, diff_dst = inputs(2, "f32")
    given = [t.clone().requires_grad_() for t in (src, src.flip(0))[: 1 + with_residual]]
    layer = make(1.5, activation)
    for name in {"weight", "bias"} - {*present}:
        setattr(layer, name, None)
    of = layer, layer, activation
    theirs, ours = ENTRY_POINTS["enable"](*of), ENTRY_POINTS[entry](*of)
    # PyTorch supports no second derivatives of compiled functions.
    orders = (False,) if "compiled" in entry else (False, True)
    for name, is_noticed, create_graph in itertools.product(present, (True, False), orders):
        rest = name, is_noticed, given, diff_dst, create_graph
        expected = gradients_after_a_change(*theirs, *rest)
        with onedsl_torch.enable() if entry == "enable" else contextlib.nullcontext():
            found = gradients_after_a_change(*ours, *rest)
        assert isinstance(expected, str) == (is_noticed and name == "weight")
        if isinstance(expected, str):
            assert found == expected
            continue
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), rest[:2]
    assert calls


def test_a_single_weight_that_changes_before_the_gradient(calls):
    """Autograd does not notice changes by `.data`: batch norm's gradient has the new weight."""
    src, diff_dst = inputs(2, "f32")
    layer = make(activation="silu")
    exact, given = Exact(layer, "silu"), (src.requires_grad_(), src.detach().double())
    found = []
    for run, norm, x in (layer, layer, given[0]), (exact, exact.norm, given[1].requires_grad_()):
        output = run(x)
        norm.weight.data[-1] *= -2
        needed = (x, norm.weight, norm.bias)
        found.append(torch.autograd.grad(output, needed, diff_dst.to(output.dtype)))
    for ours, expected in zip(*found, strict=True):
        assert relative_error(ours, expected) < LIMITS[torch.float32]
    assert calls


@residuals
@pytest.mark.parametrize("dual", ["src", "weight"])
@dynamo  # make_dual uses torch.jit.script
def test_forward_mode_derivatives(with_residual, dual):
    """They need no grad mode."""
    layer, (src, _) = make(), inputs(2, "f32")
    given = {"src": src, "weight": layer.weight}

    def tangent(function, convert):
        values = {name: convert(t.detach()) for name, t in given.items()}
        with torch.no_grad(), torch.autograd.forward_ad.dual_level():
            values[dual] = torch.autograd.forward_ad.make_dual(
                values[dual], torch.ones_like(values[dual])
            )
            residual = (src.flip(0).to(values["src"]),) if with_residual else ()
            call = torch.func.functional_call
            result = call(function, {"weight": values["weight"]}, (values["src"], *residual))
            return torch.autograd.forward_ad.unpack_dual(result).tangent

    exact = copy.deepcopy(layer).double()
    assert relative_error(tangent(layer, torch.clone), tangent(exact, torch.Tensor.double)) < 1e-4


def test_torch_func():
    layer, (src, _) = make(track_running_stats=False), inputs(2, "f32")
    exact = Exact(layer)
    got = torch.func.grad(lambda x: layer(x).pow(2).sum())(src)
    expected = torch.func.grad(lambda x: exact(x).pow(2).sum())(src.double())
    assert relative_error(got, expected) < 1e-4
    batches = torch.stack([src, 2 * src])
    assert torch.allclose(torch.func.vmap(layer)(batches)[0], layer(src), atol=1e-6)


@dynamo
def test_exported_programs_contain_no_operators_of_onedsl():
    for activation in None, "gelu_tanh":
        program = torch.export.export(make(activation=activation), inputs(2, "f32")[:1])
        assert "onedsl" not in str(program.graph)


@dynamo
@kinds
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # PyTorch's own layers warn
def test_traced_layers_contain_no_operators_of_onedsl(with_residual, activation):
    """Regression: in training they could not be saved."""
    layer, (src, _) = make(activation=activation), inputs(2, "f32")
    given = (src, src.flip(0))[: 1 + with_residual]
    memory = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, given, check_trace=False), memory)
    memory.seek(0)
    loaded = torch.jit.load(memory)
    assert "onedsl::" not in str(loaded.graph)
    assert torch.allclose(loaded(*given), layer(*given), atol=1e-6)
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
@pytest.mark.parametrize("assigned", [False, True], ids=["given", "assigned"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_numpy_and_tensors(kind, assigned):
    """Regression: under torch.compile they were an error; np.float32 was a warning."""
    src, diff_dst = inputs(2, "f32")
    values = {"eps": 0.125, "momentum": 0.25}  # exact in all types
    numbers = {name: NUMBERS[kind](value) for name, value in values.items()}
    expected = step(make(1.5, **values), src, diff_dst)
    for backend in None, "onedsl":
        layer = make(1.5, **({} if assigned else numbers))
        if assigned:
            for name, number in (*numbers.items(), ("clip", NUMBERS[kind](1.5))):
                setattr(layer, name, number)
        torch._dynamo.reset()
        compile_it = {"fullgraph": True, "backend": backend}
        run = layer if backend is None else torch.compile(layer, **compile_it)
        given = src.clone().requires_grad_()
        dst = run(given)
        dst.backward(diff_dst)
        found = dst, given.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()
        for ours, exact in zip(found, expected.values(), strict=True):
            assert torch.allclose(ours, exact, rtol=1e-5, atol=1e-5)
    layer.negative_slope = NUMBERS[kind](0.5)
    assert type(layer.negative_slope) is float


def test_parameters_are_those_of_the_layer_without_activation():
    own = {"bias", "clip", "activation", "negative_slope"}
    layer = functools.partial(onedsl_torch.BatchNormAct2d, activation="relu")
    ours = dict(inspect.signature(onedsl_torch.BatchNormAct2d).parameters)
    theirs = inspect.signature(nn.BatchNorm2d).parameters
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind
    assert ours.keys() - theirs.keys() <= own
    for options in WITHOUT_BIAS:
        assert layer(4, **options).bias is None
    assert layer(4).state_dict().keys() == nn.BatchNorm2d(4).state_dict().keys()


def test_repr_and_errors():
    act = functools.partial(onedsl_torch.BatchNormAct2d, 4)
    layer = act(activation="relu", eps=1e-3, clip=6)
    assert repr(layer).startswith("BatchNormAct2d(4, eps=0.001, momentum=0.1")
    assert repr(layer).endswith(", activation='relu', clip=6.0)")
    assert (layer.activation, layer.clip, layer.negative_slope) == ("relu", 6.0, None)
    assert repr(act(activation="silu")).endswith(", activation='silu')")
    assert repr(act(activation="leaky_relu", negative_slope=1)).endswith("negative_slope=1.0)")
    with pytest.raises(ValueError, match="clip must be positive"):
        act(activation="relu", clip=0)
    with pytest.raises(ValueError, match='activation must be one of "relu", "leaky_relu", '):
        act(activation="nothing")
    with pytest.raises(TypeError, match=r"BatchNormAct\.__init__\(\) missing .* 'activation'"):
        act()
    with pytest.raises(ValueError, match="negative_slope must be finite"):
        act(activation="leaky_relu", negative_slope=float("nan"))
    with pytest.raises(ValueError, match="negative_slope must be None with activation='silu'"):
        act(activation="silu", negative_slope=0.1)
    with pytest.raises(ValueError, match="expected 4D input"):
        layer(torch.ones(2, 4))
    with pytest.raises(TypeError, match="residual must be a Tensor, got int"):
        layer(torch.ones(2, 4, 1, 2), 1)
    for train in False, True:  # regression: PyTorch broadcast it
        expected = re.escape("residual must have the input's shape (2, 4, 1, 2), got (4, 1, 2)")
        with pytest.raises(ValueError, match=expected):
            layer.train(train)(torch.ones(2, 4, 1, 2), torch.ones(4, 1, 2))
    layer.running_var = None
    with pytest.raises((RuntimeError, ValueError), match="both be None"):
        layer(torch.ones(2, 4, 1, 2))


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
def test_attributes_are_validated_when_they_are_assigned(name, value, error, message):
    """Regression: a call raised different errors, or raised in training only."""
    layer = make()
    with pytest.raises(error, match=message):
        setattr(layer, name, value)
    assert repr(layer) == repr(make())


@pytest.mark.parametrize("train", [True, False])
def test_a_parameter_of_another_activation_that_was_assigned(train):
    """Regression: the slope was used as the bound of the ReLU."""
    layer = make(1.5).train(train)
    layer.negative_slope = 0.5
    with pytest.raises(ValueError, match="negative_slope must be None with activation='relu'"):
        layer(inputs(2, "f32")[0])
    layer.activation, layer.clip = "leaky_relu", None
    layer(inputs(2, "f32")[0])


@pytest.mark.parametrize("row", activations.ACTIVATIONS, ids=str)
def test_gradient_of_nan(row):
    """Regression: that of Hardswish was NaN. One infinity makes all results of a channel NaN."""
    src = torch.ones(8, 2)
    src[0, 0] = float("inf")
    layer = onedsl_torch.BatchNormAct1d(2, **row.attributes)
    layer(src).sum().backward()
    at_nan, *_, at_zero = row.special
    expected = 8.0 * torch.tensor([at_nan, at_zero])
    torch.testing.assert_close(layer.bias.grad, expected, equal_nan=True)
