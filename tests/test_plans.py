"""The plan cache: its bounds, its counts, clearing it, and how plans divide the work."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import helpers
import numpy as np
import pytest

import onedsl

MAX_PLANS, MAX_BYTES = 4096, 64 << 20
S = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def _empty_cache():
    onedsl.clear_plans()
    yield
    onedsl.clear_plans()


def call(rows, backend="native", epsilon=1e-5):
    src = np.ones((rows, 3), np.float32)
    return onedsl.BatchNormTrainingBackward(epsilon)(src, src, S, S, backend=backend)


def test_one_plan_for_each_kind_of_call():
    for _ in range(3):
        call(4)
        call(5)
        call(5, epsilon=1e-4)
    plans, held = onedsl.plan_counts()
    assert plans == 3
    assert 0 < held < 10_000
    call(5, "onednn")
    assert onedsl.plan_counts().plans == 4
    assert 50_000 < onedsl.plan_counts().bytes - held < 200_000
    onedsl.clear_plans()
    assert onedsl.plan_counts() == (0, 0)


SRC = np.linspace(-3, 3, 12, dtype=np.float32).reshape(4, 3)
KEYS = {  # two operators, or two calls of the first one
    "epsilon": ({"epsilon": 1e-5}, {"epsilon": 0.1}),
    "momentum": ({"momentum": 0.25}, {"momentum": 0.75}),
    "clip": ({"clip": 0.25}, {"clip": 0.75}),
    "no clip": ({"clip": 0.25}, {"clip": None}),
    "residual": ({"residual": None}, {"residual": SRC}),
}


@pytest.mark.parametrize("kind", KEYS)
def test_calls_that_differ_have_plans_of_their_own(kind):
    def run(epsilon=1e-5, momentum=0.5, clip=1.0, src=SRC, residual=None):
        op = onedsl.BatchNormReLUForwardTraining(epsilon, momentum, clip=clip)
        return [a.tobytes() for a in op(src, S, S, S, S, residual)]

    one, other = KEYS[kind]
    alone = run(**other)
    onedsl.clear_plans()
    first = run(**one)
    assert run(**other) == alone
    assert onedsl.plan_counts().plans == 2
    assert first != alone


@pytest.mark.parametrize(("backend", "calls"), [("native", 4500), ("onednn", 760)])
def test_the_cache_is_bounded(backend, calls):
    most = onedsl.PlanCounts(0, 0)
    for i in range(1, calls):
        assert call(1, backend, epsilon=i / 1e6).diff_beta[0] == 1
        counts = onedsl.plan_counts()
        most = onedsl.PlanCounts(*map(max, most, counts))
    assert most.plans <= MAX_PLANS
    assert most.bytes <= MAX_BYTES
    # A bound was reached, so the test did not pass with too few calls.
    assert most.plans == MAX_PLANS or most.bytes > MAX_BYTES * 0.9


def test_compiled_operators_survive_clearing():
    compiled = onedsl.BatchNormTrainingBackward(1e-5).compile(
        onedsl.TensorSpec((4, 3)), backend="onednn"
    )
    expected = call(4, "onednn").diff_src.tobytes()
    onedsl.clear_plans()
    src = np.ones((4, 3), np.float32)
    assert compiled(src, src, S, S, S).diff_src.tobytes() == expected


@pytest.mark.parametrize("backend", ["native", "onednn"])
def test_clearing_while_threads_call(backend):
    stop = threading.Event()

    def work(_):
        rows = 1
        while not stop.is_set():
            rows = rows % 50 + 1
            assert call(rows, backend).diff_beta[0] == rows

    with ThreadPoolExecutor(3) as pool:
        done = pool.map(work, range(3))
        for _ in range(500):
            onedsl.clear_plans()
        stop.set()
        list(done)


@helpers.formats
def test_kernel_info(data_format):
    """What the kernels require of it: the C++ tests."""
    op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
    plan = op.compile(onedsl.TensorSpec((8, 32, 40, 48)))._core
    info = plan.kernel_info
    assert math.prod(plan.geometry) == 8 * 32 * 40 * 48
    assert 1 <= info["threads"] <= plan.num_threads
    assert info["columns"] == (data_format == "NXC")


def test_no_kernel_info_without_kernels():
    op = onedsl.BatchNormTrainingBackward(1e-5)
    assert op.compile(onedsl.TensorSpec((0, 4)))._core.kernel_info is None
    assert op.compile(onedsl.TensorSpec((4, 4)), backend="onednn")._core.kernel_info is None
