"""enable's kernels in C++: plain calls have the bits of those in Python, others are passed on."""

from __future__ import annotations

import copy
import logging
import re
import resource
from pathlib import Path

import pytest
from torch_helpers import (
    CHANNELS_LAST,
    DTYPES,
    dtypes,
    inputs,
    memories,
    modes,
    nn,
    onedsl_torch,
    torch,
    train_on_threads,
)

import onedsl
from onedsl import _core
from onedsl.torch import _aten

aten = torch.ops.aten
EPS, MOMENTUM = 1e-3, 0.25


@pytest.fixture(autouse=True)
def kernels():
    """PyTorch 2.13 has all that the kernels need: without this, the tests would compare nothing."""
    registered = _core.register_torch_kernels()
    assert registered is not None
    del registered


@pytest.fixture
def passed_on(monkeypatch):
    """The ops that C++ passed on to Python, while onedsl is enabled."""
    ops = []
    telling = _aten._telling

    def noting(kernel):
        told = telling(kernel)

        def note(*arguments):
            ops.append("backward" if isinstance(arguments[-1], list) else "forward")
            return told(*arguments)

        return note

    monkeypatch.setattr(_aten, "_telling", noting)
    with onedsl_torch.enable():
        yield ops


def in_python(call):
    """Let the kernels in Python compute, as with a PyTorch that has no interface for C++."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "register_torch_kernels", lambda: None)
        onedsl_torch.disable()
        with onedsl_torch.enable():
            return call()


def by_pytorch(call):
    onedsl_torch.disable()
    return call()


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def state(channels):
    """Weight, bias, running mean and running variance."""
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(channels, generator=generator) + 0.5 for _ in range(4)]


def forward(src, vectors, training=True, eps=EPS):
    """Give the results, and what became of the running statistics."""
    vectors = [copy.deepcopy(v) for v in vectors]
    results = aten.native_batch_norm(src, *vectors, training, MOMENTUM, eps)
    return *results, *vectors[2:]


def backward(src, diff_dst, weight, running, saved, train=True, mask=(1, 1, 1)):
    return aten.native_batch_norm_backward(
        diff_dst, src, weight, *running, *saved, train, EPS, [*map(bool, mask)]
    )


@dtypes
@memories
@pytest.mark.parametrize("absent", [(), (0, 1), (2, 3)], ids=str)
def test_forward_pass(passed_on, dtype, rank, memory, absent):
    src, _ = inputs(rank, dtype, memory)
    vectors = [None if i in absent else v for i, v in enumerate(state(src.shape[1]))]
    ours = forward(src, vectors)
    assert not passed_on
    assert ours[0].stride() == src.stride()
    same(ours, in_python(lambda: forward(src, vectors)))


@dtypes
@memories
def test_evaluation_is_pytorch_s(passed_on, dtype, rank, memory):
    src, _ = inputs(rank, dtype, memory)
    for vectors in state(src.shape[1]), [None, None, *state(src.shape[1])[2:]]:
        if vectors[0] is None and dtype != "f32":
            continue  # PyTorch refuses that
        ours = forward(src, vectors, training=False)
        assert not passed_on
        same(ours, by_pytorch(lambda v=vectors: forward(src, v, training=False)))
        onedsl_torch.enable()


@modes
@pytest.mark.parametrize("grad", ["grad", "no_grad", "inference_mode"])
def test_layers_in_pytorch_s_modes(passed_on, train, grad):
    layer = nn.BatchNorm2d(5).train(train)

    def run():
        twin, x = copy.deepcopy(layer), SRC.clone().requires_grad_()
        if grad != "grad":
            with getattr(torch, grad)():
                return twin(x), twin(SRC), twin.running_var.clone()
        y = twin(x)
        y.square().sum().backward()
        return y.detach(), x.grad, twin.weight.grad, twin.bias.grad, twin.running_var

    ours = run()
    assert not passed_on
    same(ours, in_python(run))


@dtypes
@memories
@modes
@pytest.mark.parametrize("mask", [(1, 1, 1), (1, 0, 0), (1, 1, 0), (1, 0, 1)], ids=str)
def test_gradient(passed_on, dtype, rank, memory, train, mask):
    src, diff_dst = inputs(rank, dtype, memory)
    weight, _, mean, variance = state(src.shape[1])
    for given in weight, None:
        arguments = (src, diff_dst, given, (mean, variance), (mean, variance.rsqrt()), train, mask)
        ours = backward(*arguments)
        assert not passed_on
        same(ours, in_python(lambda a=arguments: backward(*a)))
        onedsl_torch.enable()


def test_small_results_are_pytorch_s_own_memory(passed_on):
    src, diff_dst = torch.randn(2, 3, 5, 4, 9)
    results = forward(src, state(5))[:3]
    gradients = backward(src, diff_dst, None, (None, None), results[1:3])
    assert not passed_on
    for t in (*results, *gradients):
        assert t.data_ptr() % 64 == 0
        assert t.untyped_storage().resizable()


def page_flags(address):
    """Give the kernel's flags of the mapping that has an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, last = (int(bound, 16) for bound in bounds.groups())
            inside = first <= address < last
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no such mapping")


@memories
def test_large_results_ask_for_large_pages(passed_on, rank, memory):
    """PyTorch's own memory has a page fault for each 4 KB, NumPy's has not, and nor has this."""
    shape = {1: (64, 5, 8192), 2: (64, 5, 90, 91), 3: (64, 5, 20, 20, 21)}[rank]
    src, diff_dst = (
        torch.randn(shape).contiguous(
            memory_format=CHANNELS_LAST[rank]
            if memory == "channels_last"
            else torch.contiguous_format
        )
        for _ in range(2)
    )
    dst, mean, spread = forward(src, state(5))[:3]
    diff_src, *_ = backward(src, diff_dst, None, (None, None), (mean, spread))
    assert not passed_on
    for t in dst, diff_src:
        assert t.data_ptr() % 64 == 0
        assert (t.device, t.dtype, t.stride()) == (src.device, src.dtype, src.stride())
        if Path("/sys/kernel/mm/transparent_hugepage").exists():
            assert "hg" in page_flags(t.data_ptr() + t.nbytes // 2)
    same(
        (dst, diff_src),
        in_python(
            lambda: (
                forward(src, state(5))[0],
                backward(src, diff_dst, None, (None, None), (mean, spread))[0],
            )
        ),
    )


SRC, _ = inputs(2, "f32")
FOUR = state(5)
ODD_FORWARD = {
    "evaluation without weights in bf16": (SRC.bfloat16(), [None, None, *FOUR[2:]], False),
    "float64": (SRC.double(), [v.double() for v in FOUR]),
    "axes in another order": (torch.randn(6, 4, 7, 5).permute(1, 3, 0, 2), FOUR),
    "gaps": (torch.randn(4, 5, 6, 14)[..., ::2], FOUR),
    "no bias": (SRC, [FOUR[0], None, *FOUR[2:]]),
    "no weight": (SRC, [None, *FOUR[1:]]),
    "vectors with gaps": (SRC, [torch.rand(5, 2)[:, 0], *FOUR[1:]]),
    "weight in a matrix": (SRC, [torch.rand(5, 1), *FOUR[1:]]),
    "no epsilon": (SRC, FOUR, True, 0.0),
    "nothing in bf16": (SRC.bfloat16(), [None] * 4),
    "parameters of bf16": (SRC.bfloat16(), [v.bfloat16() for v in FOUR]),
    "one value a channel": (torch.randn(1, 5, 1, 1), FOUR),
    "unaligned": (
        torch.frombuffer(bytearray(4 * 60 + 1), dtype=torch.float32, offset=1).view(3, 5, 4),
        FOUR,
    ),
}


@pytest.mark.parametrize("what", ODD_FORWARD)
def test_other_forward_passes_are_passed_on(passed_on, what):
    ours = forward(*ODD_FORWARD[what])
    assert passed_on == ["forward"]
    same(ours, in_python(lambda: forward(*ODD_FORWARD[what])))


SAVED = FOUR[2], FOUR[3].rsqrt()
ODD_BACKWARD = {
    "float64": (SRC.double(), SRC.double(), None, (None, None), [v.double() for v in SAVED]),
    "no gradient of src": (SRC, SRC, None, (None, None), SAVED, True, (0, 1, 1)),
    "gradient that lies otherwise": (
        SRC,
        SRC.to(memory_format=torch.channels_last),
        None,
        (None, None),
        SAVED,
    ),
    "gradient of one value": (SRC, torch.ones(()).expand_as(SRC), None, (None, None), SAVED),
    "gradient of another type": (SRC, SRC.double(), None, (None, None), SAVED),
    "weight of float64": (SRC, SRC, FOUR[0].double(), (None, None), SAVED),
}


@pytest.mark.parametrize("what", ODD_BACKWARD)
def test_other_gradients_are_passed_on(passed_on, what):
    def call():
        try:
            return backward(*ODD_BACKWARD[what])
        except RuntimeError as error:
            return str(error)

    ours = call()
    assert passed_on == ["backward"]
    theirs = in_python(call)
    if isinstance(ours, str):
        assert ours == theirs
    else:
        same(ours, theirs)


MISTAKES = {
    "weight of float64": lambda: forward(SRC, [FOUR[0].double(), *FOUR[1:]]),
    "parameters of f16": lambda: forward(SRC, [v.half() for v in FOUR]),
    "whole numbers": lambda: forward(SRC.int(), [None] * 4),
    "empty": lambda: forward(torch.randn(0, 5, 2, 2), FOUR),
    "one running statistic": lambda: forward(SRC, [*FOUR[:3], None]),
    "no channels": lambda: forward(torch.ones(5), FOUR),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_have_pytorch_s_words(passed_on, capfd, what):
    with pytest.raises(RuntimeError) as ours:
        MISTAKES[what]()
    assert passed_on == ["forward"]
    with pytest.raises((RuntimeError, IndexError, ValueError)) as theirs:
        by_pytorch(MISTAKES[what])
    # An error that is no RuntimeError comes as one, and says what it was.
    kind = "" if theirs.type is RuntimeError else f"{theirs.type.__name__}: "
    assert str(ours.value) == f"{kind}{theirs.value}"
    assert ours.type is RuntimeError
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "error", [RuntimeError(), RuntimeError("words"), KeyboardInterrupt()], ids=repr
)
def test_what_a_kernel_in_python_raises_is_raised(monkeypatch, error):
    def fail(*_arguments):
        raise error

    monkeypatch.setitem(_aten._KERNELS, "native_batch_norm", fail)
    kind = "" if type(error) is RuntimeError else "KeyboardInterrupt: "
    with onedsl_torch.enable(), pytest.raises(RuntimeError) as raised:
        nn.BatchNorm2d(5).double()(SRC.double())
    assert str(raised.value) == f"{kind}{error}"


def test_an_error_leaves_the_next_call_alone(passed_on):
    with pytest.raises(RuntimeError):
        MISTAKES["weight of float64"]()
    assert len(forward(SRC.double(), [None] * 4)) == 5
    assert passed_on == ["forward", "forward"]


@pytest.mark.parametrize("what", ["symbols", "schema"])
def test_other_pytorches_are_served_from_python(monkeypatch, what):
    if what == "symbols":
        monkeypatch.setattr(_core, "register_torch_kernels", lambda: None)
    else:
        monkeypatch.setattr(_aten, "_IN_CPP", dict.fromkeys(_aten._IN_CPP, "(Tensor x) -> Tensor"))
    computed = []
    normalize = _aten.normalize
    monkeypatch.setattr(_aten, "normalize", lambda *a: computed.append(1) or normalize(*a))
    with onedsl_torch.enable():
        nn.BatchNorm2d(5)(SRC)
    assert computed


def test_what_listens_is_told(passed_on, caplog):
    """C++ has nobody to tell: while somebody listens, all goes through Python."""
    with caplog.at_level(logging.INFO, logger="onedsl"), onedsl.verbose():
        nn.BatchNorm2d(5)(SRC.clone().requires_grad_()).sum().backward()
    assert passed_on == ["forward", "backward"]
    assert [line.split()[0] for line in caplog.messages] == [
        "BatchNormForwardTraining",
        "BatchNormTrainingBackward",
    ]


def test_both_lanes_share_a_plan(passed_on):
    onedsl.clear_plans()
    vectors = state(5)
    results = forward(SRC, vectors)
    backward(SRC, SRC, None, (None, None), results[1:3])
    assert not passed_on
    made = _core.plan_counts()
    assert made[0] == 2
    with onedsl.verbose():
        forward(SRC, vectors)
        backward(SRC, SRC, None, (None, None), results[1:3])
    assert passed_on == ["forward", "backward"]
    assert _core.plan_counts() == made


def test_kernels_go_with_disable():
    onedsl_torch.enable()
    onedsl_torch.disable()
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("onedsl::_native")]
    assert not names
    src = torch.randn(64, 5, 20, 20)
    before = forward(src, state(5))
    with onedsl_torch.enable():
        assert not torch.equal(forward(src, state(5))[0], before[0])
    same(forward(src, state(5)), before)


def test_nothing_is_kept(passed_on):
    """Of steps whose tensors have 6 MB each, nor of those that are passed on."""
    layer = nn.BatchNorm2d(5)

    def step(dtype):
        x = torch.randn(8, 5, 192, 192, dtype=dtype, requires_grad=True)
        layer.to(dtype)(x).square().sum().backward()

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for dtype in (torch.float32, torch.float64):
        step(dtype)
    before = peak()
    for dtype in (torch.float32, torch.float64):
        for _ in range(200):
            step(dtype)
    assert len(passed_on) == 402
    assert peak() - before < 200 << 10  # KiB


def test_threads_train_at_once(passed_on):
    train_on_threads(*inputs(2, "f32"), steps=50)
    assert not passed_on


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripts_and_traces(passed_on, how):
    model = nn.Sequential(nn.Conv2d(5, 5, 1), nn.BatchNorm2d(5))
    run = torch.jit.script(model) if how == "script" else torch.jit.trace(model, SRC)
    passed_on.clear()
    output = run(SRC)
    assert not passed_on
    assert torch.equal(output, in_python(lambda: model(SRC)))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "f16"])
def test_autocast_and_autograd(passed_on, dtype):
    model = nn.Sequential(nn.Conv2d(5, 5, 1), nn.BatchNorm2d(5))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        output = model(SRC)
    assert output.dtype is DTYPES[dtype]
    assert type(output.grad_fn).__name__ == "NativeBatchNormBackward0"
    output.float().square().sum().backward()
    assert not passed_on
