"""report: what computed each layer."""

import contextlib
import gc
import re
import threading

import pytest
from torch_helpers import Plain, SmallModel, dynamo, nn, onedsl_torch, torch

from onedsl import _core
from onedsl.runtime import run_log
from onedsl.torch._operators import batch_norm_training_backward

EAGER = "onedsl eager"
ALONE = "onedsl compiled alone"
UNSEEN = (
    'PyTorch: eager without enable(), compiled without backend="onedsl", or not supported by onedsl'
)


def by_pass(summary):
    """The calls of the forward pass and of the gradient, by layer."""
    calls = summary.calls()
    return tuple(
        {layer: counts for (layer, pass_), counts in calls.items() if pass_ == wanted}
        for wanted in ("forward", "gradient")
    )


def step(model, *inputs):
    model(*inputs).sum().backward()


@pytest.fixture
def x():
    return torch.randn(4, 3, 6, 7)


def test_eager(x):
    model = SmallModel()
    with onedsl_torch.enable(), onedsl_torch.report(model) as summary:
        for _ in range(3):
            step(model, x)
        with torch.no_grad():
            model.stem.eval()(x)
    names = ["stem.1", "branch.a.1", "head.1"]
    evaluation = {"PyTorch, for the forward pass of evaluation": 1}
    forward = {name: {EAGER: 3} for name in names} | {"stem.1": {EAGER: 3} | evaluation}
    assert by_pass(summary) == (forward, {name: {EAGER: 3} for name in names})
    lines = str(summary).splitlines()
    assert lines[0].split() == ["layer", "forward", "gradient"]
    first = f"stem.1      3 {EAGER}; 1 PyTorch, for the forward pass of evaluation  3 {EAGER}"
    assert lines[1] == first
    assert lines[2].split() == f"branch.a.1 3 {EAGER} 3 {EAGER}".split()


def test_calls_outside_of_the_block_do_not_count(x):
    model = SmallModel()
    with onedsl_torch.enable():
        step(model, x)
        with onedsl_torch.report(model) as summary:
            pass
        step(model, x)
    assert by_pass(summary)[0] == {"stem.1": {}, "branch.a.1": {}, "head.1": {}}


def test_a_report_after_the_training_names_the_remedy(x):
    """Regression: it was a table of "none"."""
    model = SmallModel()
    step(model, x)
    text = str(onedsl_torch.report(model))
    assert text.startswith("No batch norm was counted. Call report(model) before the training")
    assert repr(onedsl_torch.report(model)) == text
    text = str(onedsl_torch.report(nn.Linear(3, 3)))
    assert text == "No batch norm was counted. The model has no batch-norm layer of torch.nn"
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        onedsl_torch.report(step)


def test_uncounted_calls_are_not_called_missing(x):
    """PyTorch's gradients are not seen, and a layer may not have been called."""
    model = SmallModel()
    with onedsl_torch.report(model) as summary:
        model.stem(x).sum().backward()
    first, second, _ = str(summary).splitlines()[1:]
    assert re.split("  +", first) == ["stem.1", f"1 {UNSEEN}", "not seen by onedsl"]
    assert re.split("  +", second) == ["branch.a.1", "none counted", "none counted"]


@pytest.mark.parametrize(
    ("layer", "enabled", "src", "what"),
    [
        (nn.BatchNorm1d(3), False, torch.randn(8, 3), UNSEEN),
        (
            nn.BatchNorm1d(3).double(),
            *(True, torch.randn(8, 3).double()),
            "PyTorch, for dtypes other than float32, bfloat16 and float16",
        ),
        (nn.BatchNorm2d(3), True, torch.randn(4, 3, 4, 8).mT, EAGER),
    ],
)
def test_what_computes(layer, enabled, src, what):
    setting = onedsl_torch.enable() if enabled else contextlib.nullcontext()
    with setting, onedsl_torch.report(layer) as summary:
        layer(src)
    (found,) = by_pass(summary)[0]["(model)"]
    assert found == what


def test_layers_without_parameters_and_functions(x):
    """The running statistics identify a layer; other calls are counted together."""
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3))
    with onedsl_torch.enable(), onedsl_torch.report(model) as summary:
        step(model, x.requires_grad_())
        nn.functional.batch_norm(x, None, None, training=True)
    forward, gradient = by_pass(summary)
    assert forward == {"0": {EAGER: 1}, "1": {EAGER: 1}, "(no layer of the model)": {EAGER: 1}}
    assert gradient == {"0": {EAGER: 1}, "1": {EAGER: 1}, "(no layer of the model)": {}}


def test_layers_that_share_parameters(x):
    """The running statistics identify them. Gradients of compiled graphs do not have these."""
    model = nn.ModuleDict({name: nn.BatchNorm2d(3) for name in "abc"})
    model["b"].weight, model["b"].bias = model["a"].weight, model["a"].bias
    with onedsl_torch.enable(), onedsl_torch.report(model) as summary:
        for name in "aabc":
            step(model[name], x.requires_grad_())
    expected = {"a": {EAGER: 2}, "b": {EAGER: 1}, "c": {EAGER: 1}}
    assert by_pass(summary) == (expected, expected)
    with onedsl_torch.report(model) as summary:
        for name in "ac":
            layer = model[name]
            saved = torch.zeros(3), torch.ones(3), layer.weight
            batch_norm_training_backward(x, x, *saved, None, None, None, 1e-5, None)
    assert by_pass(summary)[1] == {"a": {}, "b": {}, "c": {ALONE: 1}, "a or b": {ALONE: 1}}


@dynamo
@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda y, x: y * 2, "onedsl compiled alone"),
        (lambda y, x: y.relu(), "onedsl with ReLU"),
        (lambda y, x: (y + x).relu(), "onedsl with addition and ReLU"),
    ],
)
def test_compiled(use, what, x):
    torch._dynamo.reset()
    model = torch.compile(Plain(use), backend="onedsl")
    step(model, x)
    with onedsl_torch.report(model) as summary:
        step(model, x)
    forward, gradient = by_pass(summary)
    assert forward == gradient == {"norm": {what: 1}}


def test_compiled_by_another_backend(x):
    """Calls that onedsl does not see; evaluation does not reduce their number."""
    layer = nn.BatchNorm2d(3)
    with onedsl_torch.enable(), onedsl_torch.report(layer) as summary:
        layer.num_batches_tracked += 2  # as a graph of inductor does, which calls no kernel
        layer.eval()(x)
    evaluation = {"PyTorch, for the forward pass of evaluation": 1}
    assert by_pass(summary)[0]["(model)"] == evaluation | {UNSEEN: 2}
    with onedsl_torch.report(layer.double()) as summary:
        layer.num_batches_tracked += 1
    reason = "PyTorch: onedsl does not support parameters and statistics other than float32"
    assert by_pass(summary)[0]["(model)"] == {reason: 1}


def test_unseen_calls_with_other_defaults_of_pytorch():
    """Regression: the default dtype and device were taken for those of src."""
    layer = nn.BatchNorm2d(3)
    summary = onedsl_torch.report(layer)
    layer.num_batches_tracked += 1
    before = torch.get_default_dtype()
    for device, dtype in ("meta", before), ("cpu", torch.float64):
        try:
            torch.set_default_dtype(dtype)
            with torch.device(device):
                assert by_pass(summary)[0]["(model)"] == {UNSEEN: 1}
        finally:
            torch.set_default_dtype(before)


def test_layers_with_relu(x):
    layer = onedsl_torch.BatchNormAddReLU2d(3)
    with onedsl_torch.report(layer) as summary:
        layer(x, x).sum().backward()
    what = {"(model)": {"onedsl with addition and ReLU": 1}}
    assert by_pass(summary) == (what, what)


def test_nothing_is_counted_without_a_report(x, monkeypatch):
    """Neither after a report was deleted, nor while another one still counts."""
    calls = []
    monkeypatch.setattr(_core, "count_subscribers", calls.append)
    layer = nn.BatchNorm2d(3)
    outer, inner = onedsl_torch.report(layer), onedsl_torch.report(layer)
    with inner:
        pass
    del outer, inner
    gc.collect()
    assert calls == [1, 1, -1, -1]


def test_a_report_that_is_deleted_during_a_call(x):
    """Regression: the report after the next one missed the call."""
    layer = nn.BatchNorm2d(3)
    cycle = [onedsl_torch.report(layer)]
    cycle.append(cycle)
    del cycle

    def collect(_):
        gc.collect()

    run_log.subscribe(collect)
    try:
        with onedsl_torch.enable(), onedsl_torch.report(layer) as summary:
            layer(x)
    finally:
        run_log.unsubscribe(collect)
    assert by_pass(summary)[0] == {"(model)": {EAGER: 1}}


def test_threads_at_once(x):
    layer = nn.BatchNorm2d(3)
    with onedsl_torch.enable(), onedsl_torch.report(layer) as summary:
        threads = [
            threading.Thread(target=step, args=(layer, x.requires_grad_())) for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert by_pass(summary) == ({"(model)": {EAGER: 20}}, {"(model)": {EAGER: 20}})
