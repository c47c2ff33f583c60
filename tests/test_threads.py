"""Many Python threads, any number of OpenMP threads, fork, and the GIL."""

import sys
import threading

import helpers
import numpy as np
import pytest
import threadpoolctl
from helpers import EPSILON, formats, usable

import onedsl
from onedsl import testing
from onedsl.operators.base import kernel_info
from onedsl.runtime import onednn


@usable(backends=["onednn"])
@formats
def test_any_number_of_threads(dtype, backend, data_format):
    """Graphs keep their number of threads, even if the setting changed after compiling.

    That of the native kernels: programs/same_bits.py.
    """
    shape = helpers.shape_of(data_format, 6, 20, (9, 8))
    case = helpers.case(shape, dtype, "f32", data_format)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    graphs = []
    for threads in (1, 3):
        with threadpoolctl.threadpool_limits(threads, user_api="openmp"):
            graphs.append(op.graph(onedsl.TensorSpec(shape, dtype)).repaired().compile())
            assert onedsl.capabilities().num_threads == graphs[-1].num_threads == threads
    for now in (1, 2, 3, 4):
        with threadpoolctl.threadpool_limits(now, user_api="openmp"):
            testing.assert_close(op(*case.problem, backend=backend), case.expected)
            for graph in graphs:
                got = onedsl.BatchNormGradients(**graph(**case.problem._asdict()))
                testing.assert_close(got, case.expected)
            assert onedsl.capabilities().num_threads == now, "the setting was not restored"


# One thread below 32,768 elements, and for each thread beyond the second 2,048 more.
@pytest.mark.parametrize(
    ("shape", "threads", "expected"),
    [
        ((0, 4), 2, 1), ((100, 4), 2, 1), ((40_000, 4), 2, 2), ((40_000, 4), 1, 1),
        ((32_767, 1), 2, 1), ((32_768, 1), 2, 2), ((1, 32_767), 2, 1), ((1, 32_768), 2, 2),
        ((34_815, 1), 3, 1), ((34_816, 1), 3, 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stats_dtype", ["f32", "bf16"])
def test_the_log_has_the_threads_that_had_work(shape, threads, expected, stats_dtype):
    case = helpers.case(shape, "bf16", stats_dtype, "NXC")
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    with threadpoolctl.threadpool_limits(threads, user_api="openmp"), helpers.run_records() as runs:
        got = op(*case.problem)
    assert [run.num_threads for run in runs] == [expected]
    if case.problem.src.size:
        testing.assert_close(got, case.expected, factor=4)


@pytest.mark.parametrize(
    "setting",
    ["OMP_THREAD_LIMIT=1", "OMP_THREAD_LIMIT=3", "OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0",
     "later"],
)  # fmt: skip
def test_fewer_threads_than_openmp_was_asked_for(setting):
    """Regression: oneDNN, compiled for more threads than it was given, wrote parts of results.

    Without the memory to compile a graph again, it ran nothing after that.
    """
    name, _, value = setting.partition("=")
    arguments = [] if value else [name]
    environment = {"OMP_NUM_THREADS": "8"} | ({name: value} if value else {})
    child = helpers.run_script("fewer_threads.py", *arguments, environment=environment)
    fails = not value and onednn.version() == (3, 2, 0)
    assert child.stdout == ("out_of_memory\n" * 2 if fails else "")


def test_threads_of_different_limits_share_a_graph():
    """It is compiled once for each number of threads. oneDNN's log shows what it creates."""
    environment = {"OMP_NUM_THREADS": "8", "ONEDNN_VERBOSE": "2"}
    child = helpers.run_script("fewer_threads.py", "alternating", environment=environment)
    first, later = child.stdout.split("compiled for both\n")
    assert "create:cache_" in first
    assert "create:cache_" not in later
    assert ",exec," in later


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_calls_start_and_end_no_threads(library):
    """Regression: calls of few threads made libgomp end the others, which then started again."""
    if library != "numpy":
        pytest.importorskip(library)
    environment = helpers.PASSIVE | {"OMP_NUM_THREADS": "8"}
    child = helpers.run_script("same_threads.py", library, environment=environment)
    started, before = map(int, child.stdout.split())
    assert started == 0
    assert before >= 8 or library == "jax", "the calls ran on one thread"


def layers(batch, data_format):
    """Yield the shapes of layers of ResNet-50 and MobileNetV2 for images of 224 x 224."""
    sizes = {
        112: (16, 32, 64, 96), 56: (24, 64, 96, 128, 144, 256), 28: (32, 128, 144, 192, 256, 512),
        14: (64, 96, 192, 256, 384, 512, 576, 1024), 7: (160, 320, 512, 576, 960, 1280, 2048),
    }  # fmt: skip
    for size, channels in sizes.items():
        for c in channels:
            yield helpers.shape_of(data_format, batch, c, (size, size))


@formats
def test_work_for_every_thread(data_format):
    """Regression: tiles were shared in numbers that suit powers of two, at most 16 threads.

    With other caches, and up to 128 threads: cpp/test_schedule.cpp.
    """
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    mean, least = {}, {}
    for threads in (6, 12, 28, 48):
        shares = [
            kernel_info(op, onedsl.TensorSpec(shape), num_threads=threads)["busy_share"]
            for batch in (8, 32)
            for shape in layers(batch, data_format)
            if np.prod(shape) >= 3_000_000
        ]
        mean[threads], least[threads] = np.mean(shares), min(shares)
    assert min(mean.values()) > 0.85
    assert min(least.values()) > 0.62


@pytest.mark.parametrize(("kind", "threads", "least"), [("dense", 6, 0.7), ("strided", 8, 0.6)])
def test_cpu_time_of_threads(kind, threads, least):
    """Also with a slice of channels, which is read in place."""
    environment = helpers.PASSIVE | {"OMP_NUM_THREADS": str(threads)}
    child = helpers.run_script("busy_threads.py", kind, environment=environment)
    assert np.mean([float(line.split()[0]) for line in child.stdout.splitlines()]) > least


NEW_THREAD = """
import threading
import torch
import onedsl.torch

torch.set_num_threads(1)
onedsl.torch.enable()
x = torch.ones(64, 64, 28, 28)
thread = threading.Thread(target=torch.nn.BatchNorm2d(64), args=(x,))
with onedsl.verbose():
    thread.start()
    thread.join()
"""


def test_pytorchs_number_of_threads():
    """Regression: OpenMP's number belongs to the calling thread, PyTorch's to the process."""
    pytest.importorskip("torch")
    child = helpers.run_child(NEW_THREAD, environment={"OMP_NUM_THREADS": "2"})
    assert " 1 threads," in child.stderr + child.stdout


@pytest.fixture
def no_forced_gil_switches():
    """Let a thread keep the GIL until it releases it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("backend", ["onednn", "native"])
@pytest.mark.usefixtures("no_forced_gil_switches")
def test_gil_is_released(backend):
    """Another Python thread runs during a call.

    It is woken before each call, and gets the GIL only if this thread releases it.
    """
    problem = testing.random_problem((64, 56, 56, 16))
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    woken = threading.Semaphore(0)
    computing, done, ran = False, False, False

    def observe():
        nonlocal ran
        while not done:
            woken.acquire()
            ran = ran or computing

    observer = threading.Thread(target=observe, daemon=True)
    observer.start()
    for _ in range(200):  # during a short call, the observer may wake too late
        woken.release()
        computing = True
        op(*problem, backend=backend)
        computing = False
        if ran:
            break
    done = True
    woken.release()
    observer.join()
    assert ran


@pytest.mark.parametrize("backend", helpers.BACKENDS)
@pytest.mark.parametrize("first", ["used", "unused"])
def test_fork(backend, first):
    """OpenMP's threads do not survive a fork, so a child must compute without them.

    Graphs are compiled before the fork and in the child. Calls run in the child, in its own child,
    and afterwards in the parent.
    """
    child = helpers.run_script("fork.py", backend, first)
    assert child.stdout == "done\n"
