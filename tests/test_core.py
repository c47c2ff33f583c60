"""The extension's own checks, of what the package never passes.

A call of an operator asks the extension first, so test_arguments.py tests its checks of arrays.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core

F32, BF16, F16 = _core.DataType.f32, _core.DataType.bf16, _core.DataType.f16
NATIVE = False  # not oneDNN
BATCH, FROZEN = _core.Statistics.batch, _core.Statistics.frozen
LAST, SECOND, BROADCAST = -1, 1, None

X = np.ones((4, 3), np.float32)
S = np.ones(3, np.float32)
STRIDED = np.ones((4, 6), np.float32)[:, ::2]

TABLE = [(F32, F32), (BF16, F32), (BF16, BF16), (F16, F32)]
WITH_GAMMA = 0b11111

OPERATOR_OPTIONS = {
    "epsilon": EPSILON,
    "statistics": BATCH,
    "channel_axis": LAST,
    "types": TABLE,
    "ranks": (2, 64),
}
COMPILED_OPTIONS = {
    "data": F32,
    "shape": (4, 3),
    "strides": (12, 4),
    "statistics": F32,
    "stats_shape": (3,),
    "given": WITH_GAMMA,
    "all_outputs": True,
    "onednn": NATIVE,
}


def operator(**options):
    return _core.Operator(_core.Operation.training_backward, **{**OPERATOR_OPTIONS, **options})


OPERATOR = operator()


def compile_(op=OPERATOR, **options):
    return _core.Compiled(op, **{**COMPILED_OPTIONS, **options})


@pytest.mark.parametrize("port", range(2, 5))
def test_broadcast_statistics_must_be_contiguous(port):
    op = operator(statistics=FROZEN, channel_axis=BROADCAST)
    inputs = [X, X, *[np.ones((1, 3), np.float32)] * 3]
    assert op.run(tuple(inputs), True, None, NATIVE) is not None
    inputs[port] = np.ones((1, 6), np.float32)[:, ::2]
    assert op.run(tuple(inputs), True, None, NATIVE) is None
    inputs[2:] = [inputs[port]] * 3
    assert op.run(tuple(inputs), True, None, NATIVE) is None


@pytest.mark.parametrize("inputs", [(), (X,), (X, X, S, S), (X, X, S, S, S, S)], ids=len)
def test_number_of_inputs(inputs):
    assert OPERATOR.run(inputs, True, None, NATIVE) is None
    assert compile_().run(inputs, None) is None


@pytest.mark.parametrize(
    "cls",
    [
        onedsl.BatchNormTrainingBackward,
        onedsl.BatchNormForwardTraining,
        onedsl.BatchNormReLUForwardTraining,
        onedsl.BatchNormReLUTrainingBackward,
    ],
)
def test_schemas_name_the_ports_of_the_core(cls):
    schema = cls._schema
    signature = _core.signature(schema.operation)
    assert [port.name for port in schema.inputs] == [name for name, *_ in signature["inputs"]]
    outputs = [name for name, *_ in signature["outputs"]]
    assert [port.name for port in schema.outputs] == list(schema.result._fields) == outputs


@pytest.mark.parametrize("ranks", [(0, 4), (-1, 2), (1, 65), (2, 2**40)], ids=str)
def test_operator_rejects_invalid_ranks(ranks):
    with pytest.raises(ValueError, match="ranks"):
        operator(ranks=ranks)


def test_rank_must_be_within_the_operators_limits():
    op = operator(ranks=(3, 3))
    assert op.run((X, X, S, S, S), True, None, NATIVE) is None
    cube = X.reshape(4, 1, 3)
    assert op.run((cube, cube, S, S, S), True, None, NATIVE) is not None


BIG = 2**62


@pytest.mark.parametrize("layout", [LAST, SECOND, BROADCAST])
def test_compiled_rejects_invalid_shapes(layout):
    op = operator(channel_axis=layout)
    valid = (1, 3) if layout is BROADCAST else (3,)
    compile_(op, stats_shape=valid)
    for shape, strides in [
        ((), ()),
        ((3,), (4,)),
        ((4, 3), (12,)),
        ((4, 3), (12, 4, 4)),
        ((4, 3), (16, 4)),
        ((4, 3), (12, -4)),
        ((4, 3), (0, 0)),
        ((4, 3), (24, 8)),
        ((4, 3), (8, 4)),
        ((2**54 // 3 + 1, 3), (12, 4)),
        ((-4, 3), (12, 4)),
        ((4, -3), (12, 4)),
        ((-4, -3), (12, 4)),
        ((1,) * 65, (4,) * 65),
        ((BIG, BIG), (4, 4)),
        ((BIG, 4), (16, 4)),
        ((2**31, 2**31, 4), (2**35, 16, 4)),
        ((2**32, 2**32), (2**34, 4)),
    ]:
        for stats_shape in [valid, (4,), (1, -3), (1,) * 65, (), (BIG, BIG, BIG)]:
            with pytest.raises(ValueError):
                compile_(op, shape=shape, strides=strides, stats_shape=stats_shape)
    others = [(), (4,), (3, 1), (2, 3), (1, -3), (4, 3, 1), (BIG, BIG, BIG)]
    for stats_shape in [*others, (3,) if layout is BROADCAST else (1, 3)]:
        with pytest.raises(ValueError):
            compile_(op, stats_shape=stats_shape)


def test_is_dense_of_dense_arrays():
    assert not any(_core.is_dense(odd) for odd in (None, [1.0], np.ndarray, STRIDED, X[::-1]))
    assert all(_core.is_dense(array) for array in (X, X.T, S, X[:0]))


def test_reference_count_of_out_with_threads():
    """Regression: it was incremented without the GIL, and the process crashed."""
    src, stats = np.zeros((8, 64), np.float32), np.zeros(64, np.float32)
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    out = op(src, src, stats, stats, stats)
    plan = op.compile(onedsl.TensorSpec.of(src), backend="native")
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
                plan(src, src, stats, stats, stats, out=out)
                op(src, src, stats, stats, stats, out=out, backend="native")
            stop.set()
    finally:
        sys.setswitchinterval(interval)
    assert sys.getrefcount(out) == before


def test_no_reference_is_leaked():
    out = (X.copy(), S.copy(), S.copy())
    objects = [X, S, *out, out, STRIDED]
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    plan = op.compile(onedsl.TensorSpec((4, 3)))

    def everything():
        op(X, X, S, S, S)
        op(X, X, S, S, out=out)
        plan(X, X, S, S, S, out=out)
        op(STRIDED, X, S, S)
        OPERATOR.run((STRIDED, X, S, S, S), True, None, NATIVE)
        for bad in (X, out):
            with pytest.raises((TypeError, ValueError)):
                op(X, X, S, S, S, out=(X, bad, None))

    everything()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        everything()
    assert [sys.getrefcount(o) for o in objects] == before
