"""enable: PyTorch's own ops run on onedsl's kernels, and give what PyTorch's give."""

from __future__ import annotations

import copy

import helpers
import pytest
from torch_helpers import (
    DTYPES,
    LAYERS,
    SmallModel,
    dtypes,
    dynamo,
    inputs,
    memories,
    modes,
    nn,
    onedsl_torch,
    torch,
    train_on_threads,
)

from onedsl import _core
from onedsl.torch import _aten

aten = torch.ops.aten
EPS, MOMENTUM = 1e-3, 0.25
LIMITS = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def without_cpp(monkeypatch):
    """Let Python's kernels compute all: what is in C++ has its tests in test_torch_kernels.py."""
    monkeypatch.setattr(_core, "register_torch_kernels", lambda: None)


@pytest.fixture
def calls(monkeypatch):
    """The passes that onedsl computed, in Python."""
    without_cpp(monkeypatch)
    counts = {"forward": 0, "backward": 0}

    def counting(name, function):
        def count(*args, **kwargs):
            answer = function(*args, **kwargs)
            counts[name] += answer is not None
            return answer

        return count

    monkeypatch.setattr(_aten, "normalize", counting("forward", _aten.normalize))
    monkeypatch.setattr(_aten, "run", counting("backward", _aten.run))
    with onedsl_torch.enable():
        yield counts
    assert not onedsl_torch.enabled()


def state(channels, dtype=torch.float32):
    """Weight, bias, running mean and running variance."""
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(channels, generator=generator).add(0.5).to(dtype) for _ in range(4)]


def off(ours, exact):
    ours, exact = ours.detach().double(), exact.detach().double()
    return float((ours - exact).norm() / exact.norm())


def check_op(op, src, *arguments):
    """Compare an op's outputs, and what it writes to, with those in float64."""
    ours = [copy.deepcopy(a) for a in (src, *arguments)]
    exact = [a.double() if isinstance(a, torch.Tensor) else copy.deepcopy(a) for a in ours]
    with torch.no_grad():
        got, wanted = op(*ours), op(*exact)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        if a.numel():
            assert off(a, b) < LIMITS[a.dtype]
    for a, b in zip(ours, exact, strict=True):
        if isinstance(a, torch.Tensor):
            assert off(a, b) < LIMITS[a.dtype]
    assert got[0].stride() == src.stride()
    return got


FORWARD = {
    "native_batch_norm": lambda w, b, m, v: (w, b, m, v, True, MOMENTUM, EPS),
    "_native_batch_norm_legit": lambda w, b, m, v: (w, b, m, v, True, MOMENTUM, EPS),
    "_native_batch_norm_legit.no_stats": lambda w, b, _m, _v: (w, b, True, MOMENTUM, EPS),
    "_native_batch_norm_legit_functional": lambda w, b, m, v: (w, b, m, v, True, MOMENTUM, EPS),
    "_batch_norm_with_update": lambda w, b, m, v: (w, b, m, v, MOMENTUM, EPS),
    "_batch_norm_with_update_functional": lambda w, b, m, v: (w, b, m, v, MOMENTUM, EPS),
}


def overload(name):
    packet, _, which = name.partition(".")
    return getattr(getattr(aten, packet), which or "default")


@dtypes
@memories
@pytest.mark.parametrize("name", FORWARD)
def test_forward_ops(calls, name, dtype, rank, memory):
    src, _ = inputs(rank, dtype, memory)
    check_op(overload(name), src, *FORWARD[name](*state(src.shape[1])))
    assert calls["forward"] == 1


@dtypes
@memories
@modes
@pytest.mark.parametrize("name", ["native_batch_norm_backward", "batch_norm_backward"])
@pytest.mark.parametrize("mask", [(1, 1, 1), (1, 0, 0), (1, 1, 0), (1, 0, 1)])
def test_backward_ops(calls, name, dtype, rank, memory, train, mask):
    src, diff_dst = inputs(rank, dtype, memory)
    weight, _, mean, variance = state(src.shape[1])
    arguments = (
        src,
        weight,
        mean,
        variance,
        mean,
        variance.rsqrt(),
        train,
        EPS,
        [*map(bool, mask)],
    )
    reserve = () if name.startswith("native") else (torch.empty(0, dtype=torch.uint8),)
    gradients = getattr(aten, name)(diff_dst, *arguments, *reserve)
    exact = [a.double() if isinstance(a, torch.Tensor) else a for a in arguments]
    wanted = getattr(aten, name)(diff_dst.double(), *exact, *reserve)
    for ours, theirs, asked in zip(gradients, wanted, mask, strict=True):
        assert (ours is None) == (not asked)
        if asked:
            assert off(ours, theirs) < LIMITS[ours.dtype]
    assert gradients[0].stride() == src.stride()
    assert calls["backward"] == 1


@pytest.mark.parametrize("absent", [(0,), (1,), (0, 1), (2, 3), (0, 1, 2, 3)])
def test_absent_arguments(calls, absent):
    src, diff_dst = inputs(2, "f32")
    given = [None if i in absent else t for i, t in enumerate(state(src.shape[1]))]
    _, mean, spread = check_op(aten.native_batch_norm, src, *given, True, MOMENTUM, EPS)
    flags = True, EPS, [True, given[0] is not None, given[1] is not None]
    check = (src, given[0], given[2], given[3], mean, spread, *flags)
    got = aten.native_batch_norm_backward(diff_dst, *check)
    exact = [t.double() if isinstance(t, torch.Tensor) else t for t in check]
    wanted = aten.native_batch_norm_backward(diff_dst.double(), *exact)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or off(ours, theirs) < 2e-6
    assert calls == {"forward": 1, "backward": 1}


def theirs_and_ours(layer, src):
    """Outputs, gradients and buffers of a layer, by PyTorch and under enable()."""
    results = []
    for way in "theirs", "ours":
        twin, x = copy.deepcopy(layer), src.detach().requires_grad_()
        if way == "ours":
            with onedsl_torch.enable():
                y = twin(x)
                y.square().sum().backward()
        else:
            y = twin(x)
            y.square().sum().backward()
        grads = [p.grad for p in twin.parameters()]
        results.append([y.detach(), x.grad, *grads, *twin.buffers()])
    return results


OTHERS = {
    "float64": lambda: (nn.BatchNorm2d(5).double(), torch.randn(4, 5, 6, 7).double()),
    "parameters of bf16": lambda: (
        nn.BatchNorm2d(5).bfloat16(),
        torch.randn(4, 5, 6).bfloat16()[..., None],
    ),
    "no parameters, bf16": lambda: (
        nn.BatchNorm2d(5, affine=False, track_running_stats=False),
        torch.randn(4, 5, 6, 7).bfloat16(),
    ),
    "axes in another order": lambda: (
        nn.BatchNorm2d(5),
        torch.randn(6, 4, 7, 5).permute(1, 3, 0, 2),
    ),
    "gaps": lambda: (nn.BatchNorm2d(5), torch.randn(4, 5, 6, 14)[..., ::2]),
    "empty": lambda: (nn.BatchNorm2d(5), torch.randn(0, 5, 6, 7)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_onedsl_has_not_is_pytorch_s_to_the_bit(what):
    layer, src = OTHERS[what]()
    for a, b in zip(*theirs_and_ours(layer, src), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_evaluation_is_pytorch_s_forward_pass(calls):
    layer, src = nn.BatchNorm2d(5).eval(), inputs(2, "f32")[0]
    output = layer(src)
    assert calls["forward"] == 0
    onedsl_torch.disable()
    assert torch.equal(output, layer(src))


@pytest.mark.parametrize(
    "arguments",
    [
        {"running_mean": None},
        {"weight": torch.ones(4)},
        {"running_var": torch.ones(4)},
        {"input": torch.ones(1, 5, 1, 1)},
        {"input": torch.ones(5)},
        {"running_mean": torch.ones(5).double()},
    ],
    ids=str,
)
def test_mistakes_have_pytorch_s_words(monkeypatch, arguments):
    without_cpp(monkeypatch)
    given = {
        "input": torch.ones(4, 5, 6, 7),
        **dict(zip(("weight", "bias", "running_mean", "running_var"), state(5), strict=True)),
        **arguments,
    }
    results = []
    for way in "theirs", "ours":
        if way == "ours":
            onedsl_torch.enable()
        try:
            results.append(nn.functional.batch_norm(**given, training=True).sum().item())
        except (RuntimeError, ValueError, IndexError) as error:
            results.append((type(error), str(error)))
        finally:
            onedsl_torch.disable()
    assert str(results[0]) == str(results[1])


@pytest.mark.parametrize("kind", ["expanded", "strided", "other_order"])
@modes
def test_gradients_that_lie_otherwise(calls, kind, train):
    src, diff_dst = inputs(2, "f32")
    diff_dst = {
        "expanded": lambda t: t[..., :1, :1].expand_as(src),
        "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
        "other_order": lambda t: t.to(memory_format=torch.channels_last),
    }[kind](diff_dst)
    layer = nn.BatchNorm2d(5, eps=EPS).train(train)
    exact = copy.deepcopy(layer).double()
    a, b = src.clone().requires_grad_(), src.double().requires_grad_()
    layer(a).backward(diff_dst)
    exact(b).backward(diff_dst.double())
    assert off(a.grad, b.grad) < 2e-6
    assert calls["backward"] == 1


def test_autograd_stays_pytorch_s(calls):
    src = inputs(2, "f32")[0].requires_grad_()
    assert type(nn.BatchNorm2d(5)(src).grad_fn).__name__ == "NativeBatchNormBackward0"
    assert calls["forward"] == 1


@modes
def test_second_derivatives(calls, train):
    layer, (src, diff_dst) = nn.BatchNorm2d(5, eps=EPS).train(train), inputs(2, "f32")
    found = []
    for kind in torch.float32, torch.float64:
        x = src.to(kind).requires_grad_()
        y = copy.deepcopy(layer).to(kind)(x)
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((first * diff_dst.to(kind)).sum(), x)[0])
    assert off(*found) < 1e-5
    assert calls["backward"] > 0


def test_switching():
    assert not onedsl_torch.enabled()
    onedsl_torch.disable()
    outer = onedsl_torch.enable()
    assert onedsl_torch.enabled()
    with onedsl_torch.enable():
        pass
    assert onedsl_torch.enabled(), "the inner block leaves what it found"
    with outer:
        pass
    assert not onedsl_torch.enabled()


def test_disable_brings_pytorch_s_bits_back():
    layer, src = nn.BatchNorm2d(5), torch.randn(64, 5, 20, 20)
    before = layer(src)
    with onedsl_torch.enable():
        between = layer(src)
    assert torch.equal(before, layer(src))
    assert not torch.equal(before, between)


def test_an_error_ends_the_block():
    with pytest.raises(ZeroDivisionError), onedsl_torch.enable():
        _ = 1 / 0
    assert not onedsl_torch.enabled()


@dynamo
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", ["script", "trace", "export"])
def test_scripts_traces_and_exported_programs_run_onedsl(how, calls):
    model, x = SmallModel(), torch.randn(4, 3, 6, 6)
    theirs = copy.deepcopy(model).double()
    if how == "script":
        run = torch.jit.script(model)
    elif how == "trace":
        run = torch.jit.trace(model, x)
    else:
        run = torch.export.export(model, (x,)).run_decompositions({}).module()
    calls["forward"] = 0
    output = run(x)
    assert calls["forward"] == 3
    assert off(output, theirs(x.double())) < 1e-5


@dynamo
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models_are_right(backend, calls):
    torch._dynamo.reset()
    model, x = SmallModel(), torch.randn(4, 3, 6, 6)
    exact = copy.deepcopy(model).double()
    torch.compile(model, fullgraph=True, backend=backend)(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    # inductor takes batch norm to pieces; aot_eager runs PyTorch's ops, whose kernels are onedsl's.
    assert (calls["forward"] == 0) == (backend == "inductor")
    for p, q in zip(model.parameters(), exact.parameters(), strict=True):
        assert float((p.grad.double() - q.grad).abs().max()) < 1e-4 * float(q.grad.abs().max() + 1)


def test_threads_train_at_once(calls):
    train_on_threads(*inputs(2, "f32"), steps=20)
    assert calls["forward"] == 81


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("way", ["enable", "fuse"])
def test_losses_of_20_steps_follow_pytorch_s(dtype, memory, way):
    torch.manual_seed(0)
    model = SmallModel()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 3, 6, 6, generator=generator)
    y = torch.randint(4, (64,), generator=generator)

    def train(model):
        if memory == "channels_last":
            model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item()

    theirs = list(train(copy.deepcopy(model)))
    if way == "fuse":
        ours = list(train(onedsl_torch.fuse(model)))
    else:
        with onedsl_torch.enable():
            ours = list(train(model))
    assert theirs[-1] < 0.8 * theirs[0]
    limit = 1e-3 if dtype == "f32" else 0.05
    assert max(abs(a - b) for a, b in zip(theirs, ours, strict=True)) < limit


def test_a_process_of_every_day():
    """No word on stderr, with DDP, DataLoader's workers and the profiler, and no warning."""
    child = helpers.run_script(helpers.TESTS / "programs" / "torch_enabled.py")
    assert (child.returncode, child.stdout, child.stderr) == (0, "trained\n", "")


# PyTorch's own samples


@pytest.fixture(params=["C++", "Python"])
def kernels(request, monkeypatch):
    if request.param == "Python":
        without_cpp(monkeypatch)
    with onedsl_torch.enable():
        yield


@pytest.fixture(scope="module")
def databases():
    pytest.importorskip("expecttest", reason="torch.testing needs it: pip install '.[test]'")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    return op_db, module_db


OPS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "nn.functional.batch_norm",
)


def flat(values):
    values = values if isinstance(values, (tuple, list)) else [values]
    return [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]


@pytest.mark.parametrize("name", OPS)
@dtypes
@pytest.mark.usefixtures("kernels")
def test_samples_of_pytorch_s_ops(databases, name, dtype):
    compared = 0
    for info in (info for info in databases[0] if info.name == name):
        for sample in info.sample_inputs("cpu", DTYPES[dtype], requires_grad=True):
            exact = sample.transform(
                lambda t: (
                    t.detach().double().requires_grad_(t.requires_grad)
                    if isinstance(t, torch.Tensor)
                    else t
                )
            )
            outputs = []
            for s in sample, exact:
                output = flat(info.op(s.input, *s.args, **s.kwargs))
                wrt = [
                    t
                    for t in (s.input, *s.args, *s.kwargs.values())
                    if isinstance(t, torch.Tensor) and t.requires_grad
                ]
                grads = torch.autograd.grad(output[0].square().sum(), wrt, allow_unused=True)
                outputs.append([*output, *(g for g in grads if g is not None)])
            for a, b in zip(*outputs, strict=True):
                assert torch.allclose(
                    a.double(),
                    b,
                    rtol=300 * LIMITS[a.dtype],
                    atol=1000 * LIMITS[a.dtype],
                    equal_nan=True,
                )
                compared += 1
    assert compared > 10


@pytest.mark.parametrize("rank", LAYERS)
@pytest.mark.usefixtures("kernels")
def test_samples_of_pytorch_s_layers(databases, rank):
    infos = [info for info in databases[1] if info.module_cls is LAYERS[rank]]
    compared = 0
    for sample in infos[0].module_inputs_func(
        infos[0], device="cpu", dtype=torch.float32, requires_grad=True, training=True
    ):
        made = sample.constructor_input
        layer = LAYERS[rank](*made.args, **made.kwargs)
        exact = copy.deepcopy(layer).double()
        (x,) = sample.forward_input.args
        y = x.detach().double().requires_grad_()
        for module, given in ((layer, x), (exact, y)):
            module(given).square().sum().backward()
        pairs = [(x.grad, y.grad), *zip(layer.buffers(), exact.buffers(), strict=True)]
        for a, b in pairs:
            assert torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared > 5
