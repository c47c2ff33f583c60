"""The extension's own checks, of what the package never passes.

A call of an operator asks the extension first, so test_arguments.py tests its checks of arrays.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core
from onedsl.operators.base import ChannelOperator
from onedsl.operators.schema import OpSchema

X = np.ones((4, 3), np.float32)
S = np.ones(3, np.float32)
STRIDED = np.ones((4, 6), np.float32)[:, ::2]


def operator(operation="training_backward", statistics="batch", **limits):
    schema = OpSchema.of(operation, onedsl.BatchNormGradients, **limits)
    return ChannelOperator(schema, statistics, epsilon=EPSILON, data_format="NXC")._core


OPERATOR = operator()


def run(inputs):
    return OPERATOR.run(tuple(inputs), True, None)


@pytest.mark.parametrize("operation", sorted({*_core.signatures()} - {"training_backward"}))
def test_only_the_gradient_without_relu_has_frozen_statistics(operation):
    """Regression: ReLU's gradient computed (inf - mean) * 0, which is NaN."""
    with pytest.raises(ValueError, match="statistics must be batch"):
        operator(operation, "frozen")


@pytest.mark.parametrize("inputs", [(), (X,), (X, X, S, S), (X, X, S, S, S, S)], ids=len)
def test_number_of_inputs(inputs):
    for call in (
        lambda: run(inputs),
        lambda: OPERATOR.describe(inputs, True, None),
        lambda: OPERATOR.apply(np.ones(7), inputs, True, None),
    ):
        with pytest.raises(ValueError, match="wrong number of inputs"):
            call()


@pytest.mark.parametrize("ranks", [(0, 4), (-1, 2), (1, 65), (2, 2**40)], ids=str)
def test_operator_rejects_invalid_ranks(ranks):
    with pytest.raises(ValueError, match="ranks"):
        operator(ranks=ranks)


def test_kernel_info_rejects_what_no_spec_has():
    for shape, strides in [((4, 3), (4, 1)), ((-4, 3), (3, 1)), ((2**62, 4), (4, 1))]:
        assert OPERATOR.kernel_info("f32", shape, strides, "f32") is None
    with pytest.raises(ValueError, match="equal lengths"):
        OPERATOR.kernel_info("f32", (4, 3), (3,), "f32")


def test_reference_count_of_out_with_threads():
    """Regression: it was incremented without the GIL, and the process crashed."""
    src, stats = np.zeros((8, 64), np.float32), np.zeros(64, np.float32)
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    out = op(src, src, stats, stats, stats)
    stop = threading.Event()

    def use(_):
        while not stop.is_set():
            for _ in range(100):
                a = out
                del a

    before = sys.getrefcount(out)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            pool.map(use, range(2))
            for _ in range(20_000):
                op(src, src, stats, stats, stats, out=out, backend="native")
            stop.set()
    finally:
        sys.setswitchinterval(interval)
    assert sys.getrefcount(out) == before


def test_no_reference_is_leaked():
    out = (X.copy(), S.copy(), S.copy())
    objects = [X, S, *out, out, STRIDED]
    op = onedsl.BatchNormTrainingBackward(EPSILON)

    def everything():
        op(X, X, S, S, S)
        op(X, X, S, S, out=out)
        op(X, X, S, S, S, out=out)
        op(X, X, S, S, S, out=out, backend="onednn")
        op(STRIDED, X, S, S)
        run((STRIDED, X, S, S, S))
        for bad in (X, out):
            with pytest.raises((TypeError, ValueError)):
                op(X, X, S, S, S, out=(X, bad, None))

    everything()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        everything()
    assert [sys.getrefcount(o) for o in objects] == before


def test_only_functions_create_objects():
    """Regression: a scope's object was used without checking that there was memory for it."""
    classes = [value for value in vars(_core).values() if isinstance(value, type)]
    assert len(classes) > 5
    for cls in classes:
        with pytest.raises(TypeError, match=r"cannot create|No constructor"):
            cls()
