"""Many Python threads, any number of OpenMP threads, fork, and the GIL."""

import sys
import threading

import helpers
import pytest
import threadpoolctl
from helpers import EPSILON, formats, usable

import onedsl
from onedsl import _core, testing


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
    fails = not value and _core.onednn_version() == (3, 2, 0)
    assert child.stdout == ("out_of_memory\n" * 2 if fails else "")


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
    child = helpers.run_script("fork.py", backend, first, timeout=60)
    assert child.stdout == "done\n"
