"""onedsl.torch.enable: switching it on and off, its first call, and whole models under it.

The laws have calls of PyTorch's functions under it.
"""

import copy

import helpers
import pytest
from helpers import needs_compiler, preloaded
from torch_helpers import (
    SmallModel,
    dynamo,
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


def test_overlapping_blocks():
    """Regression: the end of the first block disabled the second one."""
    first, second = onedsl_torch.enable(), onedsl_torch.enable()
    first.__exit__(None, None, None)
    assert onedsl_torch.enabled()
    second.__exit__(None, None, None)
    assert not onedsl_torch.enabled()


def test_switching_while_other_threads_train():
    """Regression: an internal assert of PyTorch failed."""
    child = helpers.run_script("torch_switching.py")
    assert (child.stdout, child.stderr) == ("trained\n", "")


def test_switching_in_signal_handlers():
    """Regression: a handler waited for the lock that the interrupted function held."""
    assert helpers.run_script("torch_signals.py").stdout == "[]\n"


def test_an_interrupt_leaves_pytorchs_kernels_in_use():
    """Regression: onedsl's remained in use."""

    def switch():
        with onedsl_torch.enable():
            assert onedsl_torch.enabled()

    switch()
    interrupted = helpers.before_last_line(onedsl_torch.enable)
    left = [onedsl_torch.enabled() for _ in helpers.interruptions(switch, interrupted)]
    assert len(left) > 10
    assert not any(left)


FIRST_CALL = """
import sys, torch, onedsl.torch
from onedsl import _core
from onedsl.torch import _enable

owner = _core if sys.argv[1] == "override_torch_kernels" else _enable
function = getattr(owner, sys.argv[1])

def interrupt(*_):
    setattr(owner, sys.argv[1], function)
    raise KeyboardInterrupt

setattr(owner, sys.argv[1], interrupt)
try:
    onedsl.torch.enable()
except KeyboardInterrupt:
    print(onedsl.torch.enabled())
with onedsl.verbose(), onedsl.torch.enable():
    torch.nn.BatchNorm1d(3)(torch.randn(4, 3, 5))
"""


@pytest.mark.parametrize("interrupted", ["override_torch_kernels", "_difference"])
def test_the_first_call_is_interrupted(interrupted):
    """Regression: the next call skipped the registration, or PyTorch rejected it."""
    child = helpers.run_child(FIRST_CALL, (interrupted,))
    assert child.stdout == "False\n"
    assert "BatchNormForwardTraining" in child.stderr


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
    onedsl.torch.BatchNormAct1d(3, activation="relu")(x)
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


EAGER = {"eager": 0, "float64": 1, "checkpoint": 1, "checkpoint of float32": 0}
WITHOUT_ENABLE = {"disabled": 0, "fake": 0, "meta": 0}


@pytest.mark.parametrize(
    "warnings",
    [EAGER | WITHOUT_ENABLE, pytest.param({"compiled": 1}, marks=pytest.mark.slow)],
    ids=["eager", "compiled"],
)
def test_no_effect_on_compiled_models_is_a_warning(warnings):
    """One warning for two steps, none for a discriminator."""
    lines = helpers.run_script("torch_no_effect.py", *warnings).stdout.splitlines()
    said = ['needs torch.compile(model, backend="onedsl")' in line for line in lines]
    assert dict(zip(warnings, said, strict=True)) == warnings


def test_the_first_call_in_any_context_of_pytorch():
    """Regression: it did nothing, or raised that it does not support PyTorch, also later."""
    child = helpers.run_script("torch_contexts.py", environment={"PYTHONWARNINGS": "ignore"})
    *lines, count = child.stdout.splitlines()
    assert len(lines) == 2 * int(count), child.stdout + child.stderr
    assert all("BatchNormForwardTraining" in run for run in lines[::2])
    assert "overrid" not in child.stderr.lower()


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


PROGRAMS = {
    "script": lambda model, x: torch.jit.script(model),
    "trace": torch.jit.trace,
    "export": lambda model, x: torch.export.export(model, (x,)).run_decompositions({}).module(),
}


@dynamo
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", PROGRAMS)
def test_scripts_traces_and_exported_programs_run_onedsl(how, forward_runs):
    model, x = SmallModel(), torch.randn(4, 3, 6, 6)
    exact = copy.deepcopy(model).double()
    run = PROGRAMS[how](model, x)
    forward_runs.clear()
    output = run(x)
    assert len(forward_runs) == 3
    assert relative_error(output, exact(x.double())) < 1e-5


@dynamo
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models_are_right(backend, forward_runs):
    torch._dynamo.reset()
    torch.manual_seed(0)  # with 2 % of the seeds, rounding changes the sign of a ReLU's input
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
    environment = {"GLOO_SOCKET_IFNAME": "lo"}  # or gloo warns where the host's name has no address
    child = helpers.run_script("torch_enabled.py", environment=environment)
    assert (child.stdout, child.stderr) == ("trained\n", "")
