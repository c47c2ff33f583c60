"""Many Python threads, any number of OpenMP threads, fork, and the GIL."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import helpers
import pytest
import threadpoolctl
from helpers import EPSILON, FORMATS, formats, usable

import onedsl
from onedsl import testing


@usable()
@formats
@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "compiled"])
def test_many_threads_at_once(dtype, backend, data_format, compiled):
    """Eight threads call the same object, each with its own tensors."""
    shape = helpers.shape_of(data_format, 4, 20, (11, 10))
    cases = [helpers.case(shape, dtype, "f32", data_format, seed) for seed in range(8)]
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    plan = op.compile(onedsl.TensorSpec(shape, dtype), backend=backend)
    start = threading.Barrier(8)

    def work(case):
        start.wait()
        for _ in range(15):
            got = plan(*case.problem) if compiled else op(*case.problem, backend=backend)
            testing.assert_gradients_close(got, case.with_gamma)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, cases))


@pytest.mark.parametrize("backend", helpers.BACKENDS)
def test_many_threads_with_new_shapes(backend):
    """All threads compile plans and look them up at the same time."""
    op = onedsl.BatchNormTrainingBackward(3e-5)
    start = threading.Barrier(8)

    def work(index):
        start.wait()
        for rows in range(9, 29):
            problem = testing.random_problem((rows, 5), seed=rows)
            expected = testing.batch_norm_backward(*problem, epsilon=3e-5)
            testing.assert_gradients_close(op(*problem, backend=backend), expected, factor=4)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


SHAPES = {
    "small": (2, 3, (5,)),
    "odd": (3, 17, (29, 31)),
    "rows": (4099, 33, ()),
    "one_channel": (2, 1, (300, 301)),
    "one_image": (1, 5, (333, 77)),
    "many_channels": (2, 1025, (7, 3)),
    "large": (3, 24, (200, 210)),
    "many_images": (620, 9, (28, 29)),  # larger than the cache, with small planes
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@formats
@pytest.mark.parametrize("size", SHAPES)
def test_native_computes_the_same_bits_on_any_number_of_threads(dtype, data_format, size):
    shape = helpers.shape_of(data_format, *SHAPES[size])
    problem = testing.random_problem(shape, dtype, "f32", data_format=data_format)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    results = []
    for threads in (1, 2, 3, 7):
        with threadpoolctl.threadpool_limits(threads, user_api="openmp"):
            plan = op.compile(onedsl.TensorSpec(shape, dtype), backend="native")
            assert plan.num_threads == threads
            for got in (plan(*problem), op(*problem, backend="native")):
                results.append([member.tobytes() for member in got])
    assert all(result == results[0] for result in results)
    expected = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)
    testing.assert_gradients_close(got, expected)


@usable()
@formats
def test_plans_keep_their_number_of_threads(dtype, backend, data_format):
    """Results are correct even if the setting changed after compiling."""
    shape = helpers.shape_of(data_format, 6, 20, (9, 8))
    case = helpers.case(shape, dtype, "f32", data_format)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    spec = onedsl.TensorSpec(shape, dtype)
    plans = {}
    for threads in (1, 3):
        with threadpoolctl.threadpool_limits(threads, user_api="openmp"):
            plans[threads] = op.compile(spec, backend=backend)
            assert onedsl.capabilities().num_threads == threads
    for made, plan in plans.items():
        assert plan.num_threads == made
        for now in (1, 2, 4):
            with threadpoolctl.threadpool_limits(now, user_api="openmp"):
                testing.assert_gradients_close(plan(*case.problem), case.with_gamma)
                testing.assert_gradients_close(op(*case.problem, backend=backend), case.with_gamma)
                assert onedsl.capabilities().num_threads == now, "the setting was not restored"


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
    plan = onedsl.BatchNormTrainingBackward(EPSILON).compile(
        onedsl.TensorSpec.of(problem.src), backend=backend
    )
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
        plan(*problem)
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

    Plans are compiled before the fork and in the child. Calls run in the child, in its own child,
    and afterwards in the parent.
    """
    child = helpers.run_script("fork.py", backend, first, timeout=60)
    assert child.returncode == 0, child.stderr
    assert child.stdout == "done\n"


def test_multiprocessing_fork_pool():
    """Programs often fork implicitly, through a pool of workers."""
    child = helpers.run_script("fork_pool.py", timeout=60)
    assert child.returncode == 0, child.stderr


def test_helpers_have_all_formats():
    assert [f.value for f in onedsl.DataFormat] == FORMATS
