"""The private extension rejects invalid arguments and does not crash."""

from __future__ import annotations

import itertools
import sys
import threading

import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core

F32, BF16, F16 = _core.DataType.f32, _core.DataType.bf16, _core.DataType.f16
AUTO, NATIVE = _core.Backend.auto, _core.Backend.native
BATCH, FROZEN = _core.Statistics.batch, _core.Statistics.frozen
SHAPES = _core.StatisticsShape
LAST, SECOND, BROADCAST = SHAPES.channel_last, SHAPES.channel_second, SHAPES.broadcast

X = np.ones((4, 3), np.float32)
S = np.ones(3, np.float32)
GOOD = {"src": X, "diff_dst": X, "mean": S, "variance": S, "gamma": S}

ODD = {
    "none": None,
    "int": 3,
    "text": "abc",
    "list": [1.0],
    "class": np.ndarray,
    "object": object(),
    "scalar": np.float32(1),
    "rank_0": np.array(1, np.float32),
    "f64": np.ones((4, 3)),
    "objects": np.ones((4, 3), object),
    "big_endian": np.ones((4, 3), ">f4"),
    "record": np.zeros((4, 3), [("a", "f4")]),
    "subclass": np.ones((4, 3), np.float32).view(np.ma.MaskedArray),
    "rank_1": np.ones(12, np.float32),
    "other_shape": np.ones((3, 4), np.float32),
    "strided": np.ones((4, 6), np.float32)[:, ::2],
    "reversed": np.ones((4, 3), np.float32)[::-1],
    "broadcast": np.broadcast_to(np.float32(1), (4, 3)),
    "unaligned": np.ones(49, np.uint8)[1:].view(np.float32).reshape(4, 3),
    "vector_short": np.ones(2, np.float32),
    "vector_long": np.ones(4, np.float32),
    "vector_strided": np.ones(6, np.float32)[::2],
    "vector_reversed": np.ones(3, np.float32)[::-1],
    "vector_f16": np.ones(3, np.float16),
    "empty": np.empty((0, 3), np.float32),
}


TABLE = [(F32, F32), (BF16, F32), (BF16, BF16), (F16, F32)]
WITH_GAMMA, WITHOUT_GAMMA = 0b11111, 0b01111

OPERATOR_OPTIONS = {
    "epsilon": EPSILON,
    "statistics": BATCH,
    "statistics_shape": LAST,
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
    "backend": NATIVE,
}


def operator(**options):
    return _core.Operator(_core.Operation.training_backward, **{**OPERATOR_OPTIONS, **options})


OPERATOR = operator()


def compile_(op=OPERATOR, **options):
    return _core.Compiled(op, **{**COMPILED_OPTIONS, **options})


def operator_run(inputs, out=None, all_outputs=True):
    return OPERATOR.run(tuple(inputs.values()), all_outputs, out, AUTO)


def compiled_run(inputs, out=None, all_outputs=True):
    return compile_(all_outputs=all_outputs, backend=AUTO).run(tuple(inputs.values()), out)


runs = pytest.mark.parametrize("run", [operator_run, compiled_run])


@runs
@pytest.mark.parametrize("port", GOOD)
def test_invalid_inputs_return_none(run, port):
    assert run(GOOD) is not None
    for name, odd in ODD.items():
        if (name, port) != ("none", "gamma"):  # gamma is optional
            assert run({**GOOD, port: odd}) is None, name


@pytest.mark.parametrize("port", range(2, 5))
def test_broadcast_statistics_must_be_contiguous(port):
    op = operator(statistics=FROZEN, statistics_shape=BROADCAST)
    inputs = [X, X, *[np.ones((1, 3), np.float32)] * 3]
    assert op.run(tuple(inputs), True, None, NATIVE) is not None
    inputs[port] = np.ones((1, 6), np.float32)[:, ::2]
    assert op.run(tuple(inputs), True, None, NATIVE) is None
    inputs[2:] = [inputs[port]] * 3
    assert op.run(tuple(inputs), True, None, NATIVE) is None


@runs
@pytest.mark.parametrize("member", range(3))
def test_invalid_outputs_return_none(run, member):
    good = [np.zeros((4, 3), np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32)]
    assert run(GOOD, out=tuple(good)) is not None
    read_only = np.zeros_like(good[member])
    read_only.flags.writeable = False
    for array in good:
        array[...] = 7
    for name, odd in {**ODD, "read_only": read_only, "an input": (X, S, S)[member]}.items():
        out = (*good[:member], odd, *good[member + 1 :])
        assert run(GOOD, out=out) is None, name
    assert all((array == 7).all() for array in good)


@runs
@pytest.mark.parametrize(
    "out",
    [(), (X.copy(),), [X.copy(), S.copy(), S.copy()], "abc", 3, (None,) * 3],
    ids=str,
)
def test_invalid_out_returns_none(run, out):
    assert run(GOOD, out=out) is None


@runs
def test_out_must_omit_outputs_that_are_not_computed(run):
    inputs = GOOD if run is compiled_run else {**GOOD, "gamma": None}
    assert run(inputs, out=(X.copy(), S.copy(), S.copy()), all_outputs=False) is None
    assert run(inputs, out=(X.copy(), None, None), all_outputs=False) is not None


@pytest.mark.parametrize("given", [0, 0b00111, 0b01110, 0b10111, 0b100000 | WITH_GAMMA])
def test_compiled_rejects_invalid_given(given):
    with pytest.raises(ValueError, match="given"):
        compile_(given=given)


@runs
@pytest.mark.parametrize("inputs", [(), (X,), (X, X, S, S), (X, X, S, S, S, S)], ids=len)
def test_number_of_inputs(run, inputs):
    assert run(dict(enumerate(inputs))) is None


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
    assert op.run(tuple(GOOD.values()), True, None, AUTO) is None
    cube = X.reshape(4, 1, 3)
    assert op.run((cube, cube, S, S, S), True, None, AUTO) is not None


BIG = 2**62


@pytest.mark.parametrize("layout", [LAST, SECOND, BROADCAST])
def test_compiled_rejects_invalid_shapes(layout):
    op = operator(statistics_shape=layout)
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


def test_compiled_rejects_invalid_type_pairs():
    tables = {
        LAST: {(F32, F32), (BF16, F32), (BF16, BF16), (F16, F32)},
        BROADCAST: {(F32, F32), (F16, F16)},
    }
    for (layout, table), data, statistics in itertools.product(
        tables.items(), (F32, BF16, F16), (F32, BF16, F16)
    ):
        size = 4 if data is F32 else 2
        arguments = {
            "op": operator(statistics_shape=layout, types=sorted(table, key=str)),
            "data": data,
            "strides": (3 * size, size),
            "statistics": statistics,
            "stats_shape": (3,) if layout is LAST else (1, 3),
        }
        if (data, statistics) in table:
            compile_(**arguments)
        else:
            with pytest.raises(ValueError):
                compile_(**arguments)


def test_is_dense_of_other_objects():
    dense = {"rank_0", "rank_1", "other_shape", "empty"}
    dense |= {f"vector_{kind}" for kind in ("short", "long", "f16")}
    for name, odd in ODD.items():
        assert _core.is_dense(odd, 0) is (name in dense), name


def test_is_dense_of_dense_arrays():
    # If all axes are kept, they must be in C order in memory. Those of X.T are not.
    transposed = X.T
    for array in (X, transposed, S, X[:0]):
        for kept in (0, 1, 2**64 - 1):
            assert _core.is_dense(array, kept) is (array is not transposed or kept < 2)


def test_reference_count_of_out_with_threads():
    """Regression: it was incremented without the GIL, and the process crashed."""
    src, stats = np.zeros((8, 64), np.float32), np.zeros(64, np.float32)
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    out = op(src, src, stats, stats, stats)
    plan = op.compile(onedsl.TensorSpec.of(src), backend="native")
    stop = threading.Event()

    def use():
        while not stop.is_set():
            for _ in range(100):
                a = out
                del a

    threads = [threading.Thread(target=use) for _ in range(2)]
    before = sys.getrefcount(out)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(20_000):
            plan(src, src, stats, stats, stats, out=out)
            op(src, src, stats, stats, stats, out=out, backend="native")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert sys.getrefcount(out) == before


def test_no_reference_is_leaked():
    out = (X.copy(), S.copy(), S.copy())
    objects = [X, S, *out, out, ODD["strided"]]
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    plan = op.compile(onedsl.TensorSpec((4, 3)))

    def everything():
        op(X, X, S, S, S)
        op(X, X, S, S, out=out)
        plan(X, X, S, S, S, out=out)
        op(ODD["strided"], X, S, S)
        operator_run({**GOOD, "src": ODD["strided"]})
        for bad in (X, out):
            with pytest.raises((TypeError, ValueError)):
                op(X, X, S, S, S, out=(X, bad, None))

    everything()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        everything()
    assert [sys.getrefcount(o) for o in objects] == before


def test_running_statistics_reject_invalid_vectors():
    ones = np.ones(3, np.float32)
    good = [ones.copy(), ones.copy(), ones, ones]
    for at in range(4):
        for odd in (None, np.ones(4, np.float32), np.ones(3), np.ones((3, 1), np.float32)):
            arguments = [*good[:at], odd, *good[at + 1 :]]
            with pytest.raises(ValueError, match="writeable f32 vectors"):
                _core.update_running(*arguments, 0.1, 8.0)
    locked = ones.copy()
    locked.flags.writeable = False
    for odd in (None, np.ones(3), np.ones((3, 1), np.float32), locked):
        with pytest.raises(ValueError, match="writeable f32 vectors"):
            _core.to_inverse_stddev(odd, 1e-5)
