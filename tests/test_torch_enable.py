"""enable: switching it on and off, and whole models under it."""

import copy
import threading

import helpers
import pytest
from helpers import needs_compiler, preloaded
from torch_helpers import (
    DTYPES,
    LIMITS,
    SmallModel,
    dtypes,
    dynamo,
    in_double,
    inputs,
    modes,
    nn,
    onedsl_torch,
    relative_error,
    torch,
)


@pytest.fixture
def enabled():
    with onedsl_torch.enable():
        yield
    assert not onedsl_torch.enabled()


@pytest.fixture
def forward_runs(enabled):
    """The forward passes that onedsl ran."""
    with helpers.run_records("BatchNormForwardTraining") as runs:
        yield runs


# Switching


def test_switching():
    assert not onedsl_torch.enabled()
    onedsl_torch.disable()
    outer = onedsl_torch.enable()
    assert onedsl_torch.enabled()
    with onedsl_torch.enable():
        pass
    assert onedsl_torch.enabled(), "the inner block ends its own use only"
    with outer:
        pass
    assert not onedsl_torch.enabled()
    with outer:
        assert not onedsl_torch.enabled(), "an object is one use"
    assert not onedsl_torch.enabled(), "its end does not count twice"
    with onedsl_torch.enable():
        onedsl_torch.disable()
        assert not onedsl_torch.enabled()
        inner = onedsl_torch.enable()
    assert onedsl_torch.enabled(), "disable ended the outer use"
    inner.__exit__(None, None, None)
    assert not onedsl_torch.enabled()


def test_overlapping_blocks_on_two_threads():
    """Regression: the end of the first block disabled the second one."""
    begun, end = threading.Event(), threading.Event()

    def other():
        with onedsl_torch.enable():
            begun.set()
            end.wait()

    thread = threading.Thread(target=other)
    with onedsl_torch.enable():
        thread.start()
        begun.wait()
    assert onedsl_torch.enabled()
    end.set()
    thread.join()
    assert not onedsl_torch.enabled()


def test_switching_while_other_threads_train():
    """Regression: an internal assert of PyTorch failed."""
    child = helpers.run_script("torch_switching.py")
    assert (child.stdout, child.stderr) == ("trained\n", "")


def test_switching_in_signal_handlers():
    """Regression: a handler waited for the lock that the interrupted function held."""
    assert helpers.run_script("torch_signals.py", timeout=60).stdout == "[]\n"


def test_an_interrupt_leaves_pytorchs_kernels_in_use():
    """Regression: onedsl's remained in use, or the registration was skipped by the next calls."""

    def switch():
        with onedsl_torch.enable():
            assert onedsl_torch.enabled()

    switch()
    registering = helpers.before(onedsl_torch.enable, "_registering.clear()")
    for _ in helpers.interruptions(switch, registering):
        assert onedsl_torch._enable._registering == []
    before_return = helpers.before(onedsl_torch.enable, "return use")
    left = [onedsl_torch.enabled() for _ in helpers.interruptions(switch, before_return)]
    assert len(left) > 10
    assert not any(left)


def test_disable_restores_pytorchs_bits():
    layer, src = nn.BatchNorm2d(5), torch.randn(64, 5, 20, 20)
    before = layer(src)
    with onedsl_torch.enable():
        between = layer(src)
    assert torch.equal(before, layer(src))
    assert not torch.equal(before, between)


SYMBOLS = """
import logging, sys, warnings, torch, onedsl, onedsl.torch
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
with warnings.catch_warnings(record=True) as caught, onedsl.verbose():
    try:
        onedsl.torch.enable()
    except RuntimeError as error:
        print(error)
    x, v = torch.randn(4, 3, 5), torch.ones(3)
    for ops in (torch.ops.aten.native_batch_norm, torch.ops.aten._native_batch_norm_legit):
        y, *_ = ops(x, v, v, v * 0, v * 1, True, 0.1, 1e-5)
        assert torch.allclose(y.var((0, 2), correction=0), v, atol=1e-3)
    onedsl.torch.BatchNormReLU1d(3)(x)
print(*(str(w.message) for w in caught))
"""


@needs_compiler
@pytest.mark.parametrize(
    ("environment", "left", "runs"),
    [
        ({}, [], 3),
        ({"HIDDEN": "26native_batch_norm_backwardE"}, ["native_batch_norm_backward (it is"], 3),
        ({"CHANGED": "inexact"}, ["native_batch_norm (its results differ)"], 2),
        ({"CHANGED": "longer"}, ["native_batch_norm (it has results of another type)"], 2),
        ({"HIDDEN": "batch_norm"}, ["does not support PyTorch", "missing"], 1),
    ],
    ids=str,
)
def test_unknown_kernels_are_left_to_pytorch(tmp_path, environment, left, runs):
    """Regression: without one of these symbols, onedsl.torch could not be imported."""
    child = helpers.run_python(
        "-c", SYMBOLS, environment=preloaded("torch_symbols.c", tmp_path) | environment
    )
    lines = child.stdout.splitlines()
    assert sum(" threads, " in line for line in lines) == runs
    said = " ".join(line for line in lines if " threads, " not in line)
    assert all(text in said for text in left)
    assert bool(said.strip()) == bool(left)


@needs_compiler
def test_results_that_pytorch_fails_to_create_are_freed_once(tmp_path):
    """Regression: freed by PyTorch and by onedsl."""
    environment = preloaded("torch_symbols.c", tmp_path)
    assert helpers.run_script("torch_blocks.py", "failing", environment=environment).stdout


COMPILED = """
import sys, warnings, torch, onedsl.torch
from torch import nn

def step(use=lambda model: model, dtype=torch.float32):
    layers = nn.Conv2d(3, 4, 1, dtype=dtype), nn.BatchNorm2d(4, dtype=dtype)
    model = use(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 3, 4, 4, dtype=dtype)).sum().backward()
    optimizer.step()

what = sys.argv[1]
generator = nn.BatchNorm2d(4)  # which is not trained
onedsl.torch.enable()
if what != "compiled":
    import torch._inductor.compile_fx
if what == "disabled":
    onedsl.torch.disable()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", RuntimeWarning)
    if what in ("fake", "meta"):
        with torch._subclasses.FakeTensorMode() if what == "fake" else torch.device("meta"):
            step()
    step(lambda model: model[0])  # a discriminator
    uses = {"compiled": [torch.compile], "float64": [lambda model: model, torch.float64]}
    for _ in range(2):
        step(*uses.get(what, []))
print(*(w.message for w in caught if "onedsl" in str(w.message)), sep="\\n")
"""


@pytest.mark.parametrize(
    ("what", "warnings"),
    [
        ("eager", 0),
        ("float64", 1),
        ("disabled", 0),
        ("fake", 0),
        ("meta", 0),
        pytest.param("compiled", 1, marks=pytest.mark.slow),
    ],
)
def test_no_effect_on_compiled_models_is_a_warning(what, warnings):
    child = helpers.run_python("-c", COMPILED, what)
    assert child.stdout.count('needs torch.compile(model, backend="onedsl")') == warnings
    assert child.stdout.count("\n") == 1, "one warning for two steps, none for a discriminator"


CONTEXTS = """
import logging, os, sys, torch, onedsl, onedsl.torch
import torch._dynamo, torch.fx.experimental.proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        return result.to("meta") if isinstance(result, torch.Tensor) else result

class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        return result.to("meta") if isinstance(result, torch.Tensor) else result

class Model(torch.nn.Module):
    def forward(self, x):
        onedsl.torch.enable()
        return (x + 1).sum()

def within(context):
    with context:
        onedsl.torch.enable()

x = torch.ones(2, 2)
contexts = {
    "device": lambda: within(torch.device("meta")),
    "default device": lambda: (torch.set_default_device("meta"), onedsl.torch.enable()),
    "default dtype": lambda: (torch.set_default_dtype(torch.float64), onedsl.torch.enable()),
    "inference mode": lambda: within(torch.inference_mode()),
    "autocast": lambda: within(torch.autocast("cpu", torch.bfloat16)),
    "function mode": lambda: within(Functions()),
    "dispatch mode": lambda: within(Dispatch()),
    "FakeTensorMode": lambda: within(torch._subclasses.FakeTensorMode()),
    "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(Model())(x),
    "export": lambda: torch.export.export(Model(), (x,)),
    "compile": lambda: torch.compile(Model(), backend="eager")(x),
    "vmap": lambda: torch.vmap(Model())(x),
    "grad": lambda: torch.func.grad(Model())(x),
    "jvp": lambda: torch.func.jvp(Model(), (x,), (x,)),
    "functionalize": lambda: torch.func.functionalize(Model())(x),
    "trace": lambda: torch.jit.trace(Model(), x),
}
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
options = {"dtype": torch.float32, "device": "cpu"}
for name, call in contexts.items():
    if os.fork() == 0:  # the first call of a process
        call()
        with onedsl.torch.enable(), onedsl.verbose():
            torch.nn.functional.batch_norm(torch.ones(4, 3, **options), None, None, training=True)
        print(name, flush=True)
        os._exit(0)
    os.wait()
print(len(contexts))
"""


def test_the_first_call_in_any_context_of_pytorch():
    """Regression: it did nothing, or raised that it does not support PyTorch, also later."""
    child = helpers.run_python("-W", "ignore", "-c", CONTEXTS)
    *lines, count = child.stdout.splitlines()
    assert len(lines) == 2 * int(count), child.stdout + child.stderr
    assert all("BatchNormForwardTraining" in run for run in lines[::2])
    assert "overrid" not in child.stderr.lower()


INTERRUPTED = """
import onedsl.torch
from onedsl.torch import _enable

def interrupt(*_):
    raise KeyboardInterrupt

compare, _enable._difference = _enable._difference, interrupt
try:
    onedsl.torch.enable()
except KeyboardInterrupt:
    print(onedsl.torch.enabled())
_enable._difference = compare
onedsl.torch.enable()
print(onedsl.torch.enabled())
"""


def test_the_first_call_is_interrupted():
    """Regression: PyTorch rejected the definitions of the next call."""
    assert helpers.run_child(INTERRUPTED).stdout == "False\nTrue\n"


FORKED = """
import os, signal, threading
import onedsl.torch
from onedsl.torch import _enable

started, ended = threading.Event(), threading.Event()

def register():
    with _enable._lock:
        _enable._registering.append(None)
        started.set()
        ended.wait()

threading.Thread(target=register).start()
started.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    onedsl.torch.enable()
    print(onedsl.torch.enabled(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
ended.set()
"""


def test_a_fork_whose_wait_for_the_registration_is_interrupted():
    """Regression: the lock of a thread that the child does not have was never released."""
    assert helpers.run_child(FORKED).stdout == "True\n0\n"


# Layers and models


@modes
@pytest.mark.parametrize("grad", ["grad", "no_grad", "inference_mode"])
def test_layers_in_pytorchs_modes(forward_runs, train, grad):
    src = inputs(2, "f32")[0]

    def run(dtype):
        layer = nn.BatchNorm2d(5).train(train).to(dtype)
        x = src.to(dtype, copy=True).requires_grad_()
        if grad != "grad":
            with getattr(torch, grad)():
                return layer(x), layer(src.to(dtype)), layer.running_var.clone()
        y = layer(x)
        assert type(y.grad_fn).__name__ == "NativeBatchNormBackward0"
        y.pow(3).sum().backward()
        return y, x.grad, layer.weight.grad, layer.bias.grad, layer.running_var

    for ours, exact in zip(run(torch.float32), run(torch.float64), strict=True):
        assert relative_error(ours, exact) < 1e-5
    assert len(forward_runs) == (0 if not train else 1 if grad == "grad" else 2)


@dynamo
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", ["script", "trace", "export"])
def test_scripts_traces_and_exported_programs_run_onedsl(how, forward_runs):
    model, x = SmallModel(), torch.randn(4, 3, 6, 6)
    exact = copy.deepcopy(model).double()
    if how == "script":
        run = torch.jit.script(model)
    elif how == "trace":
        run = torch.jit.trace(model, x)
    else:
        run = torch.export.export(model, (x,)).run_decompositions({}).module()
    forward_runs.clear()
    output = run(x)
    assert len(forward_runs) == 3
    assert relative_error(output, exact(x.double())) < 1e-5


@dynamo
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models_are_right(backend, forward_runs):
    torch._dynamo.reset()
    model, x = SmallModel(), torch.randn(4, 3, 6, 6)
    exact = copy.deepcopy(model).double()
    torch.compile(model, fullgraph=True, backend=backend)(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    # inductor decomposes batch norm; aot_eager calls PyTorch's ops, whose kernels are onedsl's.
    assert (not forward_runs) == (backend == "inductor")
    for p, q in zip(model.parameters(), exact.parameters(), strict=True):
        assert float((p.grad.double() - q.grad).abs().max()) < 1e-4 * float(q.grad.abs().max() + 1)


@pytest.mark.usefixtures("enabled")
def test_checkpoints_over_70_steps():
    """Regression: the number of saved tensors depended on the steps before."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    x = torch.randn(16, 3, 130, 130)  # results of more than 4 MB
    for _ in range(70):
        torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=False).sum().backward()


def test_a_usual_training_program():
    """DDP, DataLoader's workers and autocast, without a warning or output on stderr."""
    child = helpers.run_script("torch_enabled.py")
    assert (child.stdout, child.stderr) == ("trained\n", "")


# PyTorch's own samples


OPS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "nn.functional.batch_norm",
)


def floating_tensors(values):
    values = values if isinstance(values, (tuple, list)) else [values]
    return [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]


def outputs_and_gradients(op, sample):
    outputs = floating_tensors(op(sample.input, *sample.args, **sample.kwargs))
    wrt = floating_tensors([sample.input, *sample.args, *sample.kwargs.values()])
    wrt = [t for t in wrt if t.requires_grad]
    grads = torch.autograd.grad(outputs[0].square().sum(), wrt, allow_unused=True)
    return [*outputs, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("name", OPS)
@dtypes
@pytest.mark.usefixtures("enabled")
@pytest.mark.filterwarnings("ignore:Fail to import hypothesis:ImportWarning")
def test_samples_of_pytorchs_ops(name, dtype):
    pytest.importorskip("expecttest", reason="torch.testing needs it: pip install '.[test]'")
    from torch.testing._internal.common_methods_invocations import op_db

    compared = 0
    for info in (info for info in op_db if info.name == name):
        for sample in info.sample_inputs("cpu", DTYPES[dtype], requires_grad=True):
            exact = outputs_and_gradients(info.op, sample.transform(in_double))
            for a, b in zip(outputs_and_gradients(info.op, sample), exact, strict=True):
                limit = LIMITS[a.dtype]
                assert torch.allclose(
                    a.double(), b, rtol=300 * limit, atol=1000 * limit, equal_nan=True
                )
                compared += 1
    assert compared > 10
