"""Many Python threads, any number of OpenMP threads, fork, and the GIL."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import helpers
import numpy as np
import pytest
import threadpoolctl
from helpers import EPSILON, FORMATS, formats, usable

import onedsl
from onedsl import testing


@usable()
@formats
@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "compiled"])
def test_many_threads_at_once(dtype, backend, data_format, compiled):
    """One object, eight threads, each with tensors of its own."""
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
def test_many_threads_meet_new_shapes(backend):
    """Plans are made and looked up by all at the same time."""
    op = onedsl.BatchNormTrainingBackward(3e-5)
    start = threading.Barrier(8)

    def work(index):
        start.wait()
        for rows in range(9, 29):
            problem = testing.random_problem((rows, 5), seed=rows)
            wanted = testing.batch_norm_backward(*problem, epsilon=3e-5)
            testing.assert_gradients_close(op(*problem, backend=backend), wanted, factor=4)
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
    "many_images": (620, 9, (28, 29)),  # out of the cache, in small planes
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@formats
@pytest.mark.parametrize("size", SHAPES)
def test_native_gives_the_same_bits_on_any_number_of_threads(dtype, data_format, size):
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
    wanted = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)
    testing.assert_gradients_close(got, wanted)


@usable()
@formats
def test_thread_count_is_that_of_compile(dtype, backend, data_format):
    """A plan keeps its count and gives right results when the setting has changed since."""
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


@pytest.mark.parametrize("backend", ["onednn", "native"])
def test_gil_is_released(backend):
    """Another Python thread must go on while a call computes."""
    shape = (8, 32, 256, 256)
    tensor = np.ones(shape, np.float32)
    stats = np.ones(32, np.float32)
    op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
    plan = op.compile(onedsl.TensorSpec(shape), backend=backend)
    out = (np.empty_like(tensor), stats.copy(), stats.copy())
    plan(tensor, tensor, stats, stats, stats, out=out)
    calls, stamps, done = [], [], threading.Event()

    def compute():
        for _ in range(8):
            start = time.perf_counter()
            plan(tensor, tensor, stats, stats, stats, out=out)
            calls.append((start, time.perf_counter()))
        done.set()

    worker = threading.Thread(target=compute)
    worker.start()
    while not done.is_set():
        stamps.append(time.perf_counter())
        time.sleep(0.0002)
    worker.join()

    def longest_silence(start, stop):
        inside = [start, *(t for t in stamps if start < t < stop), stop]
        return max(b - a for a, b in itertools.pairwise(inside)) / (stop - start)

    # With the GIL held, nothing is heard for nearly all of each call.
    assert min(longest_silence(*call) for call in calls) < 0.5


FORK = """
import os, sys, traceback, warnings
import helpers, onedsl
from onedsl import testing

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads running
backend, first = sys.argv[1:]
cases = []
for data_format, dtype in (("NXC", "f32"), ("NCX", "f32"), ("NXC", "bf16"), ("NCX", "f16")):
    if helpers.runs(backend, dtype):
        shape = helpers.shape_of(data_format, 8, 32, (20, 20))
        op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
        plan = op.compile(onedsl.TensorSpec(shape, dtype), backend=backend)
        cases.append((op, plan, helpers.case(shape, dtype, "f32", data_format)))

def use(threads=None):
    for op, plan, case in cases:
        factor = helpers.tolerance_factor(plan.backend, 3200)
        for got in (plan(*case.problem), op(*case.problem, backend=backend)):
            testing.assert_gradients_close(got, case.with_gamma, factor=factor)
        assert threads is None or plan.num_threads == threads, plan.num_threads
        new = op.compile(onedsl.TensorSpec((5, 3)), backend=backend)
        problem = testing.random_problem((5, 3))
        new(*problem)

if first == "used":
    use()

def child(depth):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        use(threads=1)
        onedsl.capabilities()
        if depth:
            assert child(depth - 1) == 0
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

assert child(1) == 0
use()
assert child(0) == 0
print("done")
"""


@pytest.mark.parametrize("backend", helpers.BACKENDS)
@pytest.mark.parametrize("first", ["used", "unused"])
def test_fork(backend, first, tmp_path):
    """A forked child has lost OpenMP's threads: it must not wait for them, and compute right.

    Compiled before the fork and in the child, in a child's child, and in the parent afterwards.
    """
    script = tmp_path / "fork.py"
    script.write_text(FORK)
    child = helpers.run_script(
        script, backend, first, environment={"PYTHONPATH": str(helpers.TESTS)}, timeout=60
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout == "done\n"


def test_multiprocessing_fork_pool(tmp_path):
    """The way in which people fork without knowing: a pool of workers."""
    script = tmp_path / "pool.py"
    script.write_text(
        "import multiprocessing, warnings\n"
        "import numpy as np, onedsl\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "op = onedsl.BatchNormTrainingBackward(1e-5)\n"
        "x, s = np.ones((64, 64, 32), np.float32), np.ones(32, np.float32)\n"
        "plan = op.compile(onedsl.TensorSpec.of(x))\n"
        "def work(i):\n"
        "    return float(op(x * i, x * i, s, s).diff_beta[0] + plan(x, x, s, s, s).diff_beta[0])\n"
        "if __name__ == '__main__':\n"
        "    wanted = [4096.0 * (i + 1) for i in range(8)]\n"
        "    assert [work(i) for i in range(8)] == wanted\n"
        "    with multiprocessing.get_context('fork').Pool(3) as pool:\n"
        "        assert pool.map(work, range(8)) == wanted\n"
    )
    child = helpers.run_script(script, timeout=60)
    assert child.returncode == 0, child.stderr


def test_formats_are_all_there():
    assert [f.value for f in onedsl.DataFormat] == FORMATS
