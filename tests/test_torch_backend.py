"""torch.compile(model, backend="onedsl"): what runs onedsl's operators, and the results.

The laws have the values of each operator and activation, and programs/fused_graphs.py those of
random graphs. Here is which of the ways to write a model are fused and which must not be, the
strides of results, PyTorch's other features, and inductor's code for a dozen networks. All others
run without code (`without_code`).
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

F = nn.functional
aten = torch.ops.aten
# compiled autograd and PyTorch 2.15 read .grad of tensors that are not leaves.
pytestmark = [dynamo, pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")]

RELU, LEAKY, SILU, HARDSWISH, GELU_TANH = (
    f"with {name}, forward and backward"
    for name in ("ReLU", "LeakyReLU", "SiLU", "Hardswish", "GELU (tanh)")
)
ADD_RELU, ADD_LEAKY, ADD_SILU = (
    f"with addition and {name}, forward and backward" for name in ("ReLU", "LeakyReLU", "SiLU")
)


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
    "relu_": (lambda y, x: y.relu_(), RELU),
    "relu6": (lambda y, x: F.relu6(y), RELU),
    "add, in place": (lambda y, x: y.add_(x).relu_(), ADD_RELU),
    "add before": (lambda y, x: F.relu(x + y), ADD_RELU),
    "add relu6": (lambda y, x: F.relu6(y + x), ADD_RELU),
    "ReLU used twice": (lambda y, x: (z := F.relu(y)).sin() * z, RELU),
    "two ReLUs": (lambda y, x: F.relu(y).sin() * F.relu(y), None),
    "result used by others": (lambda y, x: F.relu(y) + y.exp(), None),
    "result returned": (lambda y, x: (F.relu(y), y)[0] * 2 + (y * 0).sum(), None),
    "sum used by others": (lambda y, x: F.relu(y + x) * (y + x).sin(), None),
    "added to itself": (lambda y, x: F.relu(y + y), None),
    "scaled addition": (lambda y, x: F.relu(torch.add(y, x, alpha=2)), None),
    "broadcast addition": (lambda y, x: F.relu(y + x.mean(1, keepdim=True)), None),
    "leaky ReLU, in place": (lambda y, x: F.leaky_relu_(y, 0.2), LEAKY),
    "leaky ReLU, module": (lambda y, x: nn.LeakyReLU(0.1)(y), LEAKY),
    "leaky ReLU with an infinite slope": (lambda y, x: F.leaky_relu(y + 9, float("inf")), None),
    "add leaky ReLU, in place": (lambda y, x: F.leaky_relu_(y.add_(x), 0.3), ADD_LEAKY),
    "SiLU, in place": (lambda y, x: nn.SiLU(inplace=True)(y), SILU),
    "SiLU, written out": (lambda y, x: y * torch.sigmoid(y), SILU),
    "SiLU, written out in another order": (lambda y, x: y.sigmoid() * y, SILU),
    "SiLU, written out in place": (lambda y, x: y.mul_(y.sigmoid()), SILU),
    "add SiLU, in place": (lambda y, x: F.silu(x.add(y), inplace=True), ADD_SILU),
    "add SiLU, written out": (lambda y, x: (z := y + x) * z.sigmoid(), ADD_SILU),
    "SiLU used twice": (lambda y, x: (z := F.silu(y)).sin() * z, SILU),
    "two SiLUs": (lambda y, x: F.silu(y).sin() * F.silu(y), None),
    "argument of SiLU used by others": (lambda y, x: F.silu(y) + y.exp(), None),
    "sigmoid used by others": (lambda y, x: y * (z := y.sigmoid()) + z.exp(), None),
    "sigmoid of another value": (lambda y, x: y * x.sigmoid(), None),
    "view before SiLU": (lambda y, x: F.silu(y.flatten(2)), None),
    "SiLU after SiLU": (lambda y, x: F.silu(F.silu(y)), SILU),
    "Hardswish, in place": (lambda y, x: F.hardswish(y, inplace=True), HARDSWISH),
    "Hardswish, written out": (lambda y, x: y * F.relu6(y + 3) / 6, HARDSWISH),
    "Hardswish, by a module": (lambda y, x: y * (nn.ReLU6(inplace=True)(y + 3.0) / 6), HARDSWISH),
    "Hardswish, written out in place": (lambda y, x: y.mul_(F.relu6(y + 3).div_(6)), HARDSWISH),
    "Hardswish, by Hardsigmoid": (lambda y, x: y * F.hardsigmoid(y), HARDSWISH),
    "no Hardswish": (lambda y, x: y * F.relu6(y + 2) / 6, None),
    "GELU by tanh, module": (lambda y, x: nn.GELU(approximate="tanh")(y), GELU_TANH),
    "Mish": (lambda y, x: F.mish(y), None),
    "ELU": (lambda y, x: F.elu(y), None),
    "other bounds": (lambda y, x: F.hardtanh(y), None),
    "bound that is no float32": (lambda y, x: F.hardtanh(y, 0.0, 0.7), RELU),
    "infinite bound": (lambda y, x: F.hardtanh(y, 0.0, float("inf")), None),
    "other lower bound": (lambda y, x: y.clamp_min(-1).clamp_max(1), None),
    "bounds 0 and 0": (lambda y, x: y.clamp(0, 0) + x, None),
    "threshold": (lambda y, x: F.threshold(y, 0.5, 0.0), None),
    "argument that is the gradient": (lambda y, x: GivenGradient.apply(F.silu(y), y), None),
    "narrowed before": (lambda y, x: F.relu(y.bfloat16()).float(), None),
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


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("name", CASES)
def test_what_is_fused(name, report, x):
    use, layer, expected = CASES[name]
    torch.manual_seed(0)
    check_compiled(Plain(use, copy.deepcopy(layer)), x)
    (line,) = report()
    assert line.startswith(expected)
    assert line.endswith(" | 0 by inductor")


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda y, _: F.hardtanh(y, 0.0, 0.75), RELU),
        (lambda y, _: F.hardtanh(y, 0.0, 0.7), "alone"),  # a bound that is no bfloat16
        (lambda y, _: F.hardtanh(y, 0.0, 2.0**-130), "alone"),  # subnormal
        (lambda y, x: F.relu(y.float() + x.float()), "alone, before aten.add.Tensor"),
        (lambda y, x: F.relu(y + x.float()), "alone, before aten.add.Tensor"),
    ],
    ids=["bound", "wider bound", "subnormal bound", "sum of a wider type", "wider residual"],
)
def test_bfloat16(use, what, report, x):
    check_compiled(Plain(use), x, dtype=torch.bfloat16)
    (line,) = report()
    assert line.startswith(f"1 by onedsl; 1 {what}")


class LookAtTheGradient(torch.autograd.Function):
    """The identity, whose gradient depends on the strides of the result's gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, diff):
        return diff * diff.as_strided((diff.shape[3],), (1,))


def first(y):
    return y.as_strided((y.numel() // 2,), (1,))


# Functions of a result of batch norm in the order channels_last, and of a contiguous tensor.
STRIDES = {
    "order of the residual": (lambda y, x: F.relu(x + y), "alone, before aten.add.Tensor"),
    "order of the result": (lambda y, x: F.relu(y + x), ADD_RELU),
    "flattened": (lambda y, x: ((z := F.relu(x + y)), z.flatten(1)), "alone"),
    "two views": (lambda y, x: ((z := F.silu(x + y)).view(4, -1), z.view(4, 8, -1)), "alone"),
    "as_strided": (lambda y, x: first(F.relu(x + y)) * 2, "alone"),
    "as_strided, one order": (lambda y, x: first(F.relu(y)) * 2, RELU),
    "contiguous before": (lambda y, x: first(F.relu(y.contiguous())) * 2, "alone"),
    "contiguous after": (lambda y, x: first(F.relu(y).contiguous()) * 2, RELU),
    "order of the gradient": (
        lambda y, x: F.silu(y + LookAtTheGradient.apply(x)).contiguous(),
        ADD_SILU,
    ),
}


@pytest.mark.parametrize("name", STRIDES)
@pytest.mark.usefixtures("without_code")
def test_strides_are_those_of_eager_pytorch(name, report):
    """Regression: those of batch norm's src, so views raised and as_strided was wrong."""
    check_strides(name)
    assert report()[0].startswith(f"1 by onedsl; 1 {STRIDES[name][1]}")


def check_strides(name):
    """Compare the results, and their strides, with those of eager PyTorch."""
    use, _ = STRIDES[name]
    norm = nn.BatchNorm2d(8).to(memory_format=torch.channels_last)
    found = []
    for backend in None, "onedsl":
        src, residual = torch.randn(2, 4, 8, 6, 7, generator=torch.Generator().manual_seed(0))
        src = src.contiguous(memory_format=torch.channels_last).requires_grad_()
        residual.requires_grad_()

        def function(src, residual):
            return use(norm(src), residual)

        run = torch.compile(function, fullgraph=True, backend=backend) if backend else function
        result = run(src, residual)
        results = result if isinstance(result, tuple) else (result,)
        sum(y.square().sum() for y in results).backward()
        given = [t for t in (src, residual) if t.grad is not None]
        found.append([*results, *(t.grad for t in given)])
    for ours, eager in zip(*reversed(found), strict=True):
        assert ours.stride() == eager.stride()
        assert torch.allclose(ours, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "use", [lambda y, s: F.threshold(y + 1, s, s), lambda y, s: F.leaky_relu(y, s) * s]
)
def test_numbers_that_change_between_calls(use):
    """Regression: PyTorch's cache returned the graph of the first number.

    inductor's result of F.threshold is wrong for this reason, but its gradient is not.
    """
    found = []
    for backend in "inductor", "onedsl":
        torch._dynamo.reset()

        def function(x, number):
            return use(F.batch_norm(x, None, None, training=True), number)

        run = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
        for number in 0.3, 0.9, 1.4:
            x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
            y = run(x, number)
            found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    for theirs, ours in zip(found[:3], found[3:], strict=True):
        for a, b in zip(theirs, ours, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("without_code")
def test_momentum_none_breaks_the_graph(report, x):
    """PyTorch's layer computes a number from a tensor, so it runs in eager mode."""
    norm = nn.BatchNorm2d(8, momentum=None)
    check_compiled(Plain(USES["relu"][0], norm), x, fullgraph=False)
    assert report() == []


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


def one_step(src, weight, bias, diff_dst, change):
    """Compute a batch norm, a ReLU6 and their gradients by PyTorch's ops.

    `change` has functions of the values by name, which return another value of that name.
    """
    y, mean, inverse_stddev = torch.native_batch_norm(
        src, weight, bias, None, None, True, 0.1, 1e-5
    )
    z = F.relu6(y.clone())
    v = {"src": src, "weight": weight, "mean": mean, "bound": 6.0}
    v |= {"y": y, "z": z, "diff_dst": diff_dst}
    v |= {name: new(v) for name, new in change.items() if name in v}
    masked = change.get("gradient", gradient_of_relu6)(v)
    saved = v["weight"], None, None, v["mean"], inverse_stddev
    return z, *aten.native_batch_norm_backward(masked, v["src"], *saved, True, 1e-5, [True] * 3)


def gradient_of_relu6(v):
    return aten.hardtanh_backward(v["diff_dst"], v["z"], 0.0, v["bound"])


# fused_graphs.py changes the others.
CHANGES = {
    "nothing": {},
    "copies": {name: lambda v, n=name: v[n].clone() for name in ("src", "weight", "mean", "z")},
    "mask of the argument": {"z": lambda v: v["y"]},
    "written out": {
        "gradient": lambda v: torch.where((v["z"] <= 0) | (v["z"] >= 6), 0.0, v["diff_dst"])
    },
    "gradient of a ReLU": {"gradient": lambda v: aten.threshold_backward(v["diff_dst"], v["z"], 0)},
    "gradient of another activation": {
        "gradient": lambda v: aten.silu_backward(v["diff_dst"], v["z"])
    },
    "lower bound": {
        "gradient": lambda v: aten.hardtanh_backward(v["diff_dst"], v["z"], -1, v["bound"])
    },
    "bound": {"bound": lambda v: 5.0},
    "mask of another value": {"z": lambda v: v["z"] + 0.1},
    "weight": {"weight": lambda v: v["weight"].abs()},
    "twice the weight": {"weight": lambda v: v["weight"] * 2},
    "no weight": {"weight": lambda v: None},
}


SAME = ("nothing", "copies", "mask of the argument")


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_of_other_values_are_not_fused(change, report):
    """Regression: wrong gradients with another weight, and errors from inductor."""
    src, diff_dst = torch.randn(2, 4, 3, 7, 7)
    weight, bias = torch.tensor([5.0, -5.0, 5.0]), torch.rand(3)
    arguments = src, weight, bias, diff_dst, CHANGES[change]
    run = torch.compile(one_step, fullgraph=True, backend="onedsl")
    for ours, exact in zip(run(*arguments), one_step(*arguments), strict=True):
        assert torch.allclose(ours, exact, rtol=1e-4, atol=1e-3)
    assert ("1 with ReLU, forward and backward" in report()[0]) == (change in SAME)
    with torch.profiler.profile(acc_events=True) as profile:
        run(*arguments)
    computed = {"aten::where", "aten::sigmoid"} & {event.name for event in profile.events()}
    assert bool(computed) == (change not in SAME)


class HalfSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y.square().sum() / 2

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0]


@pytest.mark.usefixtures("without_code")
def test_result_as_its_own_gradient(report, x):
    """Regression: the gradient began with the activation of the result."""

    def function(x):
        return HalfSquare.apply(F.silu(F.batch_norm(x, None, None, training=True)))

    found = []
    for run in torch.compile(function, backend="onedsl"), function:
        src = x.detach().clone().requires_grad_()
        found.append((run(src), *torch.autograd.grad(run(src), src)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert "1 with SiLU, forward and backward" in report()[0]


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


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    "change",
    ["weight of another length", "gradient of another type", "gradient of another shape"],
)
def test_calls_that_the_operators_do_not_support(change):
    """inductor computes them, or reports the error, as without onedsl."""
    src, diff_dst = torch.randn(2, 4, 3, 5)
    weight = torch.rand(1 if change == "weight of another length" else 3)
    diff_dst = diff_dst.double() if change == "gradient of another type" else diff_dst
    diff_dst = diff_dst[:, :, :1] if change == "gradient of another shape" else diff_dst

    def function(src, weight, diff_dst):
        y, mean, inverse_stddev = torch.native_batch_norm(
            src, weight, None, None, None, True, 0.1, 1e-5
        )
        saved = weight, None, None, mean, inverse_stddev
        return y, *aten.native_batch_norm_backward(diff_dst, src, *saved, True, 1e-5, [True] * 3)

    found = []
    for backend in "aot_eager_decomp_partition", "onedsl":
        torch._dynamo.reset()
        try:
            found.append(torch.compile(function, backend=backend)(src, weight, diff_dst))
        except (RuntimeError, ValueError) as error:
            found.append(type(error))
    if isinstance(found[0], tuple):
        for a, b in zip(*found, strict=True):
            assert a.dtype == b.dtype
            assert torch.allclose(a.double(), b.double(), atol=1e-4)
    else:
        assert found[0] == found[1]


@pytest.mark.usefixtures("without_code")
def test_running_statistics_that_are_the_parameters(report):
    """As without onedsl. Eager PyTorch reads the parameters after it updates the statistics."""
    x, results = torch.randn(4, 3, 5, 5), []
    for backend in "aot_eager_decomp_partition", "onedsl":
        torch._dynamo.reset()
        t, u = torch.full((3,), 2.0), torch.full((3,), 0.5)
        run = torch.compile(lambda x, t, u: F.batch_norm(x, t, u, t, u, True), backend=backend)
        results.append((run(x, t, u), t, u))
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("what", ["bias", "running_mean as bias"])
def test_parameters_that_the_graph_overwrites(what, report):
    """Regression: the gradient computed the mask of the ReLU from the new parameters."""
    x, found = torch.randn(4, 3, 5, 5), []

    def function(x, weight, bias, mean):
        y = F.batch_norm(x, mean, mean.exp(), weight, bias, True, momentum=1.0).relu()
        with torch.no_grad():
            if what != "running_mean as bias":
                bias.sub_(1.5)
        return y

    for backend in "aot_eager_decomp_partition", "onedsl":
        torch._dynamo.reset()
        src = (x + 5).requires_grad_()
        weight, bias, mean = (torch.full((3,), 0.5) for _ in range(3))
        mean = bias if what == "running_mean as bias" else mean
        torch.compile(function, backend=backend)(src, weight, bias, mean).sin().sum().backward()
        found.append(src.grad)
    assert report() == [f"1 by onedsl; 1 {RELU} | 0 by inductor"]
    assert torch.allclose(*found, atol=1e-5)


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


UNSUPPORTED = {
    "dtypes other than": (nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5).double()),
    "parameters and statistics other": (
        nn.BatchNorm2d(3).bfloat16(),
        torch.randn(4, 3, 5, 5).bfloat16(),
    ),
    "16-bit inputs": (
        nn.BatchNorm2d(3, affine=False, track_running_stats=False),
        torch.randn(4, 3, 5, 5).bfloat16(),
    ),
}


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_unsupported_batch_norms_are_inductors(reason, report):
    layer, x = UNSUPPORTED[reason]
    layer = copy.deepcopy(layer).to(x.dtype)
    expected = copy.deepcopy(layer)(x.clone())
    assert torch.allclose(torch.compile(layer, backend="onedsl")(x), expected, atol=2e-2)
    (line,) = report()
    assert line.startswith(f"0 by onedsl | 1 by inductor; 1 for {reason}")


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
        ("relu6", torch.channels_last, torch.bfloat16),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["order of the residual", "as_strided", "order of the gradient"])
def test_strides_of_inductors_code(name, report):
    check_strides(name)
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


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("with_layer", [True, False])
def test_dynamic_shapes(with_layer, marked, report, request):
    """Support is decided for symbolic sizes, in one graph for all of them."""
    if with_layer or marked:
        request.getfixturevalue("without_code")
    layer = onedsl_torch.BatchNormAct2d(3, activation="relu")

    def function(x):
        if with_layer:
            return layer(x, 2 * x)
        return F.relu(F.batch_norm(x, None, None, training=True) + 2 * x)

    run = torch.compile(function, fullgraph=True, dynamic=not marked or None, backend="onedsl")
    for shape in (4, 3, 6, 8), (5, 3, 9, 10), (6, 3, 11, 7):
        x = torch.randn(shape, requires_grad=True)
        for axis in (0, 2, 3) if marked else ():
            torch._dynamo.mark_dynamic(x, axis)
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


@pytest.mark.parametrize("kind", ["training", "evaluation", "dynamic", "checkpoint", "frozen"])
def test_what_is_not_fused_is_decomposed(kind, report, x, caplog, request):
    if kind not in ("training", "frozen"):
        request.getfixturevalue("without_code")
    model = NotFused().train(kind not in ("evaluation", "frozen"))
    exact, shapes = copy.deepcopy(model).double(), [x.shape]
    options = {"dynamic": True} if kind == "dynamic" else {}
    if kind == "frozen":
        options["options"] = {"freezing": True}
    if kind == "dynamic":
        shapes += [(5, 3, 9, 4)]

    def function(x):
        if kind != "checkpoint":
            return model(x)
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)

    run = torch.compile(function, fullgraph=True, backend="onedsl", **options)
    for shape in shapes:
        given = torch.randn(shape, requires_grad=kind != "frozen")
        wide = given.detach().double().requires_grad_()
        with torch.set_grad_enabled(kind != "frozen"):
            got, expected = run(given), exact(wide)
        assert relative_error(got, expected) < 1e-5
        if kind != "frozen":
            got.square().sum().backward()
            expected.square().sum().backward()
            assert relative_error(given.grad, wide.grad) < 1e-4
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


@pytest.mark.usefixtures("without_code")
def test_other_backends_are_unaffected(report, x):
    model = Plain(USES["relu"][0])
    expected = copy.deepcopy(model)(x)
    for backend in "onedsl", "aot_eager", "onedsl":
        torch._dynamo.reset()
        result = torch.compile(copy.deepcopy(model), backend=backend)(x)
        assert torch.allclose(result, expected, atol=1e-5)
        assert len(report()) == (backend == "onedsl")


@pytest.mark.usefixtures("without_code")
def test_a_pass_of_the_user_still_runs(report, x):
    calls = []
    name = "joint_custom_pre_pass"
    with torch._inductor.config.patch({name: calls.append}):
        check_compiled(Plain(USES["relu"][0]), x)
    torch._dynamo.reset()
    check_compiled(Plain(USES["relu"][0]), x, options={name: calls.append})
    torch._dynamo.reset()
    check_compiled(Plain(USES["relu"][0]), x, options={name: [calls.append, WithId(calls)]})
    assert len(calls) == 4
    assert len(report()) == 3


class WithId(torch._inductor.custom_graph_pass.CustomGraphPass):
    """A pass of a user that inductor's caches can identify."""

    def __init__(self, calls, uuid="a"):
        self.calls, self.id = calls, uuid

    def __call__(self, graph):
        self.calls.append(graph)

    def uuid(self):
        return self.id


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


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant, report, x):
    class Checkpointed(Plain):
        def forward(self, x):
            run = super().forward
            return torch.utils.checkpoint.checkpoint(run, x, use_reentrant=reentrant)

    # The second forward pass of eager mode updates running statistics once more.
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    check_compiled(Checkpointed(USES["relu"][0], norm), x.requires_grad_(), fullgraph=not reentrant)
    assert report()


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


@pytest.mark.usefixtures("without_code")
def test_torch_func(report, x):
    model = Plain(USES["relu"][0], nn.BatchNorm2d(8, track_running_stats=False))
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))
    for function, batch in (torch.func.grad(loss), x), (per_sample, torch.stack([x, 2 * x])):
        got = torch.compile(function, backend="onedsl")(parameters, batch)
        expected = function(parameters, batch)
        for name in expected:
            assert torch.allclose(got[name], expected[name], rtol=1e-3, atol=1e-3), name
    assert "1 by onedsl" in report()[0]


@pytest.mark.usefixtures("without_code")
def test_compiled_autograd(report, x):
    model = Plain(USES["relu"][0])
    eager = copy.deepcopy(model)
    run = torch.compile(model, backend="onedsl")
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="onedsl")):
        run(x).square().sum().backward()
    eager(x).square().sum().backward()
    assert torch.allclose(model.conv.weight.grad, eager.conv.weight.grad, rtol=1e-3, atol=1e-3)
    assert report()


@pytest.mark.usefixtures("without_code")
def test_distributed_data_parallel(report, x):
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Plain(USES["relu"][0])
        eager = copy.deepcopy(model)
        run = torch.compile(nn.parallel.DistributedDataParallel(model), backend="onedsl")
        run(x).square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    eager(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    assert "1 by onedsl" in report()[0]


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
