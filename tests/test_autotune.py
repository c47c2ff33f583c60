"""compile(autotune=True)."""

from __future__ import annotations

import time

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core, testing
from onedsl.operators import _autotune
from onedsl.tensors.arrays import new_array

OP = onedsl.BatchNormTrainingBackward(EPSILON)


class Clock:
    """A clock that advances only when a plan runs."""

    now = 0.0

    def __call__(self):
        return self.now


class Timed:
    """A plan that takes a given time."""

    def __init__(self, clock, seconds):
        self.clock = clock
        self.seconds = seconds
        self.calls = 0

    def run(self, *arguments):
        self.calls += 1
        self.clock.now += self.seconds
        return arguments[-1] or ()


@pytest.mark.parametrize("slow", ["onednn", "native"])
@pytest.mark.parametrize("seconds", [1e-5, 1e-3])
def test_keeps_the_faster_backend(slow, seconds, monkeypatch):
    clock = Clock()
    plans = {
        choice: Timed(clock, seconds * (4 if name == slow else 1))
        for name, choice in (("onednn", _core.Backend.onednn), ("native", _core.Backend.native))
    }
    specs = [onedsl.TensorSpec((4, 3)), onedsl.TensorSpec((3,)), None]
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", clock)
        kept = _autotune.fastest(plans.__getitem__, specs)
    assert kept.seconds == seconds
    assert all(plan.calls > 5 for plan in plans.values())


@pytest.mark.parametrize("dtype", list(testing.TOLERANCES))
@pytest.mark.parametrize("shape", [(16, 8), (3, 20, 25, 16), (0, 3)], ids=str)
def test_autotuned_plans(shape, dtype):
    problem = testing.random_problem(shape, dtype)
    compiled = OP.compile(onedsl.TensorSpec(shape, dtype), autotune=True)
    assert compiled.backend in ("onednn", "native")
    if not helpers.runs("onednn", dtype):
        assert compiled.backend == "native"
    expected = testing.batch_norm_backward(*problem, epsilon=EPSILON)
    testing.assert_close(compiled(*problem), expected, factor=2)


def test_a_named_backend_is_not_tuned():
    spec = onedsl.TensorSpec((8, 16))
    for backend in ("onednn", "native"):
        assert OP.compile(spec, backend=backend, autotune=True).backend == backend


def test_broadcast_statistics():
    op = onedsl.BatchNormalizationGrad(EPSILON)
    spec = onedsl.TensorSpec((4, 3, 5))
    assert op.compile(spec, (4, 1, 5), autotune=True).backend == "native"  # oneDNN cannot
    assert op.compile(spec, (1, 3, 1), autotune=True).stats_shape == (1, 3, 1)


@pytest.mark.parametrize("strides", [None, (1, 4, 12), (15, 1, 3), (5, 20, 1)], ids=str)
def test_new_array_of_a_spec(strides):
    spec = onedsl.TensorSpec((4, 3, 5), "bf16", strides)
    array = new_array(spec)
    assert onedsl.TensorSpec.of(array) == spec
    assert array.ctypes.data % 64 == 0
    assert (np.asarray(array, np.float32) == 0).all()
