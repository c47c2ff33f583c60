"""Whatever is wrong is refused in words, before anything is written."""

from __future__ import annotations

import copy
import decimal
import fractions
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import helpers
import numpy as np
import pytest
from helpers import EPSILON, FORMATS

import onedsl
from onedsl import testing
from onedsl.tensors.arrays import overlap

SHAPE = (4, 6, 5, 8)
STATS = ["mean", "variance", "gamma"]


def base(data_format: str = "NXC") -> testing.Problem:
    return helpers.case(SHAPE, "f32", "f32", data_format).problem


class Bad(NamedTuple):
    """An argument to put in a right one's place, and what the refusal must say."""

    argument: str
    make: Callable[[np.ndarray], Any]
    error: type[Exception]
    words: list[str]


def objects(a):
    return a.astype(object)


def big_endian(a):
    return a.astype(a.dtype.newbyteorder(">"))


class Tensorish:
    """Has an array, is none."""

    def __array__(self, dtype=None, copy=None):
        return np.zeros(SHAPE, np.float32)


BAD: dict[str, Bad] = {}
for name in ["src", "diff_dst", *STATS]:
    everyone = {
        "list": (lambda a: a.tolist(), TypeError, ["must be a NumPy array", "not list"]),
        "tuple": (lambda a: tuple(a.tolist()), TypeError, ["must be a NumPy array", "not tuple"]),
        "string": (lambda a: "zeros", TypeError, ["must be a NumPy array", "not str"]),
        "scalar": (lambda a: 1.0, TypeError, ["must be a NumPy array", "not float"]),
        "numpy_scalar": (
            lambda a: np.float32(1),
            TypeError,
            ["must be a NumPy array", "not float32"],
        ),
        "array_like": (lambda a: Tensorish(), TypeError, ["must be a NumPy array", "Tensorish"]),
        "memoryview": (memoryview, TypeError, ["must be a NumPy array", "not memoryview"]),
        "class": (lambda a: np.ndarray, TypeError, ["must be a NumPy array", "not type"]),
        "masked": (
            lambda a: np.ma.masked_array(a, a > 1),
            TypeError,
            ["masked array", "mask would be lost", f"{name}.filled()"],
        ),
        "object": (objects, TypeError, ["must be f32, bf16 or f16", "not object"]),
        "f64": (lambda a: a.astype("f8"), TypeError, ["f32, bf16 or f16", "not float64"]),
        "int": (lambda a: a.astype("i4"), TypeError, ["f32, bf16 or f16", "not int32"]),
        "uint16": (lambda a: a.astype("u2"), TypeError, ["f32, bf16 or f16", "not uint16"]),
        "bool": (lambda a: a > 0, TypeError, ["f32, bf16 or f16", "not bool"]),
        "complex": (lambda a: a + 0j, TypeError, ["f32, bf16 or f16", "not complex64"]),
        "text": (lambda a: a.astype("U8"), TypeError, ["f32, bf16 or f16", "not str"]),
        "date": (lambda a: a.astype("M8[s]"), TypeError, ["f32, bf16 or f16", "not datetime64"]),
        "record": (
            lambda a: np.zeros(a.shape, [("re", "f4"), ("im", "f4")]),
            TypeError,
            ["f32, bf16 or f16", "not void64"],
        ),
        "big_endian": (big_endian, TypeError, ["byte order", ">f4", "newbyteorder"]),
        "fewer_axes": (lambda a: a[0, ...], ValueError, ["shape"]),
        "more_axes": (lambda a: a[None], ValueError, ["shape"]),
        "zero_axes": (lambda a: a.reshape(-1)[0:1].reshape(()), ValueError, ["shape", "()"]),
        "empty": (lambda a: a[:0], ValueError, ["shape"]),
    }
    if name != "gamma":
        everyone["none"] = (
            lambda a: None,
            TypeError,
            ["must be a NumPy array", "not NoneType"],
        )
    for kind, (make, error, words) in everyone.items():
        # A src of another shape makes those that must fit it wrong; they are named.
        if name == "src" and kind in ("fewer_axes", "more_axes", "empty"):
            said = ["diff_dst", "src"]
        else:
            said = [name, *words]
        BAD[f"{name}_{kind}"] = Bad(name, make, error, said)
for name in ("mean", "variance", "gamma"):
    for kind, make, got in [
        ("long", lambda a: np.append(a, a[:1]), "(9,)"),
        ("short", lambda a: a[:-1].copy(), "(7,)"),
        ("of_one", lambda a: a[:1].copy(), "(1,)"),
        ("column", lambda a: a[:, None].copy(), "(8, 1)"),
    ]:
        BAD[f"{name}_{kind}"] = Bad(
            name, make, ValueError, [name, "(8,)", str(SHAPE), f"it has shape {got}"]
        )
    BAD[f"{name}_f16"] = Bad(name, lambda a: a.astype("f2"), TypeError, [name, "f32", "not f16"])
    BAD[f"{name}_bf16"] = Bad(
        name, lambda a: a.astype(helpers.NUMPY["bf16"]), TypeError, [name, "f32", "not bf16"]
    )
BAD["diff_dst_f16"] = Bad(
    "diff_dst", lambda a: a.astype("f2"), TypeError, ["diff_dst must be f32 as src is", "not f16"]
)
BAD["diff_dst_transposed"] = Bad(
    "diff_dst",
    lambda a: a.transpose(0, 2, 1, 3).copy(),
    ValueError,
    ["diff_dst", str(SHAPE), "not (4, 5, 6, 8)"],
)
BAD["src_rank_1"] = Bad(
    "src", lambda a: a[0, 0, 0].copy(), ValueError, ["src", "2 dimensions or more", "(8,)"]
)

CALLS = ["direct", "compiled"]


def caller(kind: str, sums: bool = True, data_format: str = "NXC"):
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    outputs = "all" if sums else "diff_src"
    if kind == "compiled":
        return op.compile(onedsl.TensorSpec(SHAPE), outputs=outputs, gamma=sums)
    return lambda *inputs, out=None: op(*inputs, outputs=outputs, out=out)


def check_refusal(call, inputs, error, words, out=None):
    """Expect the error and its words, and that no output has a byte changed."""
    guarded = helpers.outputs_like(base())
    before = [a.tobytes() for a in inputs if isinstance(a, np.ndarray) and a.dtype != object]
    with pytest.raises(error) as caught:
        call(*inputs, out=guarded.out if out is None else out)
    assert type(caught.value) is error
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    guarded.check_untouched()
    assert before == [
        a.tobytes() for a in inputs if isinstance(a, np.ndarray) and a.dtype != object
    ]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_input(bad, kind):
    problem = base()
    inputs = problem._replace(**{bad.argument: bad.make(getattr(problem, bad.argument))})
    check_refusal(caller(kind), inputs, bad.error, bad.words)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_input_without_out(bad):
    problem = base()
    inputs = problem._replace(**{bad.argument: bad.make(getattr(problem, bad.argument))})
    with pytest.raises(bad.error):
        caller("direct")(*inputs)


def test_an_absent_gamma_is_not_a_bad_one():
    """None for gamma means ones in a direct call: the table above leaves it out on purpose."""
    assert caller("direct")(*base()[:4], None).diff_gamma is not None


@pytest.mark.parametrize("data_format", FORMATS)
def test_statistics_of_the_other_format_are_refused(data_format):
    other = base("NCX" if data_format == "NXC" else "NXC")
    with pytest.raises(ValueError, match=r"mean must have shape \([68],\)"):
        onedsl.BatchNormTrainingBackward(EPSILON, data_format)(*other)


@pytest.mark.parametrize(
    ("data", "stats", "error"),
    [
        ("f32", "bf16", "mean must be f32 where src is f32, not bf16"),
        ("f32", "f16", "mean must be f32 where src is f32, not f16"),
        ("f16", "f16", "mean must be f32 where src is f16, not f16"),
        ("f16", "bf16", "mean must be f32 where src is f16, not bf16"),
        ("bf16", "f16", "mean must be f32 or bf16 where src is bf16, not f16"),
    ],
)
def test_type_pairs_outside_the_table(data, stats, error):
    problem = testing.random_problem((4, 3), data)
    inputs = [*problem[:2], *(a.astype(helpers.NUMPY[stats]) for a in problem[2:])]
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    with pytest.raises(TypeError, match=error):
        op(*inputs)
    with pytest.raises(TypeError, match=error.replace("mean", "stats_dtype")):
        op.compile(onedsl.TensorSpec((4, 3), data), stats_dtype=stats)


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


def unaligned(a: np.ndarray) -> np.ndarray:
    raw = np.zeros(a.nbytes + 1, np.uint8)
    return raw[1:].view(a.dtype).reshape(a.shape)


class TestOut:
    """Output buffers that cannot be used."""

    @staticmethod
    def refuse(kind, out, error, *words, inputs=None, sums=True):
        """Refuse and write nothing, to the given arrays of out either."""
        inputs = inputs or base()
        if not sums:
            inputs = inputs[:4]
        arrays = [a for a in out if isinstance(a, np.ndarray)] if isinstance(out, tuple) else []
        before = [a.tobytes() for a in arrays]
        check_refusal(caller(kind, sums), inputs, error, words, out=out)
        assert before == [a.tobytes() for a in arrays]

    @staticmethod
    def good() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (np.full(SHAPE, 7, "f4"), np.full(8, 7, "f4"), np.full(8, 7, "f4"))

    @pytest.mark.parametrize("kind", CALLS)
    @pytest.mark.parametrize(
        "out",
        [np.zeros(SHAPE, "f4"), (np.zeros(SHAPE, "f4"),), (), (1, 2, 3, 4), {}, "abc", 3, object()],
        ids=["array", "one", "none", "four", "dict", "string", "int", "object"],
    )
    def test_not_three(self, kind, out):
        self.refuse(kind, out, TypeError, "out must be a tuple (diff_src, diff_gamma, diff_beta)")

    def test_a_list_will_do(self):
        out = list(self.good())
        got = caller("direct")(*base(), out=out)
        assert type(got) is onedsl.BatchNormGradients
        assert all(a is b for a, b in zip(got, out, strict=True))
        testing.assert_gradients_close(got, helpers.case(SHAPE, "f32", "f32", "NXC").with_gamma)

    @pytest.mark.parametrize("kind", CALLS)
    @pytest.mark.parametrize("member", [0, 1, 2])
    @pytest.mark.parametrize(
        ("spoil", "error", "words"),
        [
            (lambda a: a.tolist(), TypeError, ["must be a NumPy array", "not list"]),
            (lambda a: a.astype("f8"), TypeError, ["f32", "not float64"]),
            (lambda a: a.astype("f2"), TypeError, ["must be f32 as", "not f16"]),
            (big_endian, TypeError, ["byte order"]),
            (np.ma.masked_array, TypeError, ["masked array"]),
            (lambda a: a[..., :-1].copy(), ValueError, ["shape", "7"]),
            (lambda a: a[None].copy(), ValueError, ["shape"]),
            (lambda a: np.repeat(a, 2, -1)[..., ::2], ValueError, ["strides"]),
            (lambda a: a[..., ::-1], ValueError, ["strides"]),
            (lambda a: np.broadcast_to(a[..., :1], a.shape), ValueError, []),
            (unaligned, ValueError, []),
            (read_only, ValueError, ["read-only", "can be written to"]),
        ],
        ids=[
            "list", "f64", "f16", "big_endian", "masked", "short", "rank", "step", "reversed",
            "broadcast", "unaligned", "read_only",
        ],
    )  # fmt: skip
    def test_bad_member(self, kind, member, spoil, error, words):
        out = list(self.good())
        out[member] = spoil(out[member])
        name = onedsl.BatchNormGradients._fields[member]
        self.refuse(kind, tuple(out), error, f"out.{name}", *words)

    @pytest.mark.parametrize("kind", CALLS)
    def test_diff_src_in_another_order(self, kind):
        out = (np.full(SHAPE, 7, "f4", order="F"), *self.good()[1:])
        self.refuse(kind, out, ValueError, "out.diff_src must lie in memory as src does", "strides")

    @pytest.mark.parametrize("kind", CALLS)
    @pytest.mark.parametrize(
        ("kept", "sums", "words"),
        [
            ((False, True, True), True, "out.diff_src must be an array, not None"),
            ((False, False, False), True, "out.diff_src must be an array, not None"),
            ((True, True, False), True, "diff_gamma and diff_beta both or neither"),
            ((True, False, True), True, "diff_gamma and diff_beta both or neither"),
            ((True, True, False), False, "diff_gamma and diff_beta both or neither"),
            ((True, False, False), True, "out.diff_gamma and out.diff_beta are None"),
            ((True, True, True), False, "would not be written"),
        ],
    )
    def test_members_that_are_none(self, kind, kept, sums, words):
        out = tuple(a if keep else None for a, keep in zip(self.good(), kept, strict=True))
        self.refuse(kind, out, ValueError, words, sums=sums)

    @pytest.mark.parametrize("kind", CALLS)
    @pytest.mark.parametrize("name", ["src", "diff_dst"])
    @pytest.mark.parametrize("shift", [-8, -1, 1, 8])
    def test_diff_src_overlaps_a_tensor_in_part(self, kind, name, shift):
        problem = base()
        size = problem.src.size
        memory = np.zeros(size + 16, "f4")
        tensor = memory[8 : 8 + size].reshape(SHAPE)
        tensor[...] = getattr(problem, name)
        out = (memory[8 + shift : 8 + shift + size].reshape(SHAPE), *self.good()[1:])
        inputs = problem._replace(**{name: tensor})
        self.refuse(kind, out, ValueError, "out.diff_src", f"overlaps {name}", inputs=inputs)

    @pytest.mark.parametrize("kind", CALLS)
    def test_diff_src_is_src(self, kind):
        src = base().src.copy()
        out = (src, *self.good()[1:])
        inputs = base()._replace(src=src)
        self.refuse(
            kind, out, ValueError, "out.diff_src overlaps src", "exactly diff_dst", inputs=inputs
        )

    @pytest.mark.parametrize("kind", CALLS)
    def test_diff_src_is_diff_dst_which_is_src(self, kind):
        """In place is allowed on diff_dst, but here src would be spoilt."""
        both = base().src.copy()
        inputs = base()._replace(src=both, diff_dst=both)
        out = (both, *self.good()[1:])
        self.refuse(kind, out, ValueError, "out.diff_src overlaps src", inputs=inputs)

    @pytest.mark.parametrize("kind", CALLS)
    @pytest.mark.parametrize("statistic", STATS)
    def test_diff_src_overlaps_a_statistic(self, kind, statistic):
        out = self.good()
        inside = out[0].reshape(-1)[16:24]
        inside[...] = getattr(base(), statistic)
        inputs = base()._replace(**{statistic: inside})
        self.refuse(kind, out, ValueError, f"out.diff_src overlaps {statistic}", inputs=inputs)

    @pytest.mark.parametrize("kind", CALLS)
    @pytest.mark.parametrize("member", [1, 2])
    @pytest.mark.parametrize("name", ["src", "diff_dst", *STATS])
    def test_a_sum_overlaps_an_input(self, kind, member, name):
        problem = base()
        own = getattr(problem, name).copy()
        out = list(self.good())
        out[member] = own.reshape(-1)[:8]
        field = onedsl.BatchNormGradients._fields[member]
        self.refuse(
            kind,
            tuple(out),
            ValueError,
            f"out.{field} overlaps {name}",
            "memory of its own",
            inputs=problem._replace(**{name: own}),
        )

    @pytest.mark.parametrize("kind", CALLS)
    def test_outputs_overlap_each_other(self, kind):
        diff_src, diff_gamma, diff_beta = self.good()
        self.refuse(
            kind,
            (diff_src, diff_gamma, diff_gamma),
            ValueError,
            "out.diff_beta overlaps out.diff_gamma",
        )
        shared = np.full(15, 7, "f4")
        self.refuse(
            kind,
            (diff_src, shared[:8], shared[7:]),
            ValueError,
            "out.diff_beta overlaps out.diff_gamma",
        )
        inside = diff_src.reshape(-1)[:8]
        self.refuse(
            kind, (diff_src, inside, diff_beta), ValueError, "out.diff_gamma overlaps out.diff_src"
        )
        self.refuse(
            kind, (diff_src, diff_gamma, inside), ValueError, "out.diff_beta overlaps out.diff_src"
        )

    def test_in_place_and_a_sum_inside(self):
        """The exception for diff_dst is diff_src's alone."""
        diff_dst = base().diff_dst.copy()
        out = (diff_dst, diff_dst.reshape(-1)[:8], np.full(8, 7, "f4"))
        self.refuse(
            "direct",
            out,
            ValueError,
            "out.diff_gamma overlaps",
            inputs=base()._replace(diff_dst=diff_dst),
        )

    @pytest.mark.parametrize("kind", CALLS)
    def test_neighbours_do_not_overlap(self, kind):
        """Slices of one allocation, end to end, as an arena gives them."""
        problem, wanted, _ = helpers.case(SHAPE, "f32", "f32", "NXC")
        size = problem.src.size
        memory = np.zeros(3 * size + 5 * 8, "f4")
        big = [memory[i * size : (i + 1) * size].reshape(SHAPE) for i in range(3)]
        small = [memory[3 * size + 8 * i :][:8] for i in range(5)]
        for view, array in zip([*big[:2], *small[:3]], problem, strict=True):
            view[...] = array
        got = caller(kind)(*big[:2], *small[:3], out=(big[2], *small[3:]))
        testing.assert_gradients_close(got, wanted)

    def test_strided_src_and_out_between_its_rows(self):
        """A copied src is still looked at for overlap, where it really lies."""
        problem = base()
        memory = np.zeros((*SHAPE[:-1], 16), "f4")
        src = memory[..., :8]
        src[...] = problem.src
        out = (memory.reshape(-1)[: problem.src.size].reshape(SHAPE), *self.good()[1:])
        self.refuse(
            "direct", out, ValueError, "out.diff_src overlaps src", inputs=problem._replace(src=src)
        )

    def test_interleaved_memory_is_no_overlap(self):
        """Regression: memory between the rows of a strided src was taken for src's."""
        problem, wanted, _ = helpers.case(SHAPE, "f32", "f32", "NXC")
        memory = np.full((*SHAPE[:-1], 16), 7, "f4")
        src, between = memory[..., :8], memory.reshape(-1, 16)[:, 8:]
        src[...] = problem.src
        out = (np.empty(SHAPE, "f4"), between[0], between[3])
        testing.assert_gradients_close(caller("direct")(src, *problem[1:], out=out), wanted)
        assert np.array_equal(src, problem.src)
        assert (np.delete(between, (0, 3), axis=0) == 7).all()

    def test_what_is_too_intricate_to_tell_apart(self):
        """To find out whether strided memory holds a byte is as hard as a knapsack."""
        rng = np.random.default_rng(0)
        strides = [4 * int(step) for step in rng.integers(2**30, 2**31, 30)]
        one = np.zeros(1, "f4")
        start = one.ctypes.data - sum(strides) // 8 * 4
        # Nobody reads it: it is not there.
        address = {"data": (start, True), "shape": (2,) * 30, "strides": tuple(strides)}
        interface = {"version": 3, "typestr": "<f4"} | address
        knapsack = np.asarray(types.SimpleNamespace(__array_interface__=interface))
        how = overlap(one, knapsack)
        assert how == "lies, too intricately to be told apart, in the memory of"


def test_inputs_may_be_the_same_array_and_read_only():
    """Nothing is written to them, so they may overlap as they like."""
    src = read_only(base().src)
    ones = read_only(np.ones(8, "f4"))
    got = caller("direct")(src, src, ones, ones, ones)
    wanted = testing.batch_norm_backward(src, src, ones, ones, ones, epsilon=EPSILON)
    testing.assert_gradients_close(got, wanted)


class TestEpsilon:
    @pytest.mark.parametrize(
        ("epsilon", "error", "words"),
        [
            (0, ValueError, "epsilon must be positive and finite, not 0"),
            (-0.0, ValueError, "epsilon must be positive and finite, not -0.0"),
            (-1e-5, ValueError, "epsilon must be positive and finite, not -1e-05"),
            (float("nan"), ValueError, "epsilon must be positive and finite, not nan"),
            (float("inf"), ValueError, "epsilon must be positive and finite, not inf"),
            (-float("inf"), ValueError, "epsilon must be positive and finite, not -inf"),
            (1e-50, ValueError, "epsilon must be representable in float32; 1e-50 becomes 0"),
            (1e39, ValueError, "epsilon must be representable in float32; 1e+39 becomes inf"),
            (10**400, ValueError, "epsilon must be"),
            (fractions.Fraction(10**400), ValueError, "epsilon must be"),
            (True, TypeError, "epsilon must be a number, not True"),
            (np.True_, TypeError, f"epsilon must be a number, not {np.True_!r}"),
            ("1e-5", TypeError, "epsilon must be a number, not '1e-5'"),
            (None, TypeError, "epsilon must be a number, not None"),
            (1e-5 + 0j, TypeError, "epsilon must be a number, not (1e-05+0j)"),
            ([1e-5], TypeError, "epsilon must be a number, not [1e-05]"),
            (np.array([1e-5]), TypeError, "epsilon must be a number, not array"),
            (decimal.Decimal("1e-5"), TypeError, "epsilon must be a number, not Decimal"),
        ],
        ids=str,
    )  # fmt: skip
    def test_refused(self, epsilon, error, words):
        with pytest.raises(error) as caught:
            onedsl.BatchNormTrainingBackward(epsilon)
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        "epsilon", [1, 1e-5, np.float32(1e-5), np.float64(1e-5), np.float16(1e-3), np.int8(1),
                    fractions.Fraction(1, 2), 1e-45, 3e38],
    )  # fmt: skip
    def test_taken(self, epsilon):
        op = onedsl.BatchNormTrainingBackward(epsilon)
        assert type(op.epsilon) is float
        assert op.epsilon == epsilon

    def test_is_required(self):
        with pytest.raises(TypeError, match="epsilon"):
            onedsl.BatchNormTrainingBackward()


@pytest.mark.parametrize("value", ["nxc", "NHWC", "", None, 1, [], {}, b"NXC", "NXC "], ids=repr)
def test_bad_data_format(value):
    with pytest.raises(ValueError, match="data_format must be 'NXC' or 'NCX', not ") as caught:
        onedsl.BatchNormTrainingBackward(EPSILON, value)
    assert repr(value) in str(caught.value)


def both_ways(**options):
    """Give the two calls that take options, with out buffers for the direct one."""
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    guarded = helpers.outputs_like(base())
    yield lambda: op(*base(), out=guarded.out, **options), guarded
    yield lambda: op.compile(onedsl.TensorSpec(SHAPE), **options), guarded


@pytest.mark.parametrize(
    "value", ["onednn ", "cpu", "AUTO", "", None, 1, ["auto"], b"auto"], ids=repr
)
def test_bad_backend(value):
    for call, guarded in both_ways(backend=value):
        with pytest.raises(
            ValueError, match='backend must be "auto", "onednn" or "native"'
        ) as caught:
            call()
        assert repr(value) in str(caught.value)
        guarded.check_untouched()


@pytest.mark.parametrize(
    "value",
    ["ALL", "diff_gamma", "diff_beta", "", None, True, 3, ("diff_src", "diff_gamma"), ["all"]],
    ids=repr,
)
def test_bad_outputs(value):
    """One of the sums alone among them: both or neither, by the op's document."""
    for call, guarded in both_ways(outputs=value):
        with pytest.raises(ValueError, match='outputs must be "all" or "diff_src"') as caught:
            call()
        assert repr(value) in str(caught.value)
        assert "both or neither" in str(caught.value)
        guarded.check_untouched()


@pytest.mark.parametrize(
    "value", [np.ones(8, "f4"), None, "no", 2], ids=["array", "none", "text", "two"]
)
def test_bad_gamma_of_compile(value):
    """The likely mistake is to hand over gamma itself."""
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    with pytest.raises(TypeError, match="gamma must be True or False"):
        op.compile(onedsl.TensorSpec(SHAPE), gamma=value)


@pytest.mark.parametrize(
    "value", [SHAPE, None, base().src, "f32"], ids=["tuple", "none", "array", "text"]
)
def test_bad_spec(value):
    with pytest.raises(TypeError, match="spec must be a TensorSpec, not"):
        onedsl.BatchNormTrainingBackward(EPSILON).compile(value)


@pytest.mark.parametrize("shape", [(), (5,)], ids=str)
def test_spec_of_too_low_rank(shape):
    with pytest.raises(ValueError, match="src must have 2 dimensions or more") as caught:
        onedsl.BatchNormTrainingBackward(EPSILON).compile(onedsl.TensorSpec(shape))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize(
    "value",
    ["f64", "half", float, int, None, "i4", pytest.param(object(), id="object"), 3],
    ids=repr,
)
def test_bad_stats_dtype(value):
    with pytest.raises(TypeError, match="stats_dtype must be f32, bf16 or f16"):
        onedsl.BatchNormTrainingBackward(EPSILON).compile(
            onedsl.TensorSpec(SHAPE), stats_dtype=value
        )


class TestNotWhatWasCompiled:
    """Right in themselves, but not what the plan is for."""

    @staticmethod
    def refuse(problem, error, *words, plan=None, outputs=None):
        guarded = helpers.outputs_like(outputs or problem)
        plan = plan or caller("compiled")
        with pytest.raises(error) as caught:
            plan(*problem, out=guarded.out)
        for word in words:
            assert word in str(caught.value)
        guarded.check_untouched()

    def test_dtype(self):
        problem = testing.random_problem(SHAPE, "bf16")
        self.refuse(problem, TypeError, "src is bf16", "compiled for f32")

    def test_stats_dtype(self):
        op = onedsl.BatchNormTrainingBackward(EPSILON)
        plan = op.compile(onedsl.TensorSpec(SHAPE, "bf16"), stats_dtype="bf16")
        self.refuse(
            testing.random_problem(SHAPE, "bf16"),
            TypeError,
            "mean is f32",
            'compiled for stats_dtype="bf16"',
            plan=plan,
        )

    @pytest.mark.parametrize(
        "shape", [(4, 6, 5, 9), (3, 6, 5, 8), (4, 30, 8), (4, 5, 6, 8)], ids=str
    )
    def test_shape(self, shape):
        self.refuse(
            testing.random_problem(shape),
            ValueError,
            f"src has shape {shape}",
            f"compiled for {SHAPE}",
        )

    def test_strides(self):
        problem = base()
        src = np.asfortranarray(problem.src)
        inputs = problem._replace(src=src, diff_dst=np.asfortranarray(problem.diff_dst))
        self.refuse(
            inputs,
            ValueError,
            f"src has strides {src.strides}",
            f"compiled for {problem.src.strides}",
            "TensorSpec.of(src)",
        )
        self.refuse(problem._replace(diff_dst=inputs.diff_dst), ValueError, "diff_dst has strides")

    def test_slice(self):
        """Not copied in silence: what is compiled runs on the memory it is given."""
        wide = np.repeat(base().src, 2, -1)[..., ::2]
        self.refuse(
            base()._replace(src=wide),
            ValueError,
            "src has strides",
            "TensorSpec.of(src)",
            outputs=base(),
        )

    def test_unaligned(self):
        raw = np.zeros(base().src.nbytes + 1, np.uint8)
        src = raw[1:].view("f4").reshape(SHAPE)
        self.refuse(base()._replace(src=src), ValueError, "src is not aligned", "src.copy()")

    def test_strided_statistics_are_copied(self, caplog):
        """As the docstring says: tensors are never copied, and statistics are if they must."""
        problem, wanted, _ = helpers.case(SHAPE, "f32", "f32", "NXC")
        raw = np.zeros(problem.gamma.nbytes + 1, np.uint8)
        gamma = raw[1:].view("f4")
        gamma[...] = problem.gamma
        mean = np.repeat(problem.mean, 2)[::2]
        with caplog.at_level("INFO", logger="onedsl"):
            got = caller("compiled")(*problem._replace(mean=mean, gamma=gamma))
        testing.assert_gradients_close(got, wanted)
        assert [r.getMessage().split()[:2] for r in caplog.records] == [
            ["mean", "copied:"],
            ["gamma", "copied:"],
        ]

    def test_what_is_refused_is_not_copied_before(self, caplog):
        wide = np.repeat(base().src, 2, -1)[..., ::2]
        with caplog.at_level("INFO", logger="onedsl"):
            self.refuse(base()._replace(src=wide), ValueError, "src has strides", outputs=base())
        assert not caplog.records

    def test_gamma(self):
        op = onedsl.BatchNormTrainingBackward(EPSILON)
        without = op.compile(onedsl.TensorSpec(SHAPE), gamma=False)
        self.refuse(base(), TypeError, "gamma is given", "compiled with gamma=False", plan=without)
        with pytest.raises(TypeError, match=r"gamma is missing, .* compiled with gamma=True"):
            caller("compiled")(*base()[:4])


def test_arguments_that_do_not_exist():
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    plan = op.compile(onedsl.TensorSpec(SHAPE))
    with pytest.raises(TypeError):
        op(*base()[:3])
    with pytest.raises(TypeError):
        op(*base(), "all")
    with pytest.raises(TypeError):
        plan(*base(), backend="native")
    with pytest.raises(TypeError):
        op.compile(onedsl.TensorSpec(SHAPE), "f32")


def test_keywords_are_the_ports_names():
    problem, wanted, _ = helpers.case(SHAPE, "f32", "f32", "NXC")
    op = onedsl.BatchNormTrainingBackward(epsilon=EPSILON, data_format="NXC")
    testing.assert_gradients_close(op(**problem._asdict()), wanted)
    plan = op.compile(onedsl.TensorSpec(SHAPE))
    testing.assert_gradients_close(plan(**problem._asdict()), wanted)


class TestTensorSpecLimits:
    """Sizes that no memory has: words, not overflow and not an allocation of the impossible."""

    @pytest.mark.parametrize("backend", helpers.BACKENDS)
    @pytest.mark.parametrize(
        "shape",
        [(2**40, 2**40), (2**31, 2**31, 4), (2**62, 4), (2**70, 4), (2**63 - 1, 2, 3)],
        ids=str,
    )
    def test_more_bytes_than_an_address_can_count(self, shape, backend):
        with pytest.raises(ValueError, match="shape"):
            onedsl.BatchNormTrainingBackward(EPSILON).compile(
                onedsl.TensorSpec(shape), backend=backend
            )

    @pytest.mark.parametrize("shape", [(2**31, 1), (2**25, 64), (65536, 32768, 1)], ids=str)
    def test_two_to_the_31_elements(self, shape):
        """oneDNN's kernels count in 32 bits here and there; onedsl's own do not."""
        op = onedsl.BatchNormTrainingBackward(EPSILON)
        spec = onedsl.TensorSpec(shape, "f32")
        with pytest.raises(onedsl.UnsupportedError, match=r"2\^31 elements") as caught:
            op.compile(spec, backend="onednn")
        assert "native" in str(caught.value)
        for backend in ("auto", "native"):
            assert op.compile(spec, backend=backend).backend == "native"

    def test_a_refusal_needs_no_memory(self):
        """Regression: channel buffers of 96 GiB were made before the size was looked at."""
        child = helpers.run_script("reject_in_little_memory.py")
        assert child.returncode == 0, child.stderr

    def test_rank(self):
        """NumPy counts to 64."""
        op = onedsl.BatchNormTrainingBackward(EPSILON)
        with pytest.raises(ValueError, match=r"(?=.*64)(?=.*65)"):
            op.compile(onedsl.TensorSpec((1,) * 65))
        most = (np.lib.NumpyVersion(np.__version__) >= "2.0.0" and 64) or 32
        shape = (4, *(1,) * (most - 2), 3)
        problem, wanted, _ = helpers.case(shape, "f32", "f32", "NXC")
        testing.assert_gradients_close(op(*problem), wanted, factor=4)


def test_copies_of_an_operator_refuse_too():
    op = copy.copy(onedsl.BatchNormTrainingBackward(EPSILON))
    with pytest.raises(TypeError, match="src must be a NumPy array"):
        op([1.0], *base()[1:])


@pytest.mark.parametrize(("bound", "inside"), [(2.0**-150, 1.0), (2.0**128 - 2.0**103, 0.0)])
def test_epsilon_may_be_all_that_float32_can_hold(bound, inside):
    with np.errstate(over="ignore", under="ignore"):
        assert np.float32(bound) in (0, np.inf)
        assert np.float32(np.nextafter(bound, inside)) not in (0, np.inf)
    with pytest.raises(ValueError, match="epsilon must be representable in float32"):
        onedsl.BatchNormTrainingBackward(bound)
    onedsl.BatchNormTrainingBackward(np.nextafter(bound, inside))
