"""The plans that are kept: how many, how to see them, how to be rid of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import onedsl

MOST_PLANS, MOST_BYTES = 4096, 64 << 20
S = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def _none():
    onedsl.clear_plans()
    yield
    onedsl.clear_plans()


def call(rows, backend="native", epsilon=1e-5):
    src = np.ones((rows, 3), np.float32)
    return onedsl.BatchNormTrainingBackward(epsilon)(src, src, S, S, backend=backend)


def test_one_for_each_kind_of_call():
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


@pytest.mark.parametrize(("backend", "shapes"), [("native", 9000), ("onednn", 1500)])
def test_ever_new_shapes_stay_bounded(backend, shapes):
    most = onedsl.PlanCounts(0, 0)
    for rows in range(1, shapes):
        call(1, backend, epsilon=rows / 1e6)
        counts = onedsl.plan_counts()
        most = onedsl.PlanCounts(*map(max, most, counts))
    assert most.plans <= MOST_PLANS
    assert most.bytes <= MOST_BYTES
    # The bound is reached, so that what was shown is the bound.
    assert most.plans == MOST_PLANS or most.bytes > MOST_BYTES * 0.9


def test_what_is_in_use_lives_on():
    compiled = onedsl.BatchNormTrainingBackward(1e-5).compile(
        onedsl.TensorSpec((4, 3)), backend="onednn"
    )
    wanted = call(4, "onednn").diff_src.tobytes()
    onedsl.clear_plans()
    src = np.ones((4, 3), np.float32)
    assert compiled(src, src, S, S, S).diff_src.tobytes() == wanted


@pytest.mark.parametrize("backend", ["native", "onednn"])
def test_cleared_while_others_call(backend):
    stop, failures = threading.Event(), []

    def work():
        rows = 1
        while not stop.is_set():
            rows = rows % 50 + 1
            if call(rows, backend).diff_beta[0] != rows:
                failures.append(rows)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        onedsl.clear_plans()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
