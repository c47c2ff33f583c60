"""The private extension rejects invalid arguments and does not crash."""

from __future__ import annotations

import itertools
import sys
import threading

import helpers
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
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("port", GOOD)
def test_invalid_inputs_return_none(run, odd, port):
    if odd == "none" and port == "gamma":
        return  # valid: gamma is optional
    assert run(GOOD) is not None
    assert run({**GOOD, port: ODD[odd]}) is None


@runs
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("member", range(3))
def test_invalid_outputs_return_none(run, odd, member):
    out = [np.zeros((4, 3), np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32)]
    assert run(GOOD, out=tuple(out)) is not None
    for array in out:
        array[...] = 7
    out[member] = ODD[odd]
    assert run(GOOD, out=tuple(out)) is None
    for i, array in enumerate(out):
        assert i == member or (array == 7).all()


@runs
@pytest.mark.parametrize(
    "out",
    [(), (X.copy(),), [X.copy(), S.copy(), S.copy()], "abc", 3, (X, S, S), (None,) * 3],
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


def test_signature_equals_onednns_documentation():
    signature = _core.signature(_core.Operation.training_backward)
    names = ["src", "diff_dst", "mean", "variance", "gamma"]
    assert [name for name, *_ in signature["inputs"]] == names
    assert [name for name, *_ in signature["outputs"]] == ["diff_src", "diff_gamma", "diff_beta"]


@pytest.mark.parametrize("value", ["x", object(), None], ids=["text", "object", "none"])
@pytest.mark.parametrize("name", OPERATOR_OPTIONS)
def test_operator_constructor_types(name, value):
    with pytest.raises(TypeError):
        operator(**{name: value})


@pytest.mark.parametrize(
    "args",
    [(), (1,), (1, BATCH), (_core.Operation.training_backward,), (None,) * 6],
    ids=str,
)
def test_operator_constructor_arity(args):
    with pytest.raises(TypeError):
        _core.Operator(*args)


@pytest.mark.parametrize("ranks", [(0, 4), (-1, 2), (1, 65), (2, 2**40)], ids=str)
def test_operator_rejects_invalid_ranks(ranks):
    with pytest.raises(ValueError, match="ranks"):
        operator(ranks=ranks)


def test_rank_must_be_within_the_operators_limits():
    op = operator(ranks=(3, 3))
    assert op.run(tuple(GOOD.values()), True, None, AUTO) is None
    cube = X.reshape(4, 1, 3)
    assert op.run((cube, cube, S, S, S), True, None, AUTO) is not None


FIVE = (X, X, S, S, S)


@pytest.mark.parametrize(
    "args",
    [
        (FIVE, True, None),
        (FIVE, 0b111, None, AUTO),
        (FIVE, True, None, "auto"),
        (FIVE, True, None, 0),
        (FIVE, True, None, AUTO, 1),
        (FIVE, True, None, None),
        (list(FIVE), True, None, AUTO),
        (X, True, None, AUTO),
        (None, True, None, AUTO),
        (FIVE, "all", None, AUTO),
        (FIVE, -1, None, AUTO),
        (FIVE, 2**70, None, AUTO),
        (FIVE, None, None, AUTO),
    ],
    ids=[
        "few", "mask", "text", "int", "many", "none", "list", "array", "no_inputs", "word",
        "negative", "huge", "no_outputs",
    ],
)  # fmt: skip
def test_run_types(args):
    with pytest.raises(TypeError):
        OPERATOR.run(*args)


BIG = 2**62


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
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
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [LAST, SECOND, BROADCAST])
@pytest.mark.parametrize("stats_shape", [(3,), (4,), (1, 3), (1, -3), (1,) * 65, ()], ids=str)
def test_compiled_rejects_invalid_shapes(shape, strides, stats_shape, layout):
    if (shape, layout) == ((3,), BROADCAST) and stats_shape == (3,):
        return  # valid
    op = operator(statistics_shape=layout, ranks=(1 if layout is BROADCAST else 2, 64))
    with pytest.raises(ValueError):
        compile_(op, shape=shape, strides=strides, stats_shape=stats_shape)


@pytest.mark.parametrize(
    ("shape", "stats_shape", "layout"),
    [
        ((4, 3), (4,), LAST),
        ((4, 3), (3, 1), LAST),
        ((4, 3), (), LAST),
        ((4, 3), (4, 3, 1), BROADCAST),
        ((4, 3), (3,), BROADCAST),
        ((4, 3), (2, 3), BROADCAST),
        ((4, 3), (1, -3), BROADCAST),
    ],
    ids=str,
)
def test_compiled_rejects_invalid_statistics_shapes(shape, stats_shape, layout):
    op = operator(statistics=FROZEN, statistics_shape=layout)
    with pytest.raises(ValueError):
        compile_(op, shape=shape, stats_shape=stats_shape)


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


@pytest.mark.parametrize("value", ["x", object(), None, 1.5], ids=str)
@pytest.mark.parametrize("name", ["op", *COMPILED_OPTIONS])
def test_compiled_types(name, value):
    with pytest.raises(TypeError):
        compile_(**{name: value})


@pytest.mark.parametrize(
    ("dims", "data_format", "outputs"),
    [
        ([], "NXC", 3),
        ([], "NCX", 3),
        ([3], "NXC", 3),
        ([3], "NCX", 3),
        ([-2, 2, 2, 16], "NXC", 3),
        ([2, 2, 2, -16], "NXC", 3),
        ([2, 2, 2, 16], "NHWC", 3),
        ([2, 2, 2, 16], "", 3),
        ([2, 2, 2, 16], "NXC", -1),
        ([2, 2, 2, 16], "NXC", 0),
        ([2, 2, 2, 16], "NXC", 4),
        ([2, 2, 2, 16], "NXC", 1000),
        ([1] * 13, "NXC", 3),
        ([2**40] * 4, "NXC", 3),
    ],
    ids=str,
)
def test_onednn_compiles_does_not_crash(dims, data_format, outputs):
    """Regression: reading beyond the end of empty dims."""
    with pytest.raises((ValueError, IndexError, onedsl.OneDNNError)):
        _core.onednn_compiles(dims, data_format, F32, F32, True, outputs)


NOT_DENSE = [
    "none", "int", "text", "list", "class", "object", "scalar", "f64", "objects", "big_endian",
    "record", "subclass", "strided", "reversed", "broadcast", "unaligned", "vector_strided",
    "vector_reversed",
]  # fmt: skip


@pytest.mark.parametrize("odd", NOT_DENSE)
def test_is_dense_of_invalid_objects(odd):
    assert _core.is_dense(ODD[odd], 0) is False


def test_is_dense_of_dense_arrays():
    # If all axes are kept, they must be in C order in memory. Those of X.T are not.
    transposed = X.T
    for array in (X, transposed, S, X[:0], ODD["rank_0"], ODD["empty"], ODD["vector_f16"]):
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


# Random arguments in every position, in a child process because it may crash.
FUZZ = """
import random, sys, warnings
import numpy as np
import test_core as t
from onedsl import _core

rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
bf16 = t.helpers.NUMPY["bf16"]
values = [*t.ODD.values(), t.X, t.S, t.X.astype("f2"), t.S.astype(bf16), t.X.astype(bf16),
          (t.X.copy(), t.S.copy(), t.S.copy()), (), (None,) * 3,
          (t.X.copy(), None, None), True, False, 2**70, -1, 1e-5, float("nan"), _core.DataType.f16,
          _core.DataType.f32, _core.Backend.native, _core.Backend.auto, (4, 3), (12, 4), [], [0, 3],
          (4, 0), (1,) * 70, {}, b"x"]
plans = [t.operator(statistics_shape=a) for a in (t.LAST, t.SECOND, t.BROADCAST)]
returned = rejected = 0
for _ in range(30000):
    try:
        kind = rng.randrange(4)
        if kind == 0:
            good = [t.X, t.X, t.S, t.S, t.S, True, None]
            args = [g if rng.random() < 0.65 else rng.choice(values) for g in good]
            inputs = tuple(args[:5]) if rng.random() < 0.9 else rng.choice(values)
            result = rng.choice(plans[:3]).run(inputs, *args[5:], _core.Backend.native)
        elif kind == 1:
            names = ["op", *t.COMPILED_OPTIONS]
            result = t.compile_(**{rng.choice(names): rng.choice(values) for _ in range(2)})
            plans.append(result)
        elif kind == 2 and len(plans) > 3:
            args = [t.X, t.X, t.S, t.S, t.S, None]
            args[rng.randrange(6)] = rng.choice(values)
            inputs = tuple(args[:5]) if rng.random() < 0.9 else rng.choice(values)
            result = rng.choice(plans[3:]).run(inputs, args[5])
        else:
            result = _core.is_dense(rng.choice(values), rng.choice(values))
        returned += result is not None
        rejected += result is None
    except (TypeError, ValueError, MemoryError):
        rejected += 1
assert returned > 1000 and rejected > 1000, (returned, rejected)
print("survived")
"""


def test_random_arguments_do_not_crash():
    child = helpers.run_child(FUZZ, environment={"PYTHONPATH": str(helpers.TESTS)})
    assert child.returncode == 0, child.stdout + child.stderr
    assert "survived" in child.stdout


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
