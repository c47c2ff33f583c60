"""onedsl.torch.report: what computed each layer, which the records of a call alone do not say."""

import functools
import gc
import re
from concurrent.futures import ThreadPoolExecutor

import helpers
import numpy as np
import pytest
from torch_helpers import Plain, SmallModel, dynamo, nn, onedsl_torch, torch

from onedsl import _core
from onedsl.runtime import run_log
from onedsl.torch._operators import batch_norm_training, batch_norm_training_backward

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


def one_step(model, *inputs):
    model(*inputs).square().sum().backward()  # the gradient of a sum alone is expanded: a copy


@pytest.fixture
def x():
    return torch.randn(4, 3, 6, 7)


def test_eager(x):
    """Calls outside of the block do not count."""
    model = SmallModel()
    with onedsl_torch.enable():
        one_step(model, x)
        with onedsl_torch.report(model) as summary:
            for _ in range(3):
                one_step(model, x)
            with torch.no_grad():
                model.stem.eval()(x)
        one_step(model, x)
    names = ["stem.1", "branch.a.1", "head.1"]
    evaluation = {"PyTorch, for the forward pass of evaluation": 1}
    forward = {name: {EAGER: 3} for name in names} | {"stem.1": {EAGER: 3} | evaluation}
    assert by_pass(summary) == (forward, {name: {EAGER: 3} for name in names})
    assert str(summary).startswith("3 of 3 layers by onedsl\n")
    header, first, second, _ = rows(summary)
    assert header.split() == ["layer", "forward", "gradient"]
    assert (
        first == f"stem.1      3 {EAGER}; 1 PyTorch, for the forward pass of evaluation  3 {EAGER}"
    )
    assert second.split() == f"branch.a.1 3 {EAGER} 3 {EAGER}".split()


def test_copies():
    """Tensors whose layouts no kernel reads are copied, slices of channels are not."""
    layer, (x, diff) = nn.BatchNorm2d(8), torch.randn(2, 4, 16, 9, 10)
    x.requires_grad_()
    with onedsl_torch.enable(), onedsl_torch.report(layer) as summary:
        layer(x[:, 4:12]).backward(diff[:, :8])
        layer(x[:, :8, :5, ::2]).backward(diff[:, :8, 4:, :5])
    assert by_pass(summary) == (
        {"(model)": {EAGER: 1, f"{EAGER}, copied src": 1}},
        {"(model)": {EAGER: 1, f"{EAGER}, copied src diff_dst": 1}},
    )


def rows(summary):
    """Return the table of a report. The line about huge pages depends on the kernel."""
    others = re.compile("layers by onedsl|huge pages")
    return [line for line in str(summary).splitlines() if not others.search(line)]


def test_a_report_after_the_training_names_the_remedy(x):
    """Regression: it was a table of "none"."""
    model = SmallModel()
    one_step(model, x)
    text = str(onedsl_torch.report(model))
    assert text.startswith("No batch norm was counted. Call report(model) before the training")
    assert repr(onedsl_torch.report(model)) == text
    text = str(onedsl_torch.report(nn.Linear(3, 3)))
    assert text == "No batch norm was counted. The model has no batch-norm layer of torch.nn"
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        onedsl_torch.report(one_step)


def test_uncounted_calls_are_not_called_missing(x):
    """PyTorch's gradients are not seen, and a layer may not have been called."""
    model = SmallModel()
    with onedsl_torch.report(model) as summary:
        model.stem(x).sum().backward()
    assert str(summary).startswith("0 of 1 layers by onedsl\n")
    first, second, _ = rows(summary)[1:]
    assert re.split("  +", first) == ["stem.1", f"1 {UNSEEN}", "not seen by onedsl"]
    assert re.split("  +", second) == ["branch.a.1", "none counted", "none counted"]


def test_a_layer_with_activation(x):
    layer = onedsl_torch.BatchNormAct2d(3, activation="relu")
    with onedsl_torch.report(layer) as summary:
        one_step(layer, x, x)
    assert by_pass(summary) == ({"(model)": {"onedsl with addition and ReLU": 1}},) * 2


def test_layers_without_parameters_and_functions(x):
    """The running statistics identify a layer; other calls are counted together."""
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3))
    with onedsl_torch.enable(), onedsl_torch.report(model) as summary:
        one_step(model, x.requires_grad_())
        nn.functional.batch_norm(x, None, None, training=True)
    forward, gradient = by_pass(summary)
    assert forward == {"0": {EAGER: 1}, "1": {EAGER: 1}, "(no layer of the model)": {EAGER: 1}}
    assert gradient == {"0": {EAGER: 1}, "1": {EAGER: 1}, "(no layer of the model)": {}}


class Standardized(nn.Conv2d):
    """A convolution that normalizes its weight by batch norm, as in timm."""

    def forward(self, input):
        flat = self.weight.reshape(1, len(self.weight), -1)
        weight = nn.functional.batch_norm(flat, None, None, training=True)
        return self._conv_forward(input, weight.reshape_as(self.weight), self.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 4])
def test_calls_without_tensors_of_the_model(batch, dtype):
    """Regression: they belonged to no layer. Instance norm repeats its vectors for each image."""
    instance_norms = [
        nn.InstanceNorm2d(3, affine=affine, track_running_stats=track)
        for affine in (False, True)
        for track in (False, True)
    ]
    options = {"affine": False, "track_running_stats": False, "activation": "relu"}
    layers = nn.BatchNorm2d(3), Standardized(3, 3, 1), onedsl_torch.BatchNormAct2d(3, **options)
    model = nn.Sequential(*layers, *instance_norms).to(dtype)
    x = torch.randn(batch, 3, 6, 7, dtype=dtype, requires_grad=True)
    with onedsl_torch.enable(), onedsl_torch.report(model) as summary:
        for train in (True, False, True, False):
            one_step(model.train(train), x)
    for calls in by_pass(summary):
        assert set(calls) == set("0123456")
        assert {layer: counts.total() for layer, counts in calls.items()} == dict.fromkeys(calls, 4)


class Twice(nn.Module):
    """A projector that is called twice, as in SimSiam and Barlow Twins."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3, affine=False)
        self.instance = nn.InstanceNorm2d(3)

    def forward(self, x):
        y, z = (self.last(self.first(each)) for each in (x, x.sin()))
        return self.instance(y * z)


@dynamo
@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize("reported", ["model", "compiled"])
def test_layers_without_parameters_called_twice_in_a_graph(reported, x):
    """Kernels get no tensor of the layers: the calls belong to the compiled module."""
    torch._dynamo.reset()
    models = {"model": nn.Sequential(Twice())}
    models["compiled"] = torch.compile(models["model"], backend="onedsl")
    one_step(models["compiled"], x.requires_grad_())
    with onedsl_torch.report(models[reported]) as summary:
        for _ in range(2):
            one_step(models["compiled"], x)
    forward, gradient = by_pass(summary)
    assert forward.pop("(model)") == gradient.pop("(model)") == {ALONE: 10}
    # Regression: the compiled module counted as a layer by onedsl.
    assert str(summary).startswith("2 of 2 layers unknown\n")
    unknown = "PyTorch, or onedsl in a compiled graph, in the compiled module's row"
    assert forward == {"0.first": {unknown: 4}, "0.last": {unknown: 4}}
    assert gradient == {"0.first": {}, "0.last": {}}


def test_layers_that_share_parameters(x):
    """The running statistics identify them, which kernels in compiled graphs do not get."""
    model = nn.ModuleDict({name: nn.BatchNorm2d(3) for name in "abc"})
    model["b"].weight, model["b"].bias = model["a"].weight, model["a"].bias
    with onedsl_torch.enable(), onedsl_torch.report(model) as summary:
        for name in "aabc":
            one_step(model[name], x.requires_grad_())
    expected = {"a": {EAGER: 2}, "b": {EAGER: 1}, "c": {EAGER: 1}}
    assert by_pass(summary) == (expected, expected)
    with onedsl_torch.report(model) as summary:
        for name in "ac":
            layer = model[name]
            parameters = layer.weight, layer.bias
            saved = torch.zeros(3), torch.ones(3), layer.weight, *[None] * 6
            batch_norm_training_backward(x, x, *saved)
            _, *statistics = batch_norm_training(x, *parameters, None, 1e-5, None, None)
            batch_norm_training_backward(x, x, *statistics[:2], *saved[2:])
    twice = {ALONE: 2}
    assert by_pass(summary)[1] == {"a": {}, "b": {}, "c": twice, "a or b": twice}


@dynamo
@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("use", "norm", "what"),
    [
        (lambda y, x: y * 2, None, "onedsl compiled alone"),
        (lambda y, x: y.relu(), None, "onedsl with ReLU"),
        (lambda y, x: y, onedsl_torch.BatchNormAct2d(8, activation="silu"), "onedsl with SiLU"),
        (lambda y, x: (y + x).relu(), None, "onedsl with addition and ReLU"),
        (lambda y, x: nn.functional.gelu(y, approximate="tanh"), None, "onedsl with GELU (tanh)"),
    ],
)
def test_compiled(use, norm, what, x):
    torch._dynamo.reset()
    model = torch.compile(Plain(use, norm), backend="onedsl")
    one_step(model, x)
    with onedsl_torch.report(model) as summary:
        one_step(model, x)
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


def test_counters_without_memory_or_of_several_layers():
    """Regression: both were errors of PyTorch's."""
    layer = nn.BatchNorm2d(3, device="meta")
    with onedsl_torch.report(layer) as summary:
        layer(torch.empty(4, 3, 2, 2, device="meta"))
    assert by_pass(summary)[0] == {"(model)": {}}
    layer = nn.BatchNorm2d(3, eps=np.float32(1e-3))
    layer.num_batches_tracked = torch.zeros(4)  # of torch.func.stack_module_state
    with onedsl_torch.report(layer) as summary:
        layer.num_batches_tracked += 2
    assert by_pass(summary)[0] == {"(model)": {UNSEEN: 2}}
    layer.num_batches_tracked = torch.empty(0)
    assert by_pass(onedsl_torch.report(layer))[0] == {"(model)": {}}


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


def test_nothing_is_counted_without_a_report():
    """Neither after a report was deleted, nor while another one still counts."""
    layer = nn.BatchNorm2d(3)
    outer, inner = onedsl_torch.report(layer), onedsl_torch.report(layer)
    assert len(_core.subscribers()) == 2
    with inner:
        pass
    assert len(_core.subscribers()) == 1
    layer.summary = outer  # the collector must find this cycle
    del outer, layer, inner
    gc.collect()
    assert _core.subscribers() == []


def test_a_report_that_is_deleted_during_a_call(x):
    """Regression: the report after the next one missed the call."""
    layer = nn.BatchNorm2d(3)
    cycle = [onedsl_torch.report(layer)]
    cycle.append(cycle)
    del cycle
    collecting = run_log.subscribe(lambda _: gc.collect())
    with onedsl_torch.enable(), onedsl_torch.report(layer) as summary:
        layer(x)
    collecting.close()
    assert by_pass(summary)[0] == {"(model)": {EAGER: 1}}


def test_an_interrupt_ends_counting():
    """Regression: the log went on for the rest of the process."""
    layer = nn.BatchNorm2d(3)

    def run():
        with onedsl_torch.report(layer):
            pass

    def is_own(frame):
        return frame.f_code is run.__code__ or "onedsl" in frame.f_code.co_filename

    left = [_core.subscribers() for _ in helpers.interruptions(run, is_own)]
    assert len(left) > 100
    assert not any(left)


def test_threads_at_once(x):
    layer = nn.BatchNorm2d(3)
    with (
        onedsl_torch.enable(),
        onedsl_torch.report(layer) as summary,
        ThreadPoolExecutor(8) as pool,
    ):
        [*pool.map(functools.partial(one_step, layer), [x.requires_grad_()] * 20)]
    assert by_pass(summary) == ({"(model)": {EAGER: 20}},) * 2
