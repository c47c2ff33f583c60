"""Invalid arguments that the law of rejections does not have: every kind of object, and of memory.

tests/laws/test_rejects.py has one fault of each reason, of all ways to call onedsl. Here are the
many objects, dtypes, shapes, numbers and overlaps that have the same reason, in calls of one class.
"""

import contextlib
import decimal
import fractions
import itertools
import math
import mmap
import re
import types
from collections.abc import Callable
from typing import Any

import helpers
import numpy as np
import pytest
from fuzz.arrays import to_numpy
from helpers import BACKENDS, EPSILON, backends, read_only, unaligned

import onedsl
from onedsl import testing
from onedsl.runtime import onednn

SHAPE = (4, 6, 5, 8)
STATS = ["mean", "variance", "gamma"]
NAMES = ["src", "diff_dst", *STATS]
OUT = [f"out.{name}" for name in onedsl.BatchNormGradients._fields]
OVERLAPS = [(name, other) for i, name in enumerate(OUT) for other in [*NAMES, *OUT[:i]]]
Op = onedsl.BatchNormTrainingBackward
PROBLEM, EXPECTED = helpers.case(SHAPE, "f32", "f32", "NXC")


def valid() -> dict[str, Any]:
    """Return valid inputs and members of `out`, by their names in errors."""
    return {**PROBLEM._asdict(), **{name: np.full(8, 7, "f4") for name in OUT}} | {
        OUT[0]: np.full(SHAPE, 7, "f4")
    }


def call(arrays: dict[str, Any], **options: Any) -> onedsl.BatchNormGradients:
    options = {"out": tuple(arrays[name] for name in OUT)} | options
    return Op(EPSILON)(*(arrays[name] for name in NAMES), **options)


def rejected(arrays: dict[str, Any], error: type[Exception], **options: Any) -> str:
    """Return the message of the error that both backends raise before they write."""
    numbers = []
    for value in arrays.values():
        with contextlib.suppress(AttributeError):  # no array
            numbers.append(to_numpy(value))
    before, messages = [a.tobytes() for a in numbers], set()
    for backend in BACKENDS:
        with pytest.raises(error) as caught:
            call(arrays, **{"backend": backend} | options)
        assert type(caught.value) is error
        messages.add(str(caught.value))
    assert before == [a.tobytes() for a in numbers]
    (message,) = messages
    return message


class HasArray:
    """Converts to an array, but is not one and has no DLPack."""

    def __array__(self, dtype=None, copy=None):
        return np.zeros(SHAPE, np.float32)


def to(dtype) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: a.astype(dtype)


def with_strides(*strides: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: np.lib.stride_tricks.as_strided(np.zeros(1000, "f4"), a.shape, strides)


def every_other(a: np.ndarray) -> np.ndarray:
    return np.repeat(a, 2, -1)[..., ::2]


def backwards(a: np.ndarray) -> np.ndarray:
    return a[..., ::-1]


def between_bytes(a: np.ndarray) -> np.ndarray:
    """Return an array whose strides are no multiples of the item size."""
    return np.zeros(a.shape, [("value", a.dtype), ("pad", "u1")])["value"]


NOT_ARRAYS = {
    "list": np.ndarray.tolist,
    "tuple": lambda a: tuple(a.tolist()),
    "str": lambda a: "zeros",
    "float": lambda a: 1.0,
    "float32": lambda a: np.float32(1),
    "HasArray": lambda a: HasArray(),
    "memoryview": memoryview,
    "type": lambda a: np.ndarray,
}
DTYPES = {
    "object": object, "float64": "f8", "int32": "i4", "uint16": "u2", "bool": bool,
    "complex64": "c8", "str": "U8", "datetime64": "M8[s]", "void64": [("re", "f4"), ("im", "f4")],
}  # fmt: skip
OTHER_SHAPES = {
    "first": lambda a: a[0, ...],
    "another axis": lambda a: a[None],
    "empty": lambda a: a[:0],
}
LONGER = {
    "longer": lambda a: np.append(a, a[:1]),
    "one": lambda a: a[:1].copy(),
    "column": lambda a: a[:, None].copy(),
}
NOT_PLAIN = {"masked": np.ma.masked_array, "big-endian": to(">f4")}
NOT_WRITABLE = {
    "shorter": lambda a: a[..., :-1].copy(),
    "another axis of out": lambda a: a[None],
    "broadcast": lambda a: np.broadcast_to(a[..., :1], a.shape),
    "unaligned": unaligned,
    "read-only": read_only,
}
COMMON_ELEMENTS = {
    "common elements": with_strides(960, 160, 32, 0),
    "of columns": with_strides(960, 160, 4, 4),
    "of rows": with_strides(960, 160, 28, 4),
}
# Names of arguments, and functions that make an invalid argument from a valid one, by error.
INVALID: list[tuple[list[str], type[Exception], dict[str, Callable[[np.ndarray], object]]]] = [
    (NAMES, TypeError, NOT_ARRAYS),
    (NAMES[:-1], TypeError, {"absent": lambda a: None}),  # an absent gamma is valid
    (NAMES, TypeError, {name: to(dtype) for name, dtype in DTYPES.items()}),
    (NAMES, TypeError, NOT_PLAIN),
    (NAMES, ValueError, {"rank 0": lambda a: a.reshape(-1)[0:1].reshape(())}),
    (NAMES, ValueError, OTHER_SHAPES),
    (STATS, ValueError, LONGER),
    (NAMES[1:], TypeError, {"bf16": to(helpers.NUMPY["bf16"]), "f16": to("f2")}),
    (["diff_dst"], ValueError, {"transposed": lambda a: a.transpose(0, 2, 1, 3).copy()}),
    (["src"], ValueError, {"rank 1": lambda a: a[0, 0, 0].copy()}),
    (OUT, TypeError, {"no array in out": np.ndarray.tolist, "f64": to("f8"), "f16": to("f2")}),
    (OUT, TypeError, {f"{name} in out": make for name, make in NOT_PLAIN.items()}),
    (OUT, ValueError, NOT_WRITABLE),
    (OUT[1:], ValueError, {"strided": every_other, "reversed": backwards}),
    (OUT[:1], ValueError, COMMON_ELEMENTS),
]


@pytest.mark.parametrize(
    ("names", "error", "makes"), INVALID, ids=[", ".join(makes)[:40] for *_, makes in INVALID]
)
def test_invalid_array(names, error, makes, says):
    """Each requirement is said once, with all that was got instead."""
    found: dict[str, set[str]] = {}
    for name, make in itertools.product(names, makes.values()):
        message = rejected(valid() | {name: make(valid()[name])}, error)
        requirement, _, got = message.replace(name, "NAME").partition(", got ")
        found.setdefault(requirement, set()).add(re.sub("0x[0-9a-f]+", "0x...", got))
    for requirement, got in sorted(found.items()):
        says(f"{requirement}, got {' | '.join(sorted(got))}")


DTYPES_AND_F64 = helpers.NUMPY | {"f64": np.dtype("f8")}
UNSUPPORTED_TYPES = sorted({*itertools.product(DTYPES_AND_F64, repeat=2)} - {*helpers.TYPES})


@pytest.mark.parametrize(("data", "stats"), UNSUPPORTED_TYPES)
def test_dtype_pairs_outside_the_table(data, stats):
    allowed, got = ("f32 or bf16" if data == "bf16" else "f32"), stats.replace("f64", "float64")
    error = f"mean must be {allowed} where src is {data}, got {got}"
    if data == "f64":
        error = "src must be f32, bf16 or f16, got float64"
    dtypes = [DTYPES_AND_F64[kind] for kind in (data, data, stats, stats, stats)]
    with pytest.raises(TypeError, match=error):
        Op(EPSILON)(*(a.astype(d) for a, d in zip(PROBLEM, dtypes, strict=True)))
    if "f64" not in (data, stats):
        error = error.replace("mean", "stats_dtype")
        with pytest.raises(TypeError, match=error):
            Op(EPSILON).graph(onedsl.TensorSpec((4, 3), data), stats_dtype=stats)
        with pytest.raises(TypeError, match=error.replace("src", "dtype")):
            onedsl.capabilities().runs_in_onednn(data, stats)


# ---- out ----


def test_out_must_be_a_tuple_of_three():
    wrong = valid() | {"diff_dst": PROBLEM.diff_dst.astype("f2")}
    for out in (np.zeros(SHAPE, "f4"), (PROBLEM.src,), (), (1, 2, 3, 4), {}, "abc", 3, object()):
        message = rejected(valid(), TypeError, out=out)
        assert message.startswith("out must be a tuple (diff_src, diff_gamma, diff_beta), got ")
        # Regression: an array was "ambiguous", and a number "not iterable".
        assert rejected(wrong, TypeError, out=out).startswith("diff_dst must be f32 like src")


@pytest.mark.parametrize(
    ("absent", "outputs", "message"),
    [
        ("out.diff_src", "all", "out.diff_src must be an array, got None"),
        ("out.diff_beta", "all", "out.diff_beta must be an array, got None. Or pass outputs="),
        ("out.diff_beta", "diff_src", 'out.diff_gamma must be None with outputs="diff_src"'),
        ("out.diff_gamma", "diff_src", 'out.diff_beta must be None with outputs="diff_src"'),
    ],
)
def test_members_of_out_that_are_none(absent, outputs, message):
    arrays = valid() | {"gamma": None, absent: None}
    assert rejected(arrays, ValueError, outputs=outputs).startswith(message)


@backends
@pytest.mark.parametrize("layout", [np.copy, every_other, backwards, between_bytes])
def test_diff_src_may_have_any_strides(layout, backend):
    """Results are copied to it. The argument `out` may be a list."""
    arrays = valid()
    arrays["out.diff_src"] = layout(arrays["out.diff_src"])
    out = [arrays[name] for name in OUT]
    got = call(arrays, out=out, backend=backend)
    assert type(got) is onedsl.BatchNormGradients
    assert all(a is b for a, b in zip(got, out, strict=True))
    testing.assert_close(got, EXPECTED)


# ---- Overlaps ----


@backends
@pytest.mark.parametrize(("name", "other"), OVERLAPS, ids=str)
def test_overlaps(name, other, backend):
    """Arrays that share an element or more are rejected, and neighbors are not."""
    length, size = valid()[name].size, valid()[other].size
    for start in (-length, 1 - length, 0, size - 1, size):
        arrays, memory = valid(), np.zeros(size + 2 * length, "f4")
        for each, at in ((name, length + start), (other, length)):
            place = memory[at:][: arrays[each].size].reshape(arrays[each].shape)
            place[...] = arrays[each]
            arrays[each] = place
        in_place = (name, other, start) == ("out.diff_src", "diff_dst", 0)
        if start in (-length, size) or in_place:
            testing.assert_close(call(arrays, backend=backend), EXPECTED)
        else:
            message = rejected(arrays, ValueError, backend=backend)
            assert message.startswith(f"{name} must not overlap {other}")


def test_in_place_over_src():
    """It is allowed over diff_dst, but not if diff_dst is src."""
    arrays = valid() | dict.fromkeys(("src", "diff_dst", "out.diff_src"), PROBLEM.src.copy())
    message = "out.diff_src must not overlap src. It may be diff_dst itself"
    assert rejected(arrays, ValueError).startswith(message)


@pytest.mark.parametrize("name", ["src", "diff_dst"])
def test_strided_inputs_overlap_out(name):
    """The overlap is checked with the caller's array, not with its dense copy.

    A strided diff_dst that begins where out begins is not the in-place run: later elements would be
    overwritten before they are read.
    """
    memory = np.zeros((*SHAPE[:-1], 16), "f4")
    memory[..., :8] = getattr(PROBLEM, name)
    overlapping = memory.reshape(-1)[: PROBLEM.src.size].reshape(SHAPE)
    arrays = valid() | {name: memory[..., :8], "out.diff_src": overlapping}
    assert rejected(arrays, ValueError).startswith(f"out.diff_src must not overlap {name}")


@pytest.mark.parametrize(
    "part",
    [
        lambda memory, i: memory[..., i::2],
        lambda memory, i: memory[..., 8 * i : 8 * i + 8],
        lambda memory, i: memory.reshape(4, 2, *SHAPE[1:])[:, i],
        lambda memory, i: memory.reshape(*SHAPE[::-1], 2)[..., i].T,
        lambda memory, i: memory[::-1, ..., i::2][..., ::-1],
    ],
)
def test_slices_of_one_array(part):
    """Slices that share no element may be input and output."""
    memory = np.zeros((*SHAPE[:-1], 16), "f4")
    src, between = (part(memory, i) for i in range(2))
    src[...] = PROBLEM.src
    testing.assert_close(call(valid() | {"src": src, "out.diff_src": between}), EXPECTED)
    assert np.array_equal(src, PROBLEM.src)
    assert rejected(valid() | {"src": src, "out.diff_src": src}, ValueError).startswith(
        "out.diff_src must not overlap src. It may be diff_dst itself"
    )
    src[...] = PROBLEM.diff_dst  # which is used in place
    testing.assert_close(call(valid() | {"diff_dst": src, "out.diff_src": src}), EXPECTED)


def test_undecidable_overlap_counts_as_overlap():
    """Whether strided memory contains a byte is a knapsack problem."""
    rng = np.random.default_rng(0)
    strides = [4 * int(step) for step in rng.integers(2**30, 2**31, 30)]
    # At addresses that exceed the strides and the dense array, which malloc's may not.
    gamma, other, *stats = (np.frombuffer(mmap.mmap(-1, 8), "f4") for _ in ("", "", *STATS))
    start = gamma.ctypes.data - sum(strides) // 8 * 4
    # Nothing reads this memory, which does not exist.
    address = {"data": (start, False), "shape": (2,) * 30, "strides": tuple(strides)}
    interface = {"version": 3, "typestr": "<f4"} | address
    knapsack = np.asarray(types.SimpleNamespace(__array_interface__=interface))
    # Dense, and elsewhere.
    address = {"data": (1 << 20, False), "strides": tuple(4 << i for i in reversed(range(30)))}
    dense = np.asarray(types.SimpleNamespace(__array_interface__=interface | address))
    arrays, out = (knapsack, knapsack, *stats), (dense, gamma, other)
    found = Op(EPSILON)._core.describe(arrays, True, out)
    # If the assertion failed, pytest would print them, and crash.
    del knapsack, dense, arrays, out
    assert (found.reason, found.port, found.other) == ("overlap", "out.diff_gamma", "src")


# ---- Attributes and options ----

OUT_OF_FLOAT32 = [0, -0.0, -1e-5, math.nan, math.inf, -math.inf, 1e-50, 1e39, 10**400]
OUT_OF_FLOAT32 += [fractions.Fraction(10**400)]
NOT_NUMBERS = [True, np.True_, "1e-5", 1e-5 + 0j, [1e-5], np.array([1e-5])]
NOT_NUMBERS += [decimal.Decimal("1e-5")]
NOT_FORMATS = ["nxc", "", None, 1, [], {}, b"NXC", "NXC "]
OF_SILU = "None with activation='silu', got VALUE. It is an attribute of activation="
OPERATORS = Op, onedsl.BatchNormActForwardTraining, onedsl.BatchNormActTrainingBackward


@pytest.mark.parametrize(
    ("name", "activation", "values", "error", "requirement"),
    [
        ("epsilon", "relu", OUT_OF_FLOAT32, ValueError, "positive and finite in float32, got "),
        ("epsilon", "relu", [*NOT_NUMBERS, None], TypeError, "a number, got VALUE"),
        ("momentum", "relu", [1.5, -1e-5, math.nan, 10**400], ValueError, "from 0 to 1, got "),
        ("momentum", "relu", NOT_NUMBERS, TypeError, "a number, got VALUE"),
        ("clip", "relu", OUT_OF_FLOAT32, ValueError, "positive and finite in float32, or None, "),
        ("clip", "relu", NOT_NUMBERS, TypeError, "a number, got VALUE"),
        ("clip", "silu", [6.0], ValueError, f'{OF_SILU}"relu"'),
        ("negative_slope", "leaky_relu", [math.nan, -math.inf, 1e39], ValueError, "finite in flo"),
        ("negative_slope", "leaky_relu", NOT_NUMBERS, TypeError, "a number, got VALUE"),
        ("negative_slope", "silu", [0.1], ValueError, f'{OF_SILU}"leaky_relu"'),
        ("data_format", "relu", NOT_FORMATS, ValueError, "'NXC' or 'NCX', got VALUE"),
        ("data_format", "relu", ["NHWC"], ValueError, "'NXC' or 'NCX', got VALUE. NHWC is NXC"),
        ("activation", None, ["nothing", None, 1], ValueError, 'one of "relu", "leaky_relu", '),
    ],
)
def test_invalid_attributes(name, activation, values, error, requirement):
    for cls, value in itertools.product(OPERATORS, values):
        attributes = {"epsilon": 1} | ({} if cls is Op else {"activation": activation})
        if hasattr(cls, name):
            with pytest.raises(error) as caught:
                cls(**attributes | {name: value})
            message = f"{name} must be {requirement.replace('VALUE', repr(value))}"
            assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("bound", "inside"), [(2.0**-150, 1.0), (2.0**128 - 2.0**103, 0.0)])
def test_bounds_of_epsilon_are_those_of_float32(bound, inside):
    with np.errstate(over="ignore", under="ignore"):
        assert np.float32(bound) in (0, np.inf)
        assert np.float32(np.nextafter(bound, inside)) not in (0, np.inf)
    with pytest.raises(ValueError, match="epsilon must be positive and finite in float32"):
        Op(bound)
    Op(np.nextafter(bound, inside))


@pytest.mark.parametrize("value", ["ALL", "diff_gamma", "", None, True, 3, ("diff_src",), ["all"]])
def test_invalid_outputs(value):
    message = 'outputs must be "all" or "diff_src", got '
    message += f"{value!r}. diff_gamma and diff_beta are computed together"
    assert rejected(valid(), ValueError, outputs=value) == message
    with pytest.raises(ValueError, match=re.escape(message)):
        Op(EPSILON).graph(onedsl.TensorSpec(SHAPE), outputs=value)


@pytest.mark.parametrize("value", ["onednn ", "cpu", "AUTO", "", None, 1, ["auto"], b"auto"])
def test_invalid_backend(value):
    message = f'backend must be "auto" or "onednn", got {value!r}'
    assert rejected(valid(), ValueError, backend=value).startswith(message)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        # A likely mistake is to pass gamma itself.
        *(({"gamma": v}, TypeError, "gamma must be True or False, got") for v in (STATS, None, 2)),
        *(
            ({"spec": v}, TypeError, "spec must be a TensorSpec, got")
            for v in (SHAPE, None, np.ones(3), "f32")
        ),
        ({"stats_dtype": "f64"}, TypeError, "stats_dtype must be f32, bf16 or f16"),
        ({"spec": onedsl.TensorSpec(())}, ValueError, "src must have at least 2 .*, got 0"),
        ({"spec": onedsl.TensorSpec((5,))}, ValueError, r"at least 2 .*, got 1: shape \(5,\)"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_invalid_options_of_graph(options, error, message):
    with pytest.raises(error, match=message):
        Op(EPSILON).graph(**{"spec": onedsl.TensorSpec(SHAPE), **options})


# ---- Statistics ----


@backends
def test_strided_statistics_are_copied(backend):
    strided = {"mean": every_other(PROBLEM.mean), "gamma": unaligned(PROBLEM.gamma)}
    with helpers.run_records() as records:
        got = call(valid() | strided, backend=backend)
    testing.assert_close(got, EXPECTED)
    assert helpers.copied(records) == ["mean", "gamma"]


def test_empty_statistics_may_have_any_strides():
    src, vector = np.ones((4, 0), np.float32), np.ones((0, 3), np.float32)[:, 0]
    out = (np.empty_like(src), vector.copy(), np.ones((0, 5), np.float32)[:, 0])
    Op(EPSILON)(src, src, *[vector] * 3, out=out)


def test_strides_of_axes_of_size_1_do_not_compile_graphs(monkeypatch):
    compiled, compile_graph = [], onednn.compile_graph
    monkeypatch.setattr(onednn, "compile_graph", lambda *a: compiled.append(a) or compile_graph(*a))
    for stride in 4, 64:
        strides = (stride, *PROBLEM.src.strides[1:])
        one = np.lib.stride_tricks.as_strided(PROBLEM.src, (1, *SHAPE[1:]), strides)
        Op(0.01234)(one, one, *PROBLEM[2:], backend="onednn")
    assert len(compiled) == 1
