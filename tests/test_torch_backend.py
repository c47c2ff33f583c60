"""torch.compile(model, backend="onedsl"): what runs onedsl's operators, and the results.

The random graphs of programs/fused_graphs.py have the values and strides, also of what must not be
fused, and the laws those of each operator. Here is which ways to write a model are fused, PyTorch's
other features, and inductor's code for a few networks. All others run without code.
"""

import copy
import functools
import logging
import re
import sys
import threading

import helpers
import pytest
from cases.activations import ACTIVATIONS
from torch_helpers import WITHOUT_BIAS, Plain, dynamo, nn, onedsl_torch, relative_error, torch

from onedsl.operators.attributes import ACTIVATIONS as CORE
from onedsl.torch._fusion_pass import decompose

F = nn.functional
aten = torch.ops.aten
# compiled autograd and PyTorch 2.15 read .grad of tensors that are not leaves.
pytestmark = [dynamo, pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")]

RELU, LEAKY, SILU, HARDSWISH = (
    f"with {name}, forward and backward" for name in ("ReLU", "LeakyReLU", "SiLU", "Hardswish")
)
ADD_RELU, ADD_SILU = (f"with addition and {what[5:]}" for what in (RELU, SILU))


def activation(row, *, with_residual):
    """Return a function of PyTorch that is an activation, and how the log describes it."""
    what = "addition and " * with_residual + CORE[row.name].name
    return (
        lambda y, x: row.pytorch(F, y + x if with_residual else y),
        f"with {what}, forward and backward",
    )


class GivenGradient(torch.autograd.Function):
    """The sine of a value, whose gradient is another value."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.save_for_backward(gradient)
        return x.sin()

    @staticmethod
    def backward(ctx, diff_dst):
        return ctx.saved_tensors[0], None


# What is done with the result, and how the log describes it. Alone: None.
USES = {
    **{str(row): activation(row, with_residual=False) for row in ACTIVATIONS},
    **{f"add {row}": activation(row, with_residual=True) for row in ACTIVATIONS},
    "add, in place": (lambda y, x: y.add_(x).relu_(), ADD_RELU),
    "add before": (lambda y, x: F.relu(x + y), ADD_RELU),
    "added to itself": (lambda y, x: F.relu(y + y), None),
    "scaled addition": (lambda y, x: F.relu(torch.add(y, x, alpha=2)), None),
    "ReLU used twice": (lambda y, x: (z := F.relu(y)).sin() * z, RELU),
    "two ReLUs": (lambda y, x: F.relu(y).sin() * F.relu(y), None),
    "result used by others": (lambda y, x: F.relu(y) + y.exp(), None),
    "leaky ReLU, in place": (lambda y, x: F.leaky_relu_(y, 0.2), LEAKY),
    "leaky ReLU with an infinite slope": (lambda y, x: F.leaky_relu(y + 9, float("inf")), None),
    "SiLU, written out": (lambda y, x: y * torch.sigmoid(y), SILU),
    "SiLU, written out in another order": (lambda y, x: y.sigmoid() * y, SILU),
    "add SiLU, written out": (lambda y, x: (z := y + x) * z.sigmoid(), ADD_SILU),
    "two SiLUs": (lambda y, x: F.silu(y).sin() * F.silu(y), None),
    "SiLU after SiLU": (lambda y, x: F.silu(F.silu(y)), SILU),
    "Hardswish, written out": (lambda y, x: y * F.relu6(y + 3) / 6, HARDSWISH),
    "Hardswish, by a module": (lambda y, x: y * (nn.ReLU6(inplace=True)(y + 3.0) / 6), HARDSWISH),
    "Hardswish, by Hardsigmoid": (lambda y, x: y * F.hardsigmoid(y), HARDSWISH),
    "Mish": (lambda y, x: F.mish(y), None),
    "bound that is no float32": (lambda y, x: F.hardtanh(y, 0.0, 0.7), RELU),
    "infinite bound": (lambda y, x: F.hardtanh(y, 0.0, float("inf")), None),
    "argument that is the gradient": (lambda y, x: GivenGradient.apply(F.silu(y), y), None),
    "result that is its gradient": (
        lambda y, x: GivenGradient.apply(z := F.silu(y), z.clone()),
        SILU,
    ),
    "other lower bound": (lambda y, x: y.clamp_min(-1).clamp_max(1), None),
    "no ReLU": (lambda y, x: y * 2, None),
}


@pytest.fixture
def report(caplog):
    """A function that returns what the log says of the graphs since its last call."""
    torch._dynamo.reset()

    def since_last_call():
        prefix = "batch norms of a compiled graph: "
        lines = [m.removeprefix(prefix) for m in caplog.messages if m.startswith(prefix)]
        caplog.clear()
        return lines

    with (
        caplog.at_level(logging.INFO, logger="onedsl.torch"),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield since_last_call


def check_compiled(model, x, *, dtype=torch.float32, train=True, **options):
    """Compare a compiled model with PyTorch's own in float64; return the compiled one's module.

    Twice the error of PyTorch's own eager model is allowed: in bf16, rounding flips ReLUs near 0.
    """
    model = model.train(train)
    eager = copy.deepcopy(model)
    ours = copy.deepcopy(model)
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(ours, backend="onedsl", **{"fullgraph": True, **options})
    tolerance = 1e-4 if dtype is torch.float32 else 0.05
    outputs = []
    for run, source in ((exact, x.double()), (compiled, x), (eager, x)):
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32 and run is not exact):
            output = run(source)
        weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape)
        (output * weights.to(output.dtype)).sum().backward()
        outputs.append(output)
    expected, actual, plain = outputs
    allowed = tolerance * expected.norm() + 2 * (plain.double() - expected).norm()
    assert (actual.double() - expected).norm() <= allowed
    scale = max(float(p.grad.norm()) for p in exact.parameters() if p.grad is not None)
    for name, parameter in ours.named_parameters():
        gradient = exact.get_parameter(name).grad
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None:
            error = (eager.get_parameter(name).grad.double() - gradient).norm()
            allowed = tolerance * scale + 2 * float(error)
            assert float((parameter.grad.double() - gradient).norm()) <= allowed, name
    for name, buffer in ours.named_buffers():
        assert torch.allclose(buffer.double(), exact.get_buffer(name).double(), atol=tolerance)
    return ours


@pytest.fixture
def x():
    return torch.randn(4, 3, 6, 7, generator=torch.Generator().manual_seed(0))


# What is computed together with a batch norm


class WithActivation(nn.BatchNorm2d):
    """A subclass with a forward method and an activation, like timm's BatchNormAct2d."""

    def forward(self, x):
        running = self.running_mean, self.running_var
        return F.relu(F.batch_norm(x, *running, self.weight, self.bias, self.training))


class Function(nn.Module):
    """A batch norm without any batch-norm class."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        return F.relu(F.batch_norm(x, None, None, self.weight, None, True))


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return F.relu(self.norm(F.relu(self.norm(x))))


class CalledInBothBranches(CalledTwice):
    """Either call can have the result of the other as residual, but not both."""

    def forward(self, x):
        return F.relu(self.norm(x) + self.norm(2 * x))


LAYERS = {
    "no affine": nn.BatchNorm2d(8, affine=False),
    "no statistics": nn.BatchNorm2d(8, track_running_stats=False),
    "no bias": nn.BatchNorm2d(8, **dict(*WITHOUT_BIAS)),  # with PyTorch 2.11: with bias
    "frozen parameters": nn.BatchNorm2d(8).requires_grad_(False),
    "subclass": WithActivation(8),
    "function": Function(),
}
# What is done with the result, the layer, and the begin of the log.
CASES = {
    **{
        name: (use, None, f"1 by onedsl; 1 {what or 'alone'}") for name, (use, what) in USES.items()
    },
    **{name: (USES["relu"][0], layer, f"1 by onedsl; 1 {RELU}") for name, layer in LAYERS.items()},
    "BatchNormAct2d": (
        *(USES["relu"][0], onedsl_torch.BatchNormAct2d(8, activation="relu", clip=0.5)),
        "1 by onedsl; 1 with ReLU |",
    ),
    "called twice": (USES["relu"][0], CalledTwice(), f"2 by onedsl; 2 {RELU}"),
    "residual that depends on the batch norm": (
        *(USES["relu"][0], CalledInBothBranches()),
        "2 by onedsl; 1 with addition and ReLU, forward and backward; 1 alone, before onedsl.batch",
    ),
}
BF16 = {
    "bound": (lambda y, _: F.hardtanh(y, 0.0, 0.75), RELU),
    "bound that is no bfloat16": (lambda y, _: F.hardtanh(y, 0.0, 0.7), "alone"),
    "subnormal bound": (lambda y, _: F.hardtanh(y, 0.0, 2.0**-130), "alone"),
    "sum of a wider type": (lambda y, x: F.relu(y.float() + x.float()), "alone, before aten.add"),
    "wider residual": (lambda y, x: F.relu(y + x.float()), "alone, before aten.add"),
}
CASES |= {f"bf16: {k}": (use, None, f"1 by onedsl; 1 {what}") for k, (use, what) in BF16.items()}


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("name", CASES)
def test_what_is_fused(name, report, x):
    use, layer, expected = CASES[name]
    torch.manual_seed(0)
    dtype = torch.bfloat16 if name.startswith("bf16") else torch.float32
    check_compiled(Plain(use, copy.deepcopy(layer)), x, dtype=dtype)
    (line,) = report()
    assert line.startswith(expected)
    assert line.endswith(" | 0 by inductor")


def test_numbers_that_change_between_calls():
    """Regression: PyTorch's cache returned the graph of the first number."""

    def function(x, slope):
        return F.leaky_relu(F.batch_norm(x, None, None, training=True), slope) * slope

    torch._dynamo.reset()
    run = torch.compile(function, fullgraph=True, dynamic=True, backend="onedsl")
    for slope in 0.3, 0.9, 1.4:
        x = torch.randn(4, 3, 5, requires_grad=True)
        found, expected = run(x, slope), function(x, slope)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
        gradients = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected))
        assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("capture", [True, False])
def test_momentum_none_of_layers_with_relu_is_one_graph(capture, report, x):
    """Regression: with capture_scalar_outputs, the operator rejected a symbolic number."""
    layer = onedsl_torch.BatchNormAct2d(3, momentum=None, activation="relu")
    exact = copy.deepcopy(layer)
    with torch._dynamo.config.patch(capture_scalar_outputs=capture):
        run = torch.compile(layer, backend="onedsl", fullgraph=True)
        for step in range(3):
            assert torch.allclose(run(x + step), exact(x + step), atol=1e-5)
    for ours, theirs in zip(layer.buffers(), exact.buffers(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5)
    layer.num_batches_tracked = None  # then PyTorch's layer does not change the statistics
    before = layer.running_mean.clone()
    run(x)
    assert torch.equal(before, layer.running_mean)


@pytest.mark.usefixtures("without_code")
def test_epsilon_with_flushed_subnormal_numbers(report, x):
    """Regression: the operator rejected an eps that why_unsupported had accepted."""
    assert torch.set_flush_denormal(True)
    try:
        layer = nn.BatchNorm2d(3, eps=1e-41)
        result = torch.compile(layer, backend="onedsl")(x)
        assert torch.allclose(result, layer(x), atol=1e-5)
    finally:
        torch.set_flush_denormal(False)
    assert report()[0].startswith("1 by onedsl")


@pytest.mark.filterwarnings("ignore")
def test_random_graphs_have_the_same_results(capsys):
    """Regression: the search compared some arguments only. `.ci/run` tests more graphs."""
    from programs import fused_graphs

    threads = torch.get_num_threads()
    try:
        wrong = fused_graphs.main(300)
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert not wrong, shown
    assert int(re.match(r"300 graphs: (\d+) fused", shown)[1]) > 120  # or little is tested


def by_backends(function, *arguments):
    """Return copies of the arguments, and the results or the type of an error, by two backends."""
    for backend in "aot_eager_decomp_partition", "onedsl":
        torch._dynamo.reset()
        given = copy.deepcopy(arguments)
        try:
            yield given, torch.compile(function, backend=backend)(*given)
        except (RuntimeError, ValueError) as error:
            yield given, type(error)


UNSUPPORTED_GRADIENTS = {
    "weight of another length": lambda weight, diff: (weight[:1], diff),
    "gradient of another type": lambda weight, diff: (weight, diff.double()),
    "gradient of another shape": lambda weight, diff: (weight, diff[:, :, :1]),
}


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("name", UNSUPPORTED_GRADIENTS)
def test_calls_that_the_operators_do_not_support(name):
    """inductor computes them, or reports the error, as without onedsl."""
    src, diff = torch.randn(2, 4, 3, 5)

    def function(weight, diff):
        y, *saved = torch.native_batch_norm(src, weight, None, None, None, True, 0.1, 1e-5)
        rest = weight, None, None, *saved, True, 1e-5, [True] * 3
        return y, *aten.native_batch_norm_backward(diff, src, *rest)

    arguments = UNSUPPORTED_GRADIENTS[name](torch.rand(3), diff)
    (_, theirs), (_, ours) = by_backends(function, *arguments)
    if isinstance(theirs, tuple):
        for a, b in zip(theirs, ours, strict=True):
            assert a.dtype == b.dtype
            assert torch.allclose(a.double(), b.double(), atol=1e-4)
    else:
        assert theirs == ours


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("shared", ["nothing", "bias", "weight and bias"])
def test_parameters_that_the_graph_overwrites(shared, report):
    """Or that share memory with the running statistics.

    Regression: the gradient computed the mask of the ReLU from the new parameters.
    """

    def function(x, weight, bias, mean, variance):
        y = F.batch_norm(x, mean, variance, weight, bias, True, momentum=1.0).relu()
        if shared == "nothing":
            with torch.no_grad():
                bias.sub_(1.5)
        return y

    x = (torch.randn(4, 3, 5, 5) + 5).requires_grad_()
    weight, bias, mean, variance = (torch.full((3,), 0.5) for _ in range(4))
    mean = bias if "bias" in shared else mean
    variance = weight if "weight" in shared else variance
    found = []
    for given, y in by_backends(function, x, weight, bias, mean, variance):
        y.sin().sum().backward()
        found.append((y, given[0].grad, *given[1:]))
    for theirs, ours in zip(*found, strict=True):
        assert torch.allclose(theirs, ours, atol=1e-5)
    what = "with ReLU" if "weight" in shared else RELU
    assert report() == [f"1 by onedsl; 1 {what} | 0 by inductor"]


def test_other_internal_functions_of_inductor(report, x, monkeypatch, caplog):
    """Then inductor copies tensors. A warning is logged once."""
    from onedsl.torch import _backend

    original = torch._inductor.ir.get_stride_order

    def changed(*arguments):
        assert sys._getframe(1).f_globals["__name__"] != _backend.__name__
        return original(*arguments)

    _backend._log_layouts.cache_clear()
    monkeypatch.setattr(torch._inductor.ir, "get_stride_order", changed)
    check_compiled(Plain(USES["relu"][0]).to(memory_format=torch.channels_last), x)
    monkeypatch.setattr(torch._inductor.lowering, "make_fallback", None)
    _backend._add_layout_rules.cache_clear()
    _backend._add_layout_rules()
    assert len([m for m in caplog.messages if "other internal functions" in m]) == 1


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    "op", ["native_batch_norm_backward", "_native_batch_norm_legit_functional"]
)
def test_ops_that_inductor_does_not_decompose(report, x, op, monkeypatch, caplog):
    """Regression: a KeyError."""
    from onedsl.torch import _backend

    # Where CI is set, inductor raises for each op that PyTorch decomposes and inductor does not.
    monkeypatch.delenv("CI", raising=False)
    _backend._log_missing.cache_clear()
    table = dict(_backend.select_decomp_table())
    del table[getattr(aten, op).default]
    monkeypatch.setattr(_backend, "select_decomp_table", lambda: table)
    for _ in range(2):
        torch._dynamo.reset()
        check_compiled(Plain(USES["relu"][0]), x)
    lines = [m for m in caplog.messages if "has no decompositions of" in m]
    assert len(lines) == 1
    assert op in lines[0]


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("layer", "dtype", "reason"),
    [
        (nn.BatchNorm2d(3).double(), torch.float64, "dtypes other than"),
        (nn.BatchNorm2d(3).bfloat16(), torch.bfloat16, "parameters and statistics other"),
        (nn.BatchNorm2d(3, 1e-5, None, False, False), torch.bfloat16, "16-bit inputs"),
    ],
    ids=["f64", "bf16", "no parameters"],
)
def test_unsupported_batch_norms_are_inductors(layer, dtype, reason, report, x):
    found = torch.compile(copy.deepcopy(layer), backend="onedsl")(x.to(dtype))
    assert torch.allclose(found, copy.deepcopy(layer)(x.to(dtype)), atol=2e-2)
    assert report()[0].startswith(f"0 by onedsl | 1 by inductor; 1 for {reason}")


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("norm", "what"),
    [(None, RELU), (onedsl_torch.BatchNormAct2d(8, activation="relu"), "with ReLU")],
)
def test_evaluation_is_inductors(norm, what, report, x):
    model = Plain(USES["relu"][0], norm)
    run = torch.compile(model, backend="onedsl")
    for train in True, False, True:
        model.train(train)
        eager = copy.deepcopy(model)
        assert torch.allclose(run(x), eager(x), atol=1e-5)
        assert torch.allclose(model.norm.running_var, eager.norm.running_var)
    assert report() == [f"1 by onedsl; 1 {what} | 0 by inductor"]  # none of evaluation


# With inductor's code: what it generates around onedsl's operators, and how tensors are laid out


@pytest.mark.parametrize(
    ("use", "memory_format", "dtype"),
    [
        ("relu", torch.contiguous_format, torch.float32),
        ("add silu", torch.channels_last, torch.bfloat16),
        ("add relu", torch.channels_last, torch.float32),
        ("no ReLU", torch.contiguous_format, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.slow
def test_inductor(use, memory_format, dtype, report, x):
    torch.manual_seed(0)
    model = Plain(USES[use][0]).to(memory_format=memory_format)
    check_compiled(model, x.contiguous(memory_format=memory_format), dtype=dtype)
    assert f"1 {USES[use][1] or 'alone'}" in report()[0]


class LookAtTheGradient(torch.autograd.Function):
    """The identity, whose gradient depends on the strides of the result's gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, diff):
        return diff * diff.as_strided((diff.shape[3],), (1,))


# Functions of a result of batch norm in the order channels_last, and of a contiguous tensor.
STRIDES = {
    "order of the residual": lambda y, x: F.relu(x + y),
    "as_strided": lambda y, x: F.relu(x + y).as_strided((600,), (1,)) * 2,
    "order of the gradient": lambda y, x: F.silu(y + LookAtTheGradient.apply(x)).contiguous(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRIDES)
def test_strides_of_inductors_code(name, report):
    """Regression: those of batch norm's src, so as_strided was wrong."""
    norm, found = nn.BatchNorm2d(8), []

    def function(src, residual):
        return STRIDES[name](norm(src), residual)

    tensors = torch.randn(2, 4, 8, 6, 7)
    for run in torch.compile(function, fullgraph=True, backend="onedsl"), function:
        src = tensors[0].contiguous(memory_format=torch.channels_last).requires_grad_()
        residual = tensors[1].clone().requires_grad_()
        result = run(src, residual)
        result.square().sum().backward()
        found.append((result, src.grad, residual.grad))
    for ours, eager in zip(*found, strict=True):
        assert ours.stride() == eager.stride()
        assert torch.allclose(ours, eager, rtol=1e-4, atol=1e-4)
    assert len(report()) == 1


class Stem(nn.Module):
    """The gradient of max pooling is contiguous, and src is not. Then a depthwise convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.norm2 = nn.Conv2d(16, 16, 3, groups=16), nn.BatchNorm2d(16)
        self.tail = nn.Conv2d(16, 4, 1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.tail(F.relu(self.norm2(self.depthwise(x))))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_no_activation_is_copied(memory_format, report):
    """Regression: the operators copied the gradient of max pooling."""
    x = torch.randn(6, 3, 34, 34).contiguous(memory_format=memory_format)
    model = Stem().to(memory_format=memory_format)
    run = torch.compile(model, backend="onedsl")
    run(x).square().sum().backward()
    assert report() == [f"2 by onedsl; 2 {RELU} | 0 by inductor"]
    with torch.profiler.profile(record_shapes=True, acc_events=True) as profile:
        run(x).square().sum().backward()
    copied = [e.input_shapes[0] for e in profile.events() if e.name == "aten::copy_"]
    assert not [shape for shape in copied if shape[:2] == [6, 16]]


def test_weight_standardization(report, caplog):
    """Regression: a warning with a traceback: inductor's view of an input has no strides."""
    conv = nn.Conv2d(3, 8, 3)

    def function(x):
        weight = F.batch_norm(conv.weight.reshape(1, 8, -1), None, None, training=True)
        return F.conv2d(x, weight.reshape_as(conv.weight), conv.bias)

    x = torch.randn(2, 3, 6, 6)
    expected = torch.autograd.grad(function(x).sin().sum(), conv.weight)
    got = torch.autograd.grad(torch.compile(function, backend="onedsl")(x).sin().sum(), conv.weight)
    assert torch.allclose(*got, *expected, atol=1e-4)
    assert not [r for r in caplog.records if r.levelno > logging.INFO]
    assert report()[0].startswith("1 by onedsl")


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("use", "what"),
    [("relu", "with ReLU"), ("other lower bound", "alone, before aten.clamp_min.default")],
)
def test_no_gradients(use, what, report, x):
    model = Plain(USES[use][0])
    expected = copy.deepcopy(model)
    with torch.no_grad():
        result = torch.compile(model, fullgraph=True, backend="onedsl")(x)
        assert torch.allclose(result, expected(x), atol=1e-5)
    assert torch.allclose(model.norm.running_var, expected.norm.running_var)
    assert report() == [f"1 by onedsl; 1 {what} | 0 by inductor"]


@pytest.mark.usefixtures("without_code")
def test_gradients_of_parameters_alone_are_inductors(x):
    """The operator would compute that of src, too."""
    layer = nn.BatchNorm2d(3)
    expected = copy.deepcopy(layer)
    with helpers.run_records("Backward") as runs:
        torch.compile(layer, fullgraph=True, backend="onedsl")(x).square().sum().backward()
    expected(x).square().sum().backward()
    assert not runs
    for ours, theirs in zip(layer.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_layer", [True, False])
def test_dynamic_shapes(with_layer, report, request):
    """Support is decided for symbolic sizes, in one graph for all of them."""
    if with_layer:
        request.getfixturevalue("without_code")
    layer = onedsl_torch.BatchNormAct2d(3, activation="relu")

    def function(x):
        if with_layer:
            return layer(x, 2 * x)
        return F.relu(F.batch_norm(x, None, None, training=True) + 2 * x)

    run = torch.compile(function, fullgraph=True, dynamic=True, backend="onedsl")
    for shape in (4, 3, 6, 8), (5, 3, 9, 10), (6, 3, 11, 7):
        x = torch.randn(shape, requires_grad=True)
        got = torch.autograd.grad(run(x).square().sum(), x)
        assert torch.allclose(*got, *torch.autograd.grad(function(x).square().sum(), x), atol=1e-4)
    what = "with addition and ReLU" if with_layer else ADD_RELU
    assert report() == [f"1 by onedsl; 1 {what} | 0 by inductor"]


# PyTorch's other features


class NotFused(nn.Module):
    """All operators that are decomposed after the fusion."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.norm(x)
        z = F.silu(y) + F.hardswish(y) + F.leaky_relu(y, 0.2) + F.gelu(y, approximate="tanh")
        return F.hardtanh(z + F.gelu(y)) + F.hardsigmoid(y) + y.sigmoid() + F.relu6(y) + y.relu()


@pytest.mark.parametrize("kind", ["training", "dynamic", "frozen"])
def test_what_is_not_fused_is_decomposed(kind, report, caplog):
    train = kind != "frozen"
    model = NotFused().train(train)
    exact = copy.deepcopy(model).double()
    options = {"dynamic": True} if kind == "dynamic" else {"options": {"freezing": not train}}
    run = torch.compile(model, fullgraph=True, backend="onedsl", **options)
    for shape in (4, 3, 6, 7), (5, 3, 9, 4):
        given = torch.randn(shape, requires_grad=train)
        wide = given.detach().double().requires_grad_()
        with torch.set_grad_enabled(train):
            got, expected = run(given), exact(wide)
        assert relative_error(got, expected) < 1e-5
        if train:
            got.square().sum().backward()
            expected.square().sum().backward()
            assert relative_error(given.grad, wide.grad) < 1e-4
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


def test_a_decomposition_with_other_strides_is_copied_for_src():
    """Results of batch norm have the strides of src. Those of a residual do not matter."""
    graph, silu = torch.fx.Graph(), aten.silu.default
    norm = torch.ops.onedsl.batch_norm_training.default
    x = graph.placeholder("x")
    y = graph.call_function(silu, (x,))
    with torch._subclasses.FakeTensorMode():
        x.meta["val"] = y.meta["val"] = torch.empty(2, 3, 4, 5)
    of_src = graph.call_function(norm, (y, None, None, None, 1e-5, None, None))
    of_residual = graph.call_function(norm, (x, None, None, y, 1e-5, "relu", None))
    graph.output([of_src, of_residual])
    decompose(graph, {silu: lambda t: aten.clone(t, memory_format=torch.channels_last)})
    assert of_src.args[0].meta["val"].stride() == x.meta["val"].stride()
    assert of_residual.args[3].meta["val"].stride() != x.meta["val"].stride()


@pytest.mark.usefixtures("without_code")
def test_other_backends_are_unaffected(report, x):
    model = Plain(USES["relu"][0])
    expected = copy.deepcopy(model)(x)
    for backend in "onedsl", "aot_eager", "onedsl":
        torch._dynamo.reset()
        result = torch.compile(copy.deepcopy(model), backend=backend)(x)
        assert torch.allclose(result, expected, atol=1e-5)
        assert len(report()) == (backend == "onedsl")


class WithId(torch._inductor.custom_graph_pass.CustomGraphPass):
    """A pass of a user that inductor's caches can identify."""

    def __init__(self, calls, uuid="a"):
        self.calls, self.id = calls, uuid

    def __call__(self, graph):
        self.calls.append(graph)

    def uuid(self):
        return self.id


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("by", ["config", "options", "options in a list"])
def test_a_pass_of_the_user_still_runs(by, report, x):
    calls, name = [], "joint_custom_pre_pass"
    passes = [calls.append, WithId(calls)] if by == "options in a list" else calls.append
    given = {name: passes} if by == "config" else {}
    with torch._inductor.config.patch(given):
        check_compiled(Plain(USES["relu"][0]), x, **({} if given else {"options": {name: passes}}))
    assert len(calls) == (2 if isinstance(passes, list) else 1)
    assert len(report()) == 1


def test_passes_of_the_user_are_part_of_the_key_of_inductors_caches():
    from onedsl.torch._backend import _Pass

    a, b, unknown = WithId([]), WithId([], "b"), [].append
    passes = None, a, b, (a, b), [b, a]
    assert len({_Pass({}, others).uuid() for others in passes}) == len(passes)
    assert _Pass({}, []).uuid() == _Pass({}, None).uuid()
    for others in unknown, (a, unknown), WithId([], None):
        assert _Pass({}, others).uuid() is None


def test_modes_and_options_are_inductors(x):
    model = Plain(USES["relu"][0])
    for wrong, message in (
        ({"options": {"nothing": True}}, "nothing"),
        ({"options": {"epilogue_fusion": "yes"}}, "epilogue_fusion"),
        ({"mode": "nothing"}, "nothing, should be one of: default, .*max-autotune"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.compile(model, backend="onedsl", **wrong)(x)
    seen = []

    def look(graph):
        seen.append(torch._inductor.config.coordinate_descent_tuning)

    options = {"joint_custom_pre_pass": look, "coordinate_descent_tuning": True}
    torch.compile(model, backend="onedsl", options=options)(x)
    assert seen == [True]


def gradients(model, output):
    model.zero_grad()
    output.square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def checkpoint(model, wrap, x, *, reentrant=False):
    def function(x):
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)

    return gradients(model, wrap(function)(x.clone().requires_grad_()))


def torch_func(model, wrap, x, *, vmap=False):
    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    function, parameters = torch.func.grad(loss), dict(model.named_parameters())
    if vmap:  # a gradient of each sample
        function, x = torch.func.vmap(function, (None, 0)), torch.stack([x, 2 * x])
    return [*wrap(function)(parameters, x).values()]


def compiled_autograd(model, wrap, x):
    run = wrap(model)
    with torch._dynamo.compiled_autograd._enable(wrap):
        return gradients(model, run(x))


def distributed_data_parallel(model, wrap, x):
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        return gradients(model, wrap(nn.parallel.DistributedDataParallel(model))(x))
    finally:
        torch.distributed.destroy_process_group()


FEATURES = {
    "checkpoint": checkpoint,
    "reentrant checkpoint": functools.partial(checkpoint, reentrant=True),
    "torch.func.grad": torch_func,
    "torch.func.vmap": functools.partial(torch_func, vmap=True),
    "compiled autograd": compiled_autograd,
    "DistributedDataParallel": distributed_data_parallel,
}


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("name", FEATURES)
def test_gradients_are_those_of_eager_pytorch(name, report, x):
    model = Plain(USES["relu"][0], nn.BatchNorm2d(8, track_running_stats=False))
    compiled = functools.partial(torch.compile, backend="onedsl")
    found, expected = (FEATURES[name](model, wrap, x) for wrap in (compiled, lambda f: f))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    assert "1 by onedsl" in report()[0]


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("name", ["silu", "no ReLU"])
def test_activation_memory_budget(name, report, x):
    """With a budget, the backward pass computes batch norm again, but no running statistics.

    All results have the same bits.
    """
    model = Plain(USES[name][0])
    expected = check_compiled(model, x)
    torch._dynamo.reset()  # or the second model runs the first one's graph
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        ours = check_compiled(model, x)
        for a, b in zip(ours.parameters(), expected.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        for a, b in zip(ours.buffers(), expected.buffers(), strict=True):
            assert torch.equal(a, b)
        assert int(ours.norm.num_batches_tracked) == 1
        run = torch.compile(ours, backend="onedsl", fullgraph=True)
        loss = run(x).sum()
        with onedsl_torch.report(ours) as summary:
            loss.backward()
        assert summary.calls()["norm", "forward"].total() == 1
        for module in ours, model:  # a second call before the gradient
            module.zero_grad()
            run = torch.compile(ours, backend="onedsl") if module is ours else model
            first, second = run(x), run(2 * x)
            weights = torch.linspace(-1, 1, first.numel()).reshape(first.shape)
            ((first + 2 * second) * weights).sum().backward()
        for (owner, a), b in zip(ours.named_parameters(), model.parameters(), strict=True):
            if owner != "conv.bias":  # zero, but for rounding
                assert relative_error(a.grad, b.grad) < 1e-4


@pytest.mark.slow
def test_compiled_graphs_are_cached_between_processes(tmp_path):
    """No process may get a graph that another backend has cached."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    printed, logged = [], []
    for backend in ("onedsl", "onedsl", "inductor", "inductor", "onedsl"):
        child = helpers.run_script("torch_cached.py", backend, environment=environment)
        printed.append(child.stdout.split()[-4:])
        logged.append([line for line in child.stderr.splitlines() if "batch norms of" in line])
    assert [hit for hit, *_ in printed] == ["False", "True", "False", "True", "True"]
    assert [ours for _, ours, *_ in printed] == ["True", "True", "False", "False", "True"]
    assert all(values == printed[0][2:] for _, _, *values in printed)
    traced = [f"batch norms of a compiled graph: 1 by onedsl; 1 {RELU} | 0 by inductor"]
    cached = ["batch norms of a compiled graph from PyTorch's cache: 1 by onedsl; 1 with ReLU"]
    assert logged == [traced, cached, [], [], cached]


@pytest.mark.usefixtures("without_code")
def test_a_graph_that_is_not_traced_is_logged_when_it_runs(report, x, monkeypatch, caplog):
    """A stand-in for PyTorch's cache, in one process. Calls of other threads do not count."""
    import onedsl.torch._backend as module

    graphs, compile_fx = [], module.compile_fx

    def compile_once(*args, **kwargs):
        if not graphs:
            graphs.append(compile_fx(*args, **kwargs))

        @functools.wraps(graphs[0])
        def run(*inputs):
            layer = onedsl_torch.BatchNormAct2d(3, activation="relu")
            other = threading.Thread(target=layer, args=(x,))
            other.start()
            other.join()
            return graphs[0](*inputs)

        return run

    monkeypatch.setattr(module, "compile_fx", compile_once)
    model = Plain(USES["add relu"][0])
    torch.compile(model, backend="onedsl")(x)
    assert report() == [f"1 by onedsl; 1 {ADD_RELU} | 0 by inductor"]
    torch._dynamo.reset()
    again = torch.compile(model, backend="onedsl")
    for _ in range(2):
        again(x).sum().backward()
    (line,) = caplog.messages
    prefix = "batch norms of a compiled graph from PyTorch's cache: "
    assert line == f"{prefix}1 by onedsl; 1 with addition and ReLU"
