"""Invalid arguments that the law of rejections does not have: every kind of object, and of memory.

tests/laws/test_rejects.py has one fault of each reason, of all ways to call onedsl. Here are the
many objects, dtypes, shapes, numbers and overlaps that have the same reason, in calls of one class.
"""

import contextlib
import decimal
import fractions
import functools
import itertools
import math
import mmap
import re
import types
from collections.abc import Callable

import helpers
import numpy as np
import pytest
from fuzz.arrays import WRITABLE_TYPES, to_numpy
from helpers import BACKENDS, EPSILON, backends, read_only, unaligned

import onedsl
from onedsl import _core, testing
from onedsl.runtime import onednn

SHAPE = (4, 6, 5, 8)
STATS = ["mean", "variance", "gamma"]
NAMES = ["src", "diff_dst", *STATS]
Op = onedsl.BatchNormTrainingBackward
SPEC = onedsl.TensorSpec(SHAPE)


def base(data_format: str = "NXC") -> testing.Problem:
    return helpers.case(SHAPE, "f32", "f32", data_format).problem


class HasArray:
    """Converts to an array, but is not one and has no DLPack."""

    def __array__(self, dtype=None, copy=None):
        return np.zeros(SHAPE, np.float32)


def big_endian(a: np.ndarray) -> np.ndarray:
    return a.astype(a.dtype.newbyteorder(">"))


def to(dtype) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: a.astype(dtype)


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
# Names of arguments, and functions that make an invalid argument from a valid one, by error.
INVALID: list[tuple[list[str], type[Exception], dict[str, Callable[[np.ndarray], object]]]] = [
    (NAMES, TypeError, NOT_ARRAYS),
    (NAMES[:-1], TypeError, {"absent": lambda a: None}),  # an absent gamma is valid
    (NAMES, TypeError, {name: to(dtype) for name, dtype in DTYPES.items()}),
    (NAMES, TypeError, {"masked": np.ma.masked_array, "big-endian": big_endian}),
    (NAMES, ValueError, {"rank 0": lambda a: a.reshape(-1)[0:1].reshape(())}),
    (NAMES, ValueError, OTHER_SHAPES),
    (
        STATS,
        ValueError,
        {
            "longer": lambda a: np.append(a, a[:1]),
            "one": lambda a: a[:1].copy(),
            "column": lambda a: a[:, None].copy(),
        },
    ),
    (NAMES[1:], TypeError, {"bf16": to(helpers.NUMPY["bf16"]), "f16": to("f2")}),
    (["diff_dst"], ValueError, {"transposed": lambda a: a.transpose(0, 2, 1, 3).copy()}),
    (["src"], ValueError, {"rank 1": lambda a: a[0, 0, 0].copy()}),
]


def caller(backend: str, all_outputs: bool = True) -> Callable[..., onedsl.BatchNormGradients]:
    outputs = "all" if all_outputs else "diff_src"
    return functools.partial(Op(EPSILON), outputs=outputs, backend=backend)


def check_error(call, inputs, error, *checks, out=None):
    """Check the type of an error, and that no byte of an input or output changes.

    `checks` are functions of the error, or parts of its message.
    """
    guarded = helpers.outputs_like(base())
    arrays = []
    for value in [*inputs, *(out if isinstance(out, tuple) else ())]:
        with contextlib.suppress(AttributeError):  # no array
            arrays.append(to_numpy(value))
    arrays = [a for a in arrays if a.dtype != object]
    before = [a.tobytes() for a in arrays]
    with pytest.raises(error) as caught:
        call(*inputs, out=guarded.out if out is None else out)
    assert type(caught.value) is error
    for check in checks:
        if isinstance(check, str):
            assert check in str(caught.value)
        else:
            check(caught.value)
    guarded.check_untouched()
    assert before == [a.tobytes() for a in arrays]


def note(messages, message, name):
    """Add a message without the name of the argument, by what is required."""
    requirement, _, got = message.replace(name, "NAME").partition(", got ")
    messages.setdefault(requirement, set()).add(re.sub("0x[0-9a-f]+", "0x...", got))


def say_all(says, messages):
    """Compare each requirement once, with all that was got instead."""
    for requirement, got in sorted(messages.items()):
        says(f"{requirement}, got {' | '.join(sorted(got))}")


@pytest.mark.parametrize(
    ("names", "error", "makes"), INVALID, ids=[", ".join(makes)[:40] for *_, makes in INVALID]
)
def test_invalid_input(names, error, makes, says):
    problem, messages = base(), {}
    for name, make in itertools.product(names, makes.values()):
        raised = []
        for backend in BACKENDS:
            inputs = problem._replace(**{name: make(getattr(problem, name))})
            check_error(caller(backend), inputs, error, raised.append)
        native, onednn = map(str, raised)
        assert native == onednn
        note(messages, native, name)
    say_all(says, messages)


DTYPES_AND_F64 = helpers.NUMPY | {"f64": np.dtype("f8")}
UNSUPPORTED_TYPES = sorted({*itertools.product(DTYPES_AND_F64, repeat=2)} - {*helpers.TYPES})


@pytest.mark.parametrize(("data", "stats"), UNSUPPORTED_TYPES)
def test_dtype_pairs_outside_the_table(data, stats):
    allowed, got = ("f32 or bf16" if data == "bf16" else "f32"), stats.replace("f64", "float64")
    error = f"mean must be {allowed} where src is {data}, got {got}"
    if data == "f64":
        error = "src must be f32, bf16 or f16, got float64"
    kinds = [data] * 2 + [stats] * 3
    inputs = [
        a.astype(DTYPES_AND_F64[kind])
        for a, kind in zip(testing.random_problem((4, 3)), kinds, strict=True)
    ]
    with pytest.raises(TypeError, match=error):
        Op(EPSILON)(*inputs)
    if "f64" not in kinds:
        error = error.replace("mean", "stats_dtype")
        with pytest.raises(TypeError, match=error):
            Op(EPSILON).graph(onedsl.TensorSpec((4, 3), data), stats_dtype=stats)
        with pytest.raises(TypeError, match=error.replace("src", "dtype")):
            onedsl.capabilities().runs_in_onednn(data, stats)


OUT_NAMES = onedsl.BatchNormGradients._fields
OUT = [f"out.{name}" for name in OUT_NAMES]
OVERLAPS = [(name, other) for i, name in enumerate(OUT) for other in [*NAMES, *OUT[:i]]]


def rows_with_a_common_element(array: np.ndarray) -> np.ndarray:
    step = array.strides[-2] - array.itemsize
    return np.lib.stride_tricks.as_strided(
        array, strides=(*array.strides[:-2], step, array.itemsize)
    )


def every_other(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, -1)[..., ::2]


def backwards(array: np.ndarray) -> np.ndarray:
    return array[..., ::-1]


class TestOut:
    """Arrays of ``out`` that cannot be written to."""

    @staticmethod
    def check(out, error, *checks, inputs=None, all_outputs=True, backends=BACKENDS):
        inputs = inputs or base()
        if not all_outputs:
            inputs = inputs[:4]
        for backend in backends:
            check_error(caller(backend, all_outputs), inputs, error, *checks, out=out)

    @staticmethod
    def good() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (np.full(SHAPE, 7, "f4"), np.full(8, 7, "f4"), np.full(8, 7, "f4"))

    def with_diff_src(self, diff_src):
        return (diff_src, *self.good()[1:])

    def test_not_a_tuple_of_three(self):
        array = np.zeros(SHAPE, "f4")
        other_type = base()._replace(diff_dst=base().diff_dst.astype("f2"))
        for out in (array, (array,), (), (1, 2, 3, 4), {}, "abc", 3, object()):
            self.check(out, TypeError, "out must be a tuple (diff_src, diff_gamma, diff_beta)")
            # Regression: an array was "ambiguous", and a number "not iterable".
            self.check(out, TypeError, "diff_dst must be f32 like src", inputs=other_type)

    def test_list(self):
        out = list(self.good())
        got = caller("native")(*base(), out=out)
        assert type(got) is onedsl.BatchNormGradients
        assert all(a is b for a, b in zip(got, out, strict=True))
        testing.assert_close(got, helpers.case(SHAPE, "f32", "f32", "NXC").expected)

    @pytest.mark.parametrize(
        ("spoil", "error"),
        [
            pytest.param(np.ndarray.tolist, TypeError, id="list"),
            pytest.param(to("f8"), TypeError, id="f64"),
            pytest.param(to("f2"), TypeError, id="f16"),
            pytest.param(big_endian, TypeError, id="big-endian"),
            pytest.param(np.ma.masked_array, TypeError, id="masked"),
            pytest.param(lambda a: a[..., :-1].copy(), ValueError, id="shorter"),
            pytest.param(lambda a: a[None], ValueError, id="another axis"),
            pytest.param(every_other, ValueError, id="strided"),
            pytest.param(backwards, ValueError, id="reversed"),
            pytest.param(
                lambda a: np.broadcast_to(a[..., :1], a.shape), ValueError, id="broadcast"
            ),
            pytest.param(unaligned, ValueError, id="unaligned"),
            pytest.param(read_only, ValueError, id="read-only"),
        ],
    )
    def test_invalid_member(self, spoil, error, says):
        messages = {}
        for member, name in enumerate(OUT):
            out = list(self.good())
            out[member] = spoil(out[member])
            if member == 0 and spoil in (every_other, backwards):  # results are copied to them
                for backend in BACKENDS:
                    got = caller(backend)(*base(), out=tuple(out))
                    testing.assert_close(got, caller(backend)(*base()))
                continue
            raised = []
            self.check(tuple(out), error, f"{name} ", raised.append)
            for each in raised:
                note(messages, str(each), name)
        say_all(says, messages)

    @pytest.mark.parametrize("library", WRITABLE_TYPES)
    @pytest.mark.parametrize(
        ("member", "spoil", "fragment"),
        [
            (0, unaligned, "must be aligned to its items, got 0x"),
            (1, unaligned, "must be aligned to its items, got 0x"),
            (2, lambda a: np.repeat(a, 2)[::2], "must be contiguous, got strides (8,)"),
            (0, rows_with_a_common_element, "must not overlap itself"),
        ],
    )
    def test_invalid_member_of_any_library(self, library, member, spoil, fragment):
        """Regression: an AttributeError, because only NumPy's arrays have ctypes and strides."""
        problem = testing.Problem(*(library(a.copy()) for a in base()))
        out = [library(a) for a in self.good()]
        out[member] = library(spoil(self.good()[member]))
        message = f"out.{OUT_NAMES[member]} {fragment}"
        self.check(tuple(out), ValueError, message, inputs=problem)

    @pytest.mark.parametrize(("axis", "stride"), [(-1, 0), (-2, 4)])
    def test_diff_src_of_common_elements(self, axis, stride):
        strides = [960, 160, 32, 4]
        strides[axis] = stride
        diff_src = np.lib.stride_tricks.as_strided(np.zeros(1000, "f4"), SHAPE, strides)
        error = "out.diff_src must not overlap itself"
        self.check(self.with_diff_src(diff_src), ValueError, error)

    @backends
    def test_strides_that_are_no_multiples_of_items(self, backend):
        """Such tensors are copied, too."""
        records = np.dtype([("value", "f4"), ("pad", "u1")])
        src, diff_src = (np.zeros(SHAPE, records)["value"] for _ in range(2))
        src[...] = base().src
        inputs = base()._replace(src=src)
        caller(backend)(*inputs, out=self.with_diff_src(diff_src))
        expected = caller(backend)(*base())
        assert diff_src.tobytes() == expected.diff_src.tobytes()

    def test_members_that_are_none(self):
        for kept, all_outputs, fragment in [
            ((False, True, True), True, "out.diff_src must be an array, got None"),
            ((True, True, False), True, "out.diff_beta must be an array, got None. Or pass outp"),
            ((True, True, False), False, 'out.diff_gamma must be None with outputs="diff_src"'),
            ((True, False, True), False, 'out.diff_beta must be None with outputs="diff_src"'),
        ]:
            out = tuple(a if keep else None for a, keep in zip(self.good(), kept, strict=True))
            self.check(out, ValueError, fragment, all_outputs=all_outputs)

    def test_in_place_over_src(self):
        """It is allowed over diff_dst, but not if diff_dst is src."""
        src = base().src.copy()
        fragments = "out.diff_src must not overlap src", "may be diff_dst itself"
        inputs = base()._replace(src=src, diff_dst=src)
        self.check(self.with_diff_src(src), ValueError, *fragments, inputs=inputs)

    @backends
    @pytest.mark.parametrize(("name", "other"), OVERLAPS, ids=str)
    def test_overlaps(self, name, other, backend):
        """Arrays that share an element or more are rejected, and neighbors are not."""
        problem, expected = helpers.case(SHAPE, "f32", "f32", "NXC")

        def new():
            return {**problem._asdict(), **dict(zip(OUT, self.good(), strict=True))}

        length, size = new()[name].size, new()[other].size
        for start in (-length, 1 - length, 0, size - 1, size):
            arrays, memory = new(), np.zeros(size + 2 * length, "f4")
            for each, at in ((name, length + start), (other, length)):
                place = memory[at:][: arrays[each].size].reshape(arrays[each].shape)
                place[...] = arrays[each]
                arrays[each] = place
            inputs, out = (tuple(arrays[n] for n in names) for names in (NAMES, OUT))
            in_place = (name, other, start) == ("out.diff_src", "diff_dst", 0)
            if start in (-length, size) or in_place:
                testing.assert_close(caller(backend)(*inputs, out=out), expected)
            else:
                message = f"{name} must not overlap {other}"
                check_error(caller(backend), inputs, ValueError, message, out=out)

    @pytest.mark.parametrize("name", ["src", "diff_dst"])
    def test_strided_inputs_overlap_out(self, name):
        """The overlap is checked with the caller's array, not with its dense copy.

        A strided diff_dst that begins where out begins is not the in-place run: later elements
        would be overwritten before they are read.
        """
        problem = base()
        memory = np.zeros((*SHAPE[:-1], 16), "f4")
        strided = memory[..., :8]
        strided[...] = getattr(problem, name)
        out = self.with_diff_src(memory.reshape(-1)[: problem.src.size].reshape(SHAPE))
        inputs = problem._replace(**{name: strided})
        self.check(out, ValueError, f"out.diff_src must not overlap {name}", inputs=inputs)

    def test_interleaved_memory_does_not_overlap(self):
        """Regression: memory between the rows of a strided src counted as src's."""
        problem, expected = helpers.case(SHAPE, "f32", "f32", "NXC")
        memory = np.full((*SHAPE[:-1], 16), 7, "f4")
        src, between = memory[..., :8], memory.reshape(-1, 16)[:, 8:]
        src[...] = problem.src
        out = (np.empty(SHAPE, "f4"), between[0], between[3])
        testing.assert_close(caller("native")(src, *problem[1:], out=out), expected)
        assert np.array_equal(src, problem.src)
        assert (np.delete(between, (0, 3), axis=0) == 7).all()

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
    def test_slices_of_one_array(self, part):
        """Slices that share no element may be input and output."""
        problem, expected = helpers.case(SHAPE, "f32", "f32", "NXC")
        memory = np.zeros((*SHAPE[:-1], 16), "f4")
        src, diff_src = (part(memory, i) for i in range(2))
        src[...] = problem.src
        got = caller("native")(src, *problem[1:], out=self.with_diff_src(diff_src))
        assert got.diff_src is diff_src
        testing.assert_close(got, expected)
        assert np.array_equal(src, problem.src)
        # diff_dst is used in place, and one that begins elsewhere is not.
        src[...] = problem.diff_dst
        self.check(
            self.with_diff_src(part(memory, 0)),
            ValueError,
            "out.diff_src must not overlap src. It may be diff_dst itself",
            inputs=problem._replace(src=src),
            backends=["native"],
        )
        inputs = problem._replace(diff_dst=src)
        got = caller("native")(*inputs, out=self.with_diff_src(src))
        testing.assert_close(got, expected)

    def test_undecidable_overlap_counts_as_overlap(self):
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
        arrays = (knapsack, knapsack, *stats)
        out = (dense, gamma, other)
        found = Op(EPSILON)._core.describe(arrays, True, out)
        del (
            knapsack,
            dense,
            arrays,
            out,
        )  # if the assertion failed, pytest would print it, and crash
        assert (found.reason, found.port, found.other) == ("overlap", "out.diff_gamma", "src")


OUT_OF_FLOAT32 = [0, -0.0, -1e-5, math.nan, math.inf, -math.inf, 1e-50, 1e39, 10**400]
OUT_OF_FLOAT32 += [fractions.Fraction(10**400)]
NOT_NUMBERS = [True, np.True_, "1e-5", 1e-5 + 0j, [1e-5], np.array([1e-5])]
NOT_NUMBERS += [decimal.Decimal("1e-5")]


@pytest.mark.parametrize(
    ("name", "requirement", "numbers", "others"),
    [
        ("epsilon", "positive and finite in float32", OUT_OF_FLOAT32, [*NOT_NUMBERS, None]),
        ("momentum", "from 0 to 1", [1.5, -1e-5, math.nan, 10**400], NOT_NUMBERS),
        ("clip", "positive and finite in float32, or None", OUT_OF_FLOAT32, NOT_NUMBERS),
    ],
)
def test_invalid_numbers(name, requirement, numbers, others):
    for cls, required in (Op, {}), (onedsl.BatchNormActForwardTraining, {"activation": "relu"}):
        if hasattr(cls, name):
            for value in numbers:
                with pytest.raises(ValueError, match=f"^{name} must be {requirement}, got "):
                    cls(**{"epsilon": 1, name: value, **required})
            for value in others:
                message = re.escape(f"{name} must be a number, got {value!r}")
                with pytest.raises(TypeError, match=f"^{message}"):
                    cls(**{"epsilon": 1, name: value, **required})


@pytest.mark.parametrize(("bound", "inside"), [(2.0**-150, 1.0), (2.0**128 - 2.0**103, 0.0)])
def test_bounds_of_epsilon_are_those_of_float32(bound, inside):
    with np.errstate(over="ignore", under="ignore"):
        assert np.float32(bound) in (0, np.inf)
        assert np.float32(np.nextafter(bound, inside)) not in (0, np.inf)
    with pytest.raises(ValueError, match="epsilon must be positive and finite in float32"):
        Op(bound)
    Op(np.nextafter(bound, inside))


@pytest.mark.parametrize("value", ["nxc", "NHWC", "", None, 1, [], {}, b"NXC", "NXC "], ids=repr)
def test_invalid_data_format(value):
    with pytest.raises(ValueError, match="data_format must be 'NXC' or 'NCX', got ") as caught:
        Op(EPSILON, value)
    assert f"got {value!r}" in str(caught.value)
    assert ("NHWC is NXC" in str(caught.value)) == (value == "NHWC")


@pytest.mark.parametrize(
    ("option", "values", "message"),
    [
        (
            "backend",
            ["onednn ", "cpu", "AUTO", "", None, 1, ["auto"], b"auto"],
            'backend must be "auto" or "onednn"',
        ),
        (
            "outputs",
            ["ALL", "diff_gamma", "", None, True, 3, ("diff_src", "diff_gamma"), ["all"]],
            'outputs must be "all" or "diff_src".* diff_gamma and diff_beta are computed together',
        ),
    ],
)
def test_invalid_option(option, values, message):
    for value in values:
        guarded = helpers.outputs_like(base())
        with pytest.raises(ValueError, match=message) as caught:
            Op(EPSILON)(*base(), out=guarded.out, **{option: value})
        assert f"got {value!r}" in str(caught.value)
        guarded.check_untouched()
        if option == "outputs":
            with pytest.raises(ValueError, match=message):
                Op(EPSILON).graph(SPEC, outputs=value)


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
        Op(EPSILON).graph(**{"spec": SPEC, **options})


@backends
def test_strided_statistics_are_copied(backend):
    problem, expected = helpers.case(SHAPE, "f32", "f32", "NXC")
    gamma = unaligned(problem.gamma)
    mean = np.repeat(problem.mean, 2)[::2]
    with helpers.run_records() as records:
        got = caller(backend)(*problem._replace(mean=mean, gamma=gamma))
    testing.assert_close(got, expected)
    assert helpers.copied(records) == ["mean", "gamma"]


def test_empty_statistics_may_have_any_strides():
    src, vector = np.ones((4, 0), np.float32), np.ones((0, 3), np.float32)[:, 0]
    out = (np.empty_like(src), vector.copy(), np.ones((0, 5), np.float32)[:, 0])
    Op(EPSILON)(src, src, *[vector] * 3, out=out)


def test_strides_of_axes_of_size_1_do_not_compile_graphs(monkeypatch):
    op, (src, _, *statistics), compiled = Op(0.01234), base(), []
    compile_graph = onednn.compile_graph
    monkeypatch.setattr(onednn, "compile_graph", lambda *a: compiled.append(a) or compile_graph(*a))
    for stride in 4, 64:
        shape, strides = (1, *src.shape[1:]), (stride, *src.strides[1:])
        one = np.lib.stride_tricks.as_strided(src, shape, strides)
        op(one, one, *statistics, backend="onednn")
    assert len(compiled) == 1


def test_too_large_inputs():
    """Broadcast, they need little memory. Regression: a dense copy was tried."""
    src = np.broadcast_to(np.float32(1), (2**40, 2**18))
    with pytest.raises(ValueError, match=r"src must have at most .* bytes, .*got shape"):
        Op(EPSILON)(src, src, *np.ones((2, 2**18), "f4"))
    why = _core.why_torch_unsupported
    info = True, "f32", (2**40, 2**18)
    assert "2^56 bytes" in why("training_backward", [info] * 2 + [(True, "f32", (2**18,))] * 3, 1.0)
