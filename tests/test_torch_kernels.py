"""The kernels that `enable` registers with PyTorch, called as ops.

The laws call PyTorch's functions. Here are the other ops, and the arguments that only ops have; any
strides; what PyTorch's own kernels compute, and its errors; memory; exceptions in the run log.
"""

import contextlib
import copy
import ctypes
import functools
import gc
import logging
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import helpers
import pytest
from torch_helpers import (
    DTYPES,
    LIMITS,
    inputs,
    modes,
    nn,
    onedsl_torch,
    relative_error,
    state,
    torch,
)

import onedsl

aten = torch.ops.aten
EPS, MOMENTUM = 1e-3, 0.25
FORWARD, BACKWARD = "BatchNormForwardTraining", "BatchNormTrainingBackward"
ALL = (True, True, True)


@pytest.fixture
def runs():
    """A function that returns the ops that onedsl ran since its last call.

    Or, with "reason", the reasons why it left ops to PyTorch's own kernels.
    """

    def since_last_call(what="operation"):
        values = [getattr(record, what, None) for record in records]
        records.clear()
        return [value for value in values if value]

    with helpers.run_records() as records, onedsl_torch.enable():
        yield since_last_call


def by_pytorch(call):
    onedsl_torch.disable()
    try:
        return call()
    finally:
        onedsl_torch.enable()


@pytest.fixture(autouse=True)
def disabled_afterwards():
    yield
    onedsl_torch.disable()


def in_double(value):
    """Return a tensor in float64, and any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def assert_close(ours, exact):
    if ours.numel():
        assert relative_error(ours, exact) < LIMITS[ours.dtype]


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def check(op, *arguments):
    """Compare an op's outputs, and what it writes to its arguments, with those in float64."""
    exact = [in_double(argument) for argument in arguments]
    got = op(*arguments)
    for a, b in zip((*got, *arguments), (*op(*exact), *exact), strict=True):
        assert (a is None) == (b is None)
        if isinstance(a, torch.Tensor):
            assert a.shape == b.shape
            assert_close(a, b)
    return got


# With the number of vectors that each has.
FORWARD_OPS = {
    aten.native_batch_norm.default: 4,
    aten._native_batch_norm_legit.default: 4,
    aten._native_batch_norm_legit_functional.default: 4,
    aten._native_batch_norm_legit.no_stats: 2,
}


@pytest.mark.parametrize("momentum", [MOMENTUM, 0.0, 1.0])
@pytest.mark.parametrize("op", FORWARD_OPS, ids=str)
def test_forward_ops(runs, op, momentum):
    """Regression: a momentum of 0 was also what selected the statistics of the batch."""
    src, _ = inputs(2, "bf16", "channels_last")
    got = check(op, src, *state(5)[: FORWARD_OPS[op]], True, momentum, EPS)
    assert got[0].stride() == src.stride()
    assert runs() == [FORWARD]


@modes
def test_backward_op(runs, train):
    """Regression: eps 0 selected the meaning of the variance, although the saved value has eps."""
    src, diff_dst = inputs(2, "f32", "channels_last")
    weight, _, mean, variance = state(5)
    for mask in ALL, (True, False, False), (True, True, False), (True, False, True):
        rest = mean, variance, mean, variance.rsqrt(), train, 0.0 if train else EPS, list(mask)
        for given in weight, None:
            got = check(aten.native_batch_norm_backward, diff_dst, src, given, *rest)
            assert [g is not None for g in got] == list(mask)
            assert got[0].stride() == src.stride()
            assert runs() == [BACKWARD]


@pytest.mark.parametrize("absent", [(0,), (1,), (0, 1), (2, 3), (0, 1, 2, 3)], ids=str)
def test_absent_arguments(runs, absent):
    src, diff_dst = inputs(2, "f32")
    weight, bias, *running = (None if i in absent else t for i, t in enumerate(state(5)))
    rest = weight, bias, *running, True, MOMENTUM, EPS
    _, *saved = check(aten.native_batch_norm, src, *rest)
    rest = weight, *running, *saved, True, EPS, [True, weight is not None, bias is not None]
    check(aten.native_batch_norm_backward, diff_dst, src, *rest)
    assert runs() == [FORWARD, BACKWARD]


def unaligned(tensor):
    memory = bytearray(1) + tensor.numpy().tobytes()
    return torch.frombuffer(memory, dtype=torch.float32, offset=1).view(tensor.shape)


@modes
def test_unaligned_tensors(runs, train):
    src, diff_dst = inputs(2, "f32")
    weight, bias, mean, variance = state(5)
    vectors = weight, bias, mean, variance
    got = check(aten.native_batch_norm, unaligned(src), *vectors, True, MOMENTUM, EPS)
    assert got[0].stride() == src.stride()
    rest = mean, variance, mean, variance.rsqrt(), train, EPS, list(ALL)
    got = check(aten.native_batch_norm_backward, unaligned(diff_dst), src, weight, *rest)
    assert got[0].stride() == src.stride()
    assert runs() == [FORWARD, BACKWARD]


def random_view(random, shape, dtype):
    """Return a permuted, sliced or expanded tensor."""
    axes = range(len(shape))
    order, step, start = random.sample(axes, len(shape)), random.choice([1, 1, 2]), 0
    sizes = [size * step for size in shape]
    if random.random() < 0.3:
        start = random.randrange(3)
        sizes[random.choice(axes)] += start
    if random.random() < 0.2:
        sizes = [random.choice([size, 1]) for size in sizes]
    if random.random() < 0.3:
        order = [*axes] if random.random() < 0.5 else [0, *axes[2:], 1]
    dense = torch.rand([sizes[axis] for axis in order]).to(dtype)
    view = dense.permute([order.index(axis) for axis in axes])
    steps = [
        slice(None, None, step if n > size else 1)
        for n, size in zip(view.shape, shape, strict=True)
    ]
    view = view[tuple(steps)]
    last = [slice(max(n - size, 0), None) for n, size in zip(view.shape, shape, strict=True)]
    return view[tuple(last)].expand(shape)


def both_passes(src, diff_dst, train):
    weight, bias, mean, variance = state(src.shape[1])
    running = (None, None) if train else (mean, variance)
    return (
        *aten.native_batch_norm(src, weight, bias, None, None, True, MOMENTUM, EPS),
        *backward(src, diff_dst, weight, (mean, variance.rsqrt()), train, running=running),
    )


@modes
def test_views(runs, train):
    """Strides of the results are PyTorch's, bits are those of dense copies in src's order."""
    random, is_other_order = Random(5), set()
    for _ in range(150):
        shape = random.choices([1, 2, 3, 5, 18], k=random.randint(1, 4))
        shape.insert(0, random.randint(1 if max(shape[1:], default=1) > 1 else 2, 4))
        dtype = random.choice([*DTYPES.values()])
        views = [random_view(random, shape, dtype) for _ in range(2)]
        strides = [t.stride() for t in views]
        got = both_passes(*views, train)
        assert runs() == [FORWARD, BACKWARD]
        theirs = by_pytorch(functools.partial(both_passes, *views, train))
        assert [t.stride() for t in got] == [t.stride() for t in theirs], strides
        if 0 not in strides[0]:  # where PyTorch's copy may have another order of the axes
            copies = both_passes(*(t.clone() for t in views), train)
            assert all(map(torch.equal, got, copies)), strides
            is_other_order.add(got[0].stride() != strides[0])
        runs()
    assert is_other_order == {True, False}


# Calls that PyTorch's own kernels compute


SRC, _ = inputs(2, "f32")
FOUR = state(5)


def forward(src, vectors, training=True, eps=EPS):
    """Return the results and the updated running statistics."""
    vectors = [copy.deepcopy(v) for v in vectors]
    results = aten.native_batch_norm(src, *vectors, training, MOMENTUM, eps)
    return *results, *vectors[2:]


def backward(src, diff_dst, weight, saved, train=True, mask=ALL, running=(None, None)):
    return aten.native_batch_norm_backward(
        diff_dst, src, weight, *running, *saved, train, EPS, list(mask)
    )


TYPES = "dtypes other than float32, bfloat16 and float16"
VECTORS = "parameters and statistics"
FEW = "fewer than two values per channel"
EPSILONS = "an eps that is not positive and finite in float32"
SAVED = FOUR[2], FOUR[3].rsqrt()
WIDE = [v.double() for v in FOUR]


def of_shared_memory(shared):
    """Call the forward pass with running statistics in the memory of another argument."""
    src, weight, bias, mean, variance = (t.clone() for t in (SRC, *FOUR))
    mean, variance = {
        "weight": (weight, variance),
        "bias": (mean, bias),
        "part of src": (mean, src.flatten()[3:8].abs_()),
        "each other": src.new_ones(6).unfold(0, 5, 1),
    }[shared]
    vectors = weight, bias, mean, variance
    return (*aten.native_batch_norm(src, *vectors, True, 0.9, 1e-5), *vectors)


def of_float64(op, count):
    vectors = [v.clone() for v in WIDE[:count]]
    return *op(SRC.double(), *vectors, True, MOMENTUM, EPS), *vectors


# The reason in the run log, and the call.
UNSUPPORTED = {
    "evaluation": ("the forward pass of evaluation", lambda: forward(SRC, FOUR, False)),
    "evaluation without weight in bf16": (
        "the forward pass of evaluation",
        lambda: forward(SRC.bfloat16(), [None, None, *FOUR[2:]], False),
    ),
    **{
        f"{row[0]} of float64": (TYPES, functools.partial(of_float64, *row))
        for row in FORWARD_OPS.items()
    },
    "vectors with gaps": (
        f"strided {VECTORS}",
        lambda: forward(SRC, [torch.ones(5, 2)[:, 0], *FOUR[1:]]),
    ),
    "weight in a matrix": (
        f"{VECTORS} whose length is not the number of channels",
        lambda: forward(SRC, [torch.ones(5, 1), *FOUR[1:]]),
    ),
    "eps 0": (EPSILONS, lambda: forward(SRC, FOUR, True, 0.0)),
    "eps 0 in float32": (EPSILONS, lambda: forward(SRC, FOUR, True, 7e-46)),
    "infinite eps in float32": (EPSILONS, lambda: forward(SRC, FOUR, True, 3.41e38)),
    "no vectors in bf16": (
        "16-bit inputs without parameters and running statistics",
        lambda: forward(SRC.bfloat16(), [None] * 4),
    ),
    "parameters of bf16": (
        f"{VECTORS} other than float32",
        lambda: forward(SRC.bfloat16(), [v.bfloat16() for v in FOUR]),
    ),
    "one value per channel": (FEW, lambda: forward(SRC[:1, :, :1, :1], FOUR)),
    "empty": (FEW, lambda: forward(SRC[:0], [None] * 4)),
    # Regression: PyTorch's kernel updates running statistics before it reads the parameters.
    **{
        f"running statistics that share the memory of {shared}": (
            "outputs that share memory with another argument",
            functools.partial(of_shared_memory, shared),
        )
        for shared in ("weight", "bias", "part of src", "each other")
    },
    "gradient of float64": (
        TYPES,
        lambda: backward(*[SRC.double()] * 2, None, [v.double() for v in SAVED]),
    ),
    # Regression: logged as statistics that are not vectors of float32.
    "gradient of float64 with running statistics": (
        TYPES,
        lambda: backward(*[SRC.double()] * 2, WIDE[0], WIDE[2:], running=WIDE[2:]),
    ),
    "gradient without diff_src": (
        "gradients of the parameters alone",
        lambda: backward(SRC, SRC, FOUR[0], SAVED, True, (False, True, True)),
    ),
    "gradient of a weight with gaps": (
        f"strided {VECTORS}",
        lambda: backward(SRC, SRC, torch.ones(5, 2)[:, 0], SAVED),
    ),
    "gradient of an unaligned weight": (
        "unaligned tensors",
        lambda: backward(
            SRC, SRC, torch.frombuffer(bytearray(21), dtype=torch.float32, offset=1), SAVED
        ),
    ),
}


@pytest.fixture
def one_thread():
    """With more, PyTorch's threads race for memory that channels share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("what", UNSUPPORTED)
def test_unsupported_calls_are_pytorchs(runs, what):
    """The results, or the error."""
    reason, function = UNSUPPORTED[what]
    try:
        theirs = by_pytorch(function)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            function()
    else:
        assert_same(function(), theirs)
    assert runs("reason") == [reason]


INVALID = {
    "weight of float64": lambda: forward(SRC, [FOUR[0].double(), *FOUR[1:]]),
    "parameters of f16": lambda: forward(SRC, [v.half() for v in FOUR]),
    "integers": lambda: forward(SRC.int(), [None] * 4),
    "empty": lambda: forward(torch.randn(0, 5, 2, 2), FOUR),
    "one running statistic": lambda: forward(SRC, [*FOUR[:3], None]),
    "rank 1": lambda: forward(torch.ones(5), FOUR),
    "no_stats": lambda: aten._native_batch_norm_legit.no_stats(
        SRC.int(), None, None, True, MOMENTUM, EPS
    ),
    # Statistics that the gradient does not read.
    "backward with a running mean of float64": lambda: backward(
        SRC, SRC, None, SAVED, running=(FOUR[2].double(), None)
    ),
    "backward with a running variance of another rank": lambda: backward(
        SRC, SRC, None, SAVED, running=(None, torch.ones(1, 5))
    ),
    "backward of evaluation with a saved mean of bfloat16": lambda: backward(
        SRC, SRC, None, (SAVED[0].bfloat16(), None), train=False, running=SAVED
    ),
    "backward of evaluation with a saved deviation of another rank": lambda: backward(
        SRC, SRC, None, (None, torch.ones(1, 5)), train=False, running=SAVED
    ),
    "backward of integers": lambda: backward(SRC.int(), SRC.int(), None, SAVED),
    "backward of mixed types": lambda: backward(SRC, SRC.double(), None, SAVED),
}


@pytest.mark.parametrize("what", INVALID)
def test_errors_are_pytorchs(runs, capfd, what):
    """Regression: under enable() every error was a RuntimeError. The next call is onedsl's."""
    raised = []
    for call in INVALID[what], lambda: by_pytorch(INVALID[what]):
        with pytest.raises((RuntimeError, IndexError, ValueError)) as error:
            call()
        raised.append((error.type, str(error.value)))
    assert raised[0] == raised[1]
    assert not runs()
    assert capfd.readouterr().err == ""
    forward(SRC, FOUR)
    assert runs() == [FORWARD]


class _Mallinfo(ctypes.Structure):
    _fields_ = [(f"field_{i}", ctypes.c_size_t) for i in range(10)]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_failing_calls_leak_nothing():
    """Regression: a failing call leaked 100 to 750 bytes."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo

    def allocated_bytes_after(count):
        for call in [*INVALID.values()] * count:
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                call()
        gc.collect()
        info = mallinfo2()
        return info.field_4 + info.field_7  # mapped and used bytes

    with onedsl_torch.enable():
        before = allocated_bytes_after(100)
        # Less than one byte per call.
        assert allocated_bytes_after(500) - before < 500 * len(INVALID)


def test_interrupts_are_keyboard_interrupts():
    """Regression: Ctrl-C in a kernel was a RuntimeError."""
    assert helpers.run_script("torch_interrupted.py").stderr == ""


# Memory of results


def test_small_results_are_aligned(runs):
    src, diff_dst = torch.randn(2, 3, 5, 4, 9)
    results = forward(src, state(5))[:3]
    gradients = backward(src, diff_dst, None, results[1:3])
    assert runs() == [FORWARD, BACKWARD]
    assert all(t.data_ptr() % 64 == 0 for t in (*results, *gradients))


def test_large_results_are_pytorchs_memory(runs):
    """They can be resized, cloned lazily and shared, as PyTorch's own."""
    src, diff_dst = torch.randn(2, 2, 5, 128, 512)
    dst, *saved = forward(src, state(5))[:3]
    diff_src = backward(src, diff_dst, None, saved)[0]
    assert runs() == [FORWARD, BACKWARD]
    for t in dst, diff_src:
        expected = t.clone()
        clone = torch._lazy_clone(t)
        t.resize_(4 * t.numel())
        assert clone.equal(expected)
        assert t[: expected.numel()].equal(expected.flatten())
    assert backward(src, diff_dst, None, saved)[0].share_memory_().is_shared()


def test_lack_of_memory():
    child = helpers.run_script("torch_memory.py", "errors", "search", "process_exit")
    assert (child.stdout, child.stderr) == ("done\n", "")


def test_a_lazy_clone_of_running_statistics_leaves_the_original():
    src, running = torch.randn(16, 3, 4, 4), (torch.zeros(3), torch.ones(3))
    clones = [torch._lazy_clone(t) for t in running]
    with onedsl_torch.enable():
        nn.functional.batch_norm(src, *clones, training=True)
    for original, clone, start in zip(running, clones, (0, 1), strict=True):
        assert original.eq(start).all()
        assert clone.ne(start).all()


def test_all_threads_flush_subnormal_numbers_if_the_caller_does():
    src = torch.full((1 << 16, 64), 1e-39)
    src[::2] = -src[::2]
    norm = functools.partial(nn.functional.batch_norm, src, None, None, training=True)
    with onedsl_torch.enable():
        norm()  # starts the threads
        try:
            torch.set_flush_denormal(True)
            zeros = norm().eq(0)
        finally:
            torch.set_flush_denormal(False)
        assert zeros.all()
        assert not norm().eq(0).any(), "the threads keep their own mode"


def test_no_temporary_of_tensor_size():
    helpers.run_script("torch_peak.py")


# The run log


def test_each_call_is_logged_once_and_a_fallback_with_its_shape(caplog):
    src = torch.randn(4, 5, 6, 3, dtype=torch.float64)
    with caplog.at_level(logging.INFO, "onedsl"), onedsl.verbose(), onedsl_torch.enable():
        forward(SRC, FOUR)
        aten.native_batch_norm(src, None, None, None, None, True, MOMENTUM, EPS)
    run, fallback = caplog.messages
    assert run.startswith("BatchNormForwardTraining f32")
    assert fallback == f"PyTorch's own batch norm of 4x5x6x3: onedsl does not support {TYPES}"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), TimeoutError("late")])
def test_an_exception_of_a_signal_handler_in_the_log_is_raised_after_the_call(error):
    """Regression: all but KeyboardInterrupt were lost."""

    def handle(*_):
        raise error

    def log(record):
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handle)
    logging.getLogger("onedsl").addFilter(log)
    try:
        with onedsl.verbose(), onedsl_torch.enable(), pytest.raises(type(error)) as raised:
            forward(SRC, FOUR)
    finally:
        logging.getLogger("onedsl").removeFilter(log)
        signal.signal(signal.SIGALRM, before)
    assert raised.value is error


def test_an_exception_of_the_log_on_another_thread_is_unraisable(monkeypatch):
    def fail(record):
        raise ValueError

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    logging.getLogger("onedsl").addFilter(fail)
    with onedsl_torch.enable(), ThreadPoolExecutor(1) as pool:
        try:
            with onedsl.verbose():
                logged = pool.submit(forward, SRC, FOUR).result()
        finally:
            logging.getLogger("onedsl").removeFilter(fail)
        assert_same(logged, forward(SRC, FOUR))
    assert reported == [ValueError]


def test_without_pytorch_registration_is_an_error():
    code = "from onedsl import _core; _core.register_torch_ops()"
    child = helpers.run_child(code, status=1)
    assert "RuntimeError: PyTorch must be imported first" in child.stderr


def test_running_statistics_are_updated_once_if_sums_are_computed_again():
    """The first values are far from the mean of the others, so the first sums lose precision."""
    src = torch.linspace(-1, 1, 4 * 3 * 400).view(4, 3, 400)
    samples = (2 * torch.arange(8) + 1) * 1600 // 16
    src[samples // 400, :, samples % 400] += 1e4
    mean, variance = torch.ones(3), torch.full((3,), 2.0)
    expected = [t.double().clone() for t in (mean, variance)]
    aten.native_batch_norm(src.double(), None, None, *expected, True, MOMENTUM, EPS)
    with onedsl_torch.enable():
        aten.native_batch_norm(src, None, None, mean, variance, True, MOMENTUM, EPS)
    for got, exact in zip((mean, variance), expected, strict=True):
        assert torch.allclose(got.double(), exact, rtol=1e-5)
