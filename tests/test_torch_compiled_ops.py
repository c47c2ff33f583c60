"""Under torch.compile, fused layers are operators that inductor keeps whole, with equal results."""

from __future__ import annotations

import collections
import copy
import subprocess
import sys

import helpers
import pytest
from torch_helpers import dynamo, nn, onedsl_torch, torch

from onedsl.bench import networks  # it needs PyTorch, as torch_helpers does

F = nn.functional
ops = torch.ops.onedsl
pytestmark = dynamo


class Plain(nn.Module):
    """A batch norm, and what a test does with its result."""

    def __init__(self, use, norm=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8) if norm is None else norm
        self.use = use

    def forward(self, x):
        y = self.conv(x)
        return self.use(self.norm(y), y)


USES = {
    "relu": (lambda y, x: F.relu(y), "relu", "relu_backward"),
    "relu_": (lambda y, x: y.relu_(), "relu", "relu_backward"),
    "relu6": (lambda y, x: F.relu6(y), "relu", "relu_backward"),
    "add": (lambda y, x: F.relu(y + x), "relu", "add_relu_backward"),
    "add, in place": (lambda y, x: y.add_(x).relu_(), "relu", "add_relu_backward"),
    "add before": (lambda y, x: F.relu(x + y), "relu", "add_relu_backward"),
    "add relu6": (lambda y, x: F.relu6(y + x), "relu", "add_relu_backward"),
    "ReLU used twice": (lambda y, x: (z := F.relu(y)).sin() * z, "relu", "relu_backward"),
    "two ReLUs": (lambda y, x: F.relu(y).sin() * F.relu(y), None, None),
    "result used by others": (lambda y, x: F.relu(y) + y.exp(), None, None),
    "result returned": (lambda y, x: (F.relu(y), y)[0] * 2 + (y * 0).sum(), None, None),
    "sum used by others": (lambda y, x: F.relu(y + x) * (y + x).sin(), None, None),
    "added to itself": (lambda y, x: F.relu(y + y), None, None),
    "scaled addition": (lambda y, x: F.relu(torch.add(y, x, alpha=2)), None, None),
    "broadcast addition": (lambda y, x: F.relu(y + x.mean(1, keepdim=True)), None, None),
    "leaky ReLU": (lambda y, x: F.leaky_relu(y), None, None),
    "other bounds": (lambda y, x: F.hardtanh(y), None, None),
    "threshold": (lambda y, x: F.threshold(y, 0.5, 0.0), None, None),
    "no ReLU": (lambda y, x: y * 2, None, None),
}


@pytest.fixture
def graphs(monkeypatch):
    """The operators of each joint graph after the pass."""
    from onedsl.torch._compiler_pass import FuseBatchNorm

    seen = []
    original = FuseBatchNorm.__call__

    def call(self, graph):
        original(self, graph)
        seen.append(collections.Counter(str(node.target) for node in graph.nodes))

    monkeypatch.setattr(FuseBatchNorm, "__call__", call)
    monkeypatch.setattr(FuseBatchNorm, "uuid", lambda self: None)  # no cached graphs
    torch._dynamo.reset()
    return seen


def check(model, x, *, dtype=torch.float32, backend="inductor", train=True):
    """Compare a compiled fused model with PyTorch's own in float64; return the compiled one.

    Twice the error of PyTorch's own eager model is allowed: in bf16, rounding flips ReLUs near 0.
    """
    model = model.train(train)
    eager = copy.deepcopy(model)
    fused = onedsl_torch.fuse(copy.deepcopy(model))
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(fused, fullgraph=True, backend=backend)
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
    for name, parameter in fused.named_parameters():
        gradient = exact.get_parameter(name).grad
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None:
            error = (eager.get_parameter(name).grad.double() - gradient).norm()
            allowed = tolerance * scale + 2 * float(error)
            assert float((parameter.grad.double() - gradient).norm()) <= allowed, name
    for name, buffer in fused.named_buffers():
        assert torch.allclose(buffer.double(), exact.get_buffer(name).double(), atol=tolerance)
    return fused


def count(graphs, name):
    return sum(graph.get(f"onedsl.{name}.default", 0) for graph in graphs)


@pytest.fixture
def x():
    return torch.randn(4, 3, 6, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("use", USES)
def test_patterns(use, graphs, x, monkeypatch):
    """aot_eager runs the pass's graph operator by operator, so nothing has to be generated."""
    function, forward, backward = USES[use]
    torch.manual_seed(0)
    check(Plain(function), x, backend=pass_and_interpret())
    assert count(graphs, "batch_norm_relu_training") == (forward is not None)
    backwards = ("relu_backward", "add_relu_backward")
    found = [
        name for name in backwards if count(graphs, f"batch_norm_{name[:-9]}_training_backward")
    ]
    if forward is None:
        assert not found
    elif backward is not None:
        assert found == [backward]


def pass_and_interpret():
    """A backend that runs inductor's decompositions and the pass, and generates no code."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    from onedsl.torch import _compiler_pass

    def partition(graph_module, inputs, **kwargs):
        _compiler_pass.FuseBatchNorm()(graph_module.graph)
        graph_module.recompile()
        return min_cut_rematerialization_partition(graph_module, inputs, **kwargs)

    def interpret(graph_module, _):
        return make_boxed_func(graph_module.forward)

    return aot_autograd(
        fw_compiler=interpret,
        bw_compiler=interpret,
        decompositions=select_decomp_table(),
        partition_fn=partition,
    )


NORMS = {
    "no affine": lambda: nn.BatchNorm2d(8, affine=False),
    "no statistics": lambda: nn.BatchNorm2d(8, track_running_stats=False),
}


@pytest.mark.parametrize("norm", NORMS)
def test_layers(norm, graphs, x):
    check(Plain(USES["relu"][0], NORMS[norm]()), x, backend=pass_and_interpret())
    assert count(graphs, "batch_norm_relu_training") == 1


def test_frozen_parameters(graphs, x):
    model = Plain(USES["relu"][0])
    model.norm.weight.requires_grad_(False)
    model.norm.bias.requires_grad_(False)
    check(model, x, backend=pass_and_interpret())
    assert count(graphs, "batch_norm_relu_training_backward") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("use", ["relu", "relu6", "add", "no ReLU"])
@pytest.mark.slow
def test_inductor(use, memory_format, dtype, graphs, x):
    function, forward, _ = USES[use]
    torch.manual_seed(0)
    model = Plain(function).to(memory_format=memory_format)
    check(model, x.contiguous(memory_format=memory_format), dtype=dtype)
    assert count(graphs, "batch_norm_relu_training") == (forward is not None)


def test_inductor_runs_the_pass(graphs, x):
    check(Plain(USES["add"][0]), x)
    assert count(graphs, "batch_norm_relu_training") == 1
    assert count(graphs, "batch_norm_add_relu_training_backward") == 1


def test_no_gradients(graphs, x):
    model = onedsl_torch.fuse(Plain(USES["relu"][0]))
    expected = copy.deepcopy(model)
    with torch.no_grad():
        result = torch.compile(model, fullgraph=True)(x)
        assert torch.allclose(result, expected(x), atol=1e-5)
    assert torch.allclose(model.norm.running_var, expected.norm.running_var)


@pytest.mark.parametrize("shape", [(4, 8, 6), (4, 8), (2, 8, 3, 4, 5)], ids=str)
def test_other_ranks(shape, graphs):
    kind = getattr(nn, f"BatchNorm{max(len(shape) - 2, 1)}d")
    model = nn.Sequential(kind(8), nn.ReLU())
    x = torch.randn(shape)
    check(model, x, backend=pass_and_interpret())
    assert count(graphs, "batch_norm_relu_training") == 1


def test_dynamic_shapes(graphs, x):
    model = onedsl_torch.fuse(Plain(USES["relu"][0]))
    expected = copy.deepcopy(model)
    run = torch.compile(model, fullgraph=True, dynamic=True, backend=pass_and_interpret())
    for size in 6, 9, 11:
        y = torch.randn(4, 3, size, size)
        assert torch.allclose(run(y), expected(y), atol=1e-5)


def test_exported_programs_hold_no_operators_of_onedsl(x):
    model = onedsl_torch.fuse(Plain(USES["relu"][0]))
    program = torch.export.export(model, (x,))
    assert "onedsl" not in str(program.graph)


def test_graph_breaks(x):
    model = onedsl_torch.fuse(Plain(USES["add"][0]))
    explanation = torch._dynamo.explain(model)(x)
    assert explanation.graph_break_count == 0


def test_a_pass_of_the_user_still_runs(graphs, x):
    from torch._inductor import config

    from onedsl.torch import _compiler_pass

    calls = []
    with config.patch(joint_custom_pre_pass=calls.append):
        _compiler_pass.register()
        _compiler_pass.register()
        check(Plain(USES["relu"][0]), x)
    assert len(calls) == 1
    assert count(graphs, "batch_norm_relu_training") == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # opcheck's own, since 2.15
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_operators_are_registered_correctly(dtype):
    src = torch.randn(2, 4, 3, 5).to(dtype)
    d, residual, dst = (torch.randn_like(src) for _ in range(3))
    mean, variance, weight, bias = torch.randn(4, 4).abs().unbind()
    check = torch.library.opcheck
    utils = ("test_schema", "test_faketensor")
    needs_grad = [t.clone().requires_grad_() for t in (src, weight, bias)]
    check(ops.batch_norm_training.default, (*needs_grad, 1e-5))
    check(ops.batch_norm_relu_training.default, (src, weight, bias, residual, 1e-5, 6.0),
          test_utils=utils)  # fmt: skip
    given = (d, src, mean, variance, weight)
    check(ops.batch_norm_training_backward.default, (*given, 1e-5), test_utils=utils)
    check(ops.batch_norm_relu_training_backward.default, (*given, bias, 1e-5, None),
          test_utils=utils)  # fmt: skip
    check(ops.batch_norm_add_relu_training_backward.default, (*given, bias, dst, 1e-5, None),
          test_utils=utils)  # fmt: skip


def test_operators_copy_other_layouts():
    src = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    expected = ops.batch_norm_relu_training(src.contiguous(), None, None, src, 1e-5, None)
    actual = ops.batch_norm_relu_training(
        src.transpose(2, 3).contiguous().transpose(2, 3), None, None, src, 1e-5, None
    )
    for a, b in zip(actual, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_unsupported_tensors_are_rejected():
    with pytest.raises(RuntimeError, match="must be float32, bfloat16 or float16"):
        ops.batch_norm_training(torch.randn(2, 4, 3, 5).double(), None, None, 1e-5)


CACHED = """
import sys, torch, onedsl.torch
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
x = torch.randn(2, 3, 9, 9)
model = torch.compile(onedsl.torch.fuse(model) if sys.argv[1] == "fuse" else model)
loss = model(x).square().sum()
loss.backward()
hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
print(hits > 0, f"{float(loss):.3f}", f"{float(next(model.parameters()).grad.norm()):.3f}")
"""


@pytest.mark.slow
def test_compiled_graphs_are_cached_between_processes(tmp_path):
    """Neither another process nor an unfused model must get a graph of another kind."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    printed = []
    for model in ("fuse", "fuse", "plain", "fuse"):
        child = helpers.run_python("-c", CACHED, model, environment=environment)
        assert child.returncode == 0, child.stderr
        printed.append(child.stdout.split())
    assert [hit for hit, *_ in printed] == ["False", "True", "False", "True"]
    assert all(values == printed[0][1:] for _, *values in printed)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_losses_of_20_steps(compiled):
    """They differ from PyTorch's by no more than if its weights were changed by 1e-7."""

    def train(change, change_weights=0.0):
        torch.manual_seed(0)
        model = networks.NETWORKS["MobileNetV2"](10)
        x, labels = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + change_weights * torch.randn_like(p))
        model = change(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
        losses = []
        for _ in range(20):
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return torch.tensor(losses)

    def fuse(model):
        return torch.compile(onedsl_torch.fuse(model)) if compiled else onedsl_torch.fuse(model)

    expected = train(lambda model: model)
    allowed = (train(lambda model: model, 1e-7) - expected).abs().max()
    with onedsl_torch.enable():
        actual = train(fuse)
    assert expected[-1] < 0.5 * expected[0]
    assert (actual - expected).abs().max() <= 3 * allowed + 1e-6


TRAIN = """
import multiprocessing, sys, torch
from torch import nn

def work(size):
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
    model(torch.randn(2, 3, size, size)).sum().backward()

if __name__ == "__main__":
    print(sys.argv[1:])
    work(32)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(32,))
    process.start()
    process.join()
    sys.exit(process.exitcode or 3)
"""


@pytest.mark.parametrize("options", [[], ["--fuse"]], ids=["enable", "fuse"])
def test_scripts_and_their_workers_run_with_onedsl(options, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "onedsl.torch", *options, str(script), "--epochs", "3"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (child.returncode, child.stdout) == (3, "['--epochs', '3']\n"), child.stderr
    lines = [line for line in child.stderr.splitlines() if line.startswith("onedsl.torch: ")]
    fused = ", fused where a ReLU follows" if options else ""
    assert lines == [f"onedsl.torch: 1 batch-norm layers used onedsl{fused}; 0 skipped"] * 2


def test_scripts_that_do_not_exist():
    child = helpers.run_python("-m", "onedsl.torch", "nothing.py")
    assert child.returncode == 2
    assert "script must be a file, got nothing.py" in child.stderr


def test_modules_run_with_onedsl(tmp_path):
    command = [sys.executable, "-m", "onedsl.torch", "-m", "json.tool", "--help"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert child.returncode == 0
    assert "json" in child.stdout
