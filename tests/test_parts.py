"""The two passes of a call by themselves, on parts: `reduce`, `+` and `apply`."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import helpers
import ml_dtypes
import numpy as np
import pytest
from helpers import EPSILON, formats, types
from hypothesis import given
from hypothesis import strategies as st
from test_properties import Setting, settings

import onedsl
from onedsl import testing

CELLS = tuple((dtype, stats, "native") for dtype, stats in helpers.TYPES)
KINDS = [onedsl.BatchNormSums, onedsl.BatchNormMoments]


class Pair(NamedTuple):
    """An operator, its inputs by name, and which of them are tensors, and are summed."""

    op: Any
    inputs: dict[str, np.ndarray]
    tensors: tuple[str, ...]
    summed: tuple[str, ...]

    def part(self, names: tuple[str, ...], where: Any) -> dict[str, np.ndarray]:
        return {
            name: self.inputs[name][where] if name in self.tensors else self.inputs[name]
            for name in names
        }

    def reduce(self, where: Any = ...) -> Any:
        return self.op.reduce(**self.part(self.summed, where))

    def apply(self, totals: Any, where: Any = ..., **options: Any) -> Any:
        return self.op.apply(totals, **self.part(tuple(self.inputs), where), **options)

    def call(self, **options: Any) -> Any:
        return self.op(**self.inputs, **options)


def gradient(problem: testing.Problem, data_format: str) -> Pair:
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    names = tuple(problem._fields)
    return Pair(op, problem._asdict(), names[:2], names[:4])


def backprop(problem: testing.Problem, data_format: str) -> Pair:
    op = onedsl.BatchNormTrainingBackprop(EPSILON, data_format)
    names = ("input_forward", "output_delta", "mean", "variance", "gamma")
    return Pair(op, dict(zip(names, problem, strict=True)), names[:2], names[:4])


def frozen(problem: testing.Problem, data_format: str) -> Pair:
    op = onedsl.BatchNormalizationGrad(EPSILON)
    names = ("input", "input_gradient", "mean", "variance", "scale")
    kept = [1] * problem.src.ndim
    kept[-1 if data_format == "NXC" else 1] = -1
    narrow = np.float16 if problem.src.dtype == np.float16 else np.float32
    arrays = [a.astype(narrow) for a in problem]
    inputs = [*arrays[:2], *(a.reshape(kept) for a in arrays[2:])]
    return Pair(op, dict(zip(names, inputs, strict=True)), names[:2], names[:4])


def forward(problem: testing.Problem, data_format: str) -> Pair:
    op = onedsl.BatchNormForwardTraining(EPSILON, 0.9, data_format)
    src, _, mean, variance, gamma = problem
    inputs = {"src": src, "mean": mean, "variance": variance, "gamma": gamma, "beta": mean}
    return Pair(op, inputs, ("src",), ("src",))


PAIRS = [gradient, backprop, frozen, forward]
pairs = pytest.mark.parametrize("make", PAIRS)


def bits(result: Any) -> list[bytes]:
    return [np.ascontiguousarray(array).tobytes() for array in result if array is not None]


def cut(setting: Setting, random: Any) -> list[tuple[Any, ...]]:
    """Cut the tensors into parts along an axis that is summed over, some of them empty."""
    axis = random.choice(setting.others)
    size = setting.problem.src.shape[axis]
    cuts = sorted(random.randint(0, size) for _ in range(random.randint(0, 5)))
    parts = [
        (slice(None),) * axis + (slice(a, b),)
        for a, b in zip([0, *cuts], [*cuts, size], strict=True)
    ]
    random.shuffle(parts)
    return parts


def put_together(setting: Setting, parts: list[tuple[Any, ...]], tensors: list[Any]) -> np.ndarray:
    whole = np.empty_like(setting.problem.src, tensors[0].dtype)
    for where, tensor in zip(parts, tensors, strict=True):
        whole[where] = tensor
    return whole


def any_grouping(totals: list[Any], random: Any) -> Any:
    totals = list(totals)
    while len(totals) > 1:
        random.shuffle(totals)
        totals.append(totals.pop() + totals.pop())
    return totals[0]


@given(settings(CELLS), st.sampled_from(PAIRS), st.booleans())
def test_a_single_part_has_the_bits_of_the_call(setting, make, in_place):
    pair = make(setting.problem, setting.data_format)
    wanted = bits(pair.call())
    totals = pair.reduce()
    assert totals.count == setting.problem.src.size // setting.problem.mean.size
    out = None
    if in_place:
        over = pair.inputs[pair.tensors[-1]] = pair.inputs[pair.tensors[-1]].copy(order="K")
        out = (over, *(np.empty_like(a) for a in pair.call()[1:]))
    assert bits(pair.apply(totals, out=out)) == wanted


# In units of the last place of the largest term. The kernels add up to eight terms in f32, others
# in parts than in the whole: what that leaves is least where there are many.
LAST_PLACE = {"f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}


def assert_near(got: np.ndarray, wanted: np.ndarray, terms: np.ndarray, units: float) -> None:
    dtype = next(name for name, d in helpers.NUMPY.items() if d == got.dtype)
    off = np.abs(got.astype("f8") - wanted.astype("f8"))
    size = np.maximum(np.abs(wanted.astype("f8")), terms)
    assert (off <= units * LAST_PLACE[dtype] * size + 1e-30).all(), (off / size).max()


@given(settings(CELLS), st.randoms(use_true_random=False))
def test_parts_are_the_whole(setting, random):
    check_parts(setting, random, units=4)


def check_parts(setting: Setting, random: Any, units: float) -> None:
    problem, axes = setting.problem, setting.others
    parts = cut(setting, random)
    src, diff_dst = (a.astype("f8") for a in problem[:2])
    gamma = np.abs(setting.per_channel(problem.gamma))
    size = src.size // problem.mean.size

    pair = gradient(problem, setting.data_format)
    whole = pair.call()
    sums = any_grouping([pair.reduce(where) for where in parts], random)
    assert sums.count == size
    results = [pair.apply(sums, where) for where in parts]
    deviation = np.sqrt(setting.per_channel(problem.variance) + EPSILON)
    xhat = (src - setting.per_channel(problem.mean)) / deviation
    beta, product = (np.abs(a).sum(axes) for a in (diff_dst, diff_dst * xhat))
    terms = np.abs(diff_dst) + setting.per_channel(beta) / size
    terms = terms + np.abs(xhat) * setting.per_channel(product) / size
    diff_src = put_together(setting, parts, [r.diff_src for r in results])
    assert_near(diff_src, whole.diff_src, gamma / deviation * terms, units)
    for result in results:
        assert bits(result[1:]) == bits(results[0][1:])
    assert_near(results[0].diff_gamma, whole.diff_gamma, product, units)
    assert_near(results[0].diff_beta, whole.diff_beta, beta, units)

    pair = forward(problem, setting.data_format)
    normalized = pair.call()
    moments = any_grouping([pair.reduce(where) for where in parts], random)
    assert moments.count == size
    done = [pair.apply(moments, where) for where in parts]
    dst = put_together(setting, parts, [r.dst for r in done])
    mean, variance = (setting.per_channel(a) for a in normalized[3:])
    in_mean = np.abs(src).mean(axes)
    terms = np.abs(src - mean) + setting.per_channel(in_mean)
    terms = gamma * terms / np.sqrt(variance + EPSILON) + np.abs(setting.per_channel(problem.mean))
    assert_near(dst, normalized.dst, terms, units)
    old = np.abs(problem.mean.astype("f8"))
    nothing = np.zeros_like(in_mean)
    for result in done:
        assert bits(result[1:]) == bits(done[0][1:])
    for got, wanted, size_of_terms in zip(
        done[0][1:], normalized[1:], (in_mean + old, nothing, in_mean, nothing), strict=True
    ):
        assert_near(got, wanted, size_of_terms, units)


@types
@formats
@pytest.mark.parametrize("seed", range(3))
def test_large_parts_are_the_whole_within_an_ulp(dtype, stats, data_format, seed):
    """Some thousand elements a channel: sums and statistics are then off by one unit at most."""
    import random

    shape = helpers.shape_of(data_format, 13, 5, (31, 37))
    problem = testing.random_problem(shape, dtype, stats, data_format=data_format, seed=seed)
    setting = Setting(problem, data_format, dtype, stats, "native", seed)
    check_parts(setting, random.Random(seed), units=2)
    pair = gradient(problem, data_format)
    halves = np.array_split(np.arange(13), 2)
    result = pair.apply(sum(pair.reduce(where) for where in halves), halves[0])
    for got, wanted in zip(result[1:], pair.call()[1:], strict=True):
        step = np.spacing(np.abs(wanted.astype(np.float32)))
        if stats == "f32":
            assert (np.abs(got - wanted) <= step).all()
        else:
            assert bits([got]) == bits([wanted])


@given(settings(CELLS), st.randoms(use_true_random=False))
def test_sums_in_any_grouping_give_the_same_gradient(setting, random):
    """The bits: a last bit of float64 that is another one is rounded away in float32."""
    pair = gradient(setting.problem, setting.data_format)
    parts = cut(setting, random)
    sums = [pair.reduce(where) for where in parts]
    wanted, other = sum(sums), any_grouping(sums, random)
    np.testing.assert_allclose(other.to_vector(), wanted.to_vector(), rtol=1e-13, atol=1e-13)
    for where in parts:
        assert bits(pair.apply(other, where)) == bits(pair.apply(wanted, where))


@given(settings(CELLS), st.randoms(use_true_random=False))
def test_moments_in_any_grouping_are_those_of_the_whole(setting, random):
    pair = forward(setting.problem, setting.data_format)
    moments = [pair.reduce(where) for where in cut(setting, random)]
    src = setting.problem.src.astype("f8")
    mean, variance = (f(setting.others) for f in (src.mean, src.var))
    for total in (sum(moments), any_grouping(moments, random)):
        np.testing.assert_allclose(total.mean, mean, rtol=1e-6, atol=1e-6 * np.abs(src).max())
        np.testing.assert_allclose(total.m2 / total.count, variance, rtol=2e-6)


@pairs
@formats
def test_empty_parts_have_no_say(make, data_format):
    shape = helpers.shape_of(data_format, 4, 3, (5,))
    pair = make(testing.random_problem(shape, data_format=data_format), data_format)
    totals, nothing = pair.reduce(), pair.reduce(slice(0))
    assert nothing.count == 0
    assert not nothing.to_vector().any()
    assert totals + nothing == nothing + totals == totals
    whole, empty = pair.call(), pair.apply(totals, slice(0))
    assert empty[0].size == 0
    assert bits(empty[1:]) == bits(whole[1:]), "an empty part has the whole batch's sums as well"
    with_nothing = pair.apply(nothing, slice(0))
    empty_call = pair.op(**pair.part(tuple(pair.inputs), slice(0)))
    assert bits(with_nothing) == bits(empty_call)


def test_no_channels():
    pair = gradient(testing.random_problem((4, 0)), "NXC")
    sums = pair.reduce()
    assert (sums.channels, sums.to_vector().shape) == (0, (1,))
    assert pair.apply(sums).diff_gamma.shape == (0,)


@pytest.mark.parametrize("kept", [(), (0,), (2,), (0, 2), (0, 1, 2, 3)])
def test_statistics_of_any_axes(kept):
    rng = np.random.default_rng(0)
    shape = (4, 6, 3, 5)
    keep = [n if axis in kept else 1 for axis, n in enumerate(shape)]
    tensors = [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)]
    statistics = [rng.uniform(0.5, 1.5, keep).astype(np.float32) for _ in range(3)]
    op = onedsl.BatchNormalizationGrad(EPSILON)
    whole = op(*tensors, *statistics)
    parts = [slice(0, 2), slice(2, 6)] if 1 not in kept else [slice(None)]
    sums = sum(op.reduce(*(t[:, where] for t in tensors), *statistics[:2]) for where in parts)
    assert sums.channels == int(np.prod(keep))
    for where in parts:
        got = op.apply(sums, *(t[:, where] for t in tensors), *statistics)
        assert got.output_gradient.tobytes() == whole.output_gradient[:, where].tobytes()
        testing.assert_gradients_close(
            (whole[0], *got[1:]), (whole[0], *(a.astype("f8") for a in whole[1:]))
        )


def test_only_diff_src():
    problem = testing.random_problem((6, 5, 3))
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    sums = op.reduce(*problem[:4])
    wanted = op(*problem[:4], outputs="diff_src")
    got = op.apply(sums, *problem[:4], outputs="diff_src")
    assert got[1:] == (None, None)
    assert bits(got) == bits(wanted)
    with pytest.warns(onedsl.GammaIgnoredWarning) as caught:
        op.apply(sums, *problem, outputs="diff_src")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("make", [gradient, forward])
def test_what_a_call_would_copy_is_copied(make):
    problem = testing.random_problem((6, 5, 3))
    pair = make(problem, "NXC")
    inputs = {
        name: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim > 1 else np.repeat(a, 2)[::2]
        for name, a in pair.inputs.items()
    }
    strided = pair._replace(inputs=inputs)
    assert strided.reduce() == pair.reduce()
    assert bits(strided.apply(strided.reduce())) == bits(pair.call())


class TestTotals:
    """BatchNormSums and BatchNormMoments as objects."""

    @pytest.fixture(params=KINDS)
    def kind(self, request):
        return request.param

    VECTOR = np.float64([4, 1, 2, 3, 4, 5, 6])

    def test_go_through_a_vector(self, kind):
        totals = kind.from_vector(self.VECTOR)
        assert (totals.count, totals.channels) == (4, 3)
        assert type(totals.count) is int
        vector = totals.to_vector()
        assert vector.tobytes() == self.VECTOR.tobytes()
        vector[:] = 0
        assert totals.to_vector().tobytes() == self.VECTOR.tobytes()
        assert repr(totals) == f"<{kind.__name__}: 3 channels, 4 elements each>"

    def test_names(self):
        sums, moments = (kind.from_vector(self.VECTOR) for kind in KINDS)
        assert (sums.diff_beta.tolist(), sums.diff_gamma.tolist()) == ([1, 2, 3], [4, 5, 6])
        assert (moments.mean.tolist(), moments.m2.tolist()) == ([1, 2, 3], [4, 5, 6])

    def test_are_frozen(self, kind):
        totals = kind.from_vector(self.VECTOR)
        for name in ("count", "channels", "mean", "diff_beta", "other"):
            with pytest.raises(AttributeError):
                setattr(totals, name, 0)
        field = totals.mean if kind is onedsl.BatchNormMoments else totals.diff_beta
        with pytest.raises(ValueError, match="read-only"):
            field[0] = 1

    def test_are_compared_pickled_and_copied(self, kind):
        totals = kind.from_vector(self.VECTOR)
        assert pickle.loads(pickle.dumps(totals)) == copy.deepcopy(totals) == totals
        assert type(copy.copy(totals)) is kind
        assert totals != kind.from_vector(self.VECTOR + 1)
        assert totals != "other"
        other = KINDS[1 - KINDS.index(kind)]
        assert totals != other.from_vector(self.VECTOR)
        with pytest.raises(TypeError, match="unhashable"):
            hash(totals)

    def test_add(self, kind):
        totals = kind.from_vector(self.VECTOR)
        assert sum([totals]) == totals
        assert sum([totals, totals]) == totals + totals
        assert (totals + totals).count == 8
        with pytest.raises(ValueError, match=r"of 3 channels and of 1 cannot be added"):
            totals + kind.from_vector(np.float64([1, 2, 3]))
        for other in (1, 0.0, "sums", KINDS[1 - KINDS.index(kind)].from_vector(self.VECTOR)):
            with pytest.raises(TypeError):
                totals + other
            with pytest.raises(TypeError):
                other + totals

    @pytest.mark.parametrize(
        ("vector", "words"),
        [
            (np.float32([1, 2, 3]), r"2 C \+ 1 float64 .* it is float32 of shape \(3,\)"),
            (np.float64([1, 2]), r"it is float64 of shape \(2,\)"),
            (np.float64([]), r"it is float64 of shape \(0,\)"),
            (np.zeros((1, 3)), r"it is float64 of shape \(1, 3\)"),
            (["a"], "2 C"),
            (None, "2 C"),
            (np.float64([-1, 0, 0]), r"vector\[0\] must be a count .* not -1"),
            (np.float64([1.5, 0, 0]), "not 1.5"),
            (np.float64([np.nan, 0, 0]), "not nan"),
            (np.float64([np.inf, 0, 0]), "not inf"),
        ],
    )
    def test_refuse_what_is_no_vector_of_theirs(self, kind, vector, words):
        with pytest.raises(ValueError, match=words):
            kind.from_vector(vector)


class TestRefusals:
    """Bad input is refused in words, and nothing is written."""

    problem = testing.random_problem((6, 5, 3))

    def refused(self, make, error, words, totals=None, **changes):
        pair = make(self.problem, "NXC")
        totals = pair.reduce() if totals is None else totals
        guarded = helpers.Guarded(*pair.call())
        inputs = pair.inputs | changes
        with pytest.raises(error, match=words):
            pair.op.apply(totals, **inputs, out=tuple(guarded.buffers))
        guarded.check_untouched()

    def test_totals_of_another_kind(self):
        moments = forward(self.problem, "NXC").reduce()
        sums = gradient(self.problem, "NXC").reduce()
        wrong = "sums must be BatchNormSums, as reduce gives, not BatchNormMoments"
        self.refused(gradient, TypeError, wrong, moments)
        wrong = "moments must be BatchNormMoments, as reduce gives, not BatchNormSums"
        self.refused(forward, TypeError, wrong, sums)
        self.refused(gradient, TypeError, "sums must be .* not ndarray", sums.to_vector())

    @pytest.mark.parametrize("make", [gradient, backprop, frozen, forward])
    def test_totals_of_other_channels(self, make):
        kind = type(make(self.problem, "NXC").reduce())
        words = r"of 3 channels, as .* with shape \(6, 5, 3\) has, not of 2"
        self.refused(make, ValueError, words, kind.from_vector(np.float64([30, 1, 2, 3, 4])))

    @pytest.mark.parametrize("make", [gradient, backprop, frozen, forward])
    def test_totals_that_leave_this_part_out(self, make):
        totals = make(self.problem, "NXC").reduce(slice(0, 5))
        words = "must be those of all parts.* of 25 elements a channel, and .* has 30"
        self.refused(make, ValueError, words, totals)

    @pytest.mark.parametrize("make", [gradient, forward])
    def test_arguments_of_apply(self, make):
        short = np.ones(2, np.float32)
        self.refused(make, ValueError, r"mean must have shape \(3,\)", mean=short)
        self.refused(make, TypeError, "src must be a NumPy array", src=3)
        wide = self.problem.src.astype(np.float64)
        self.refused(make, TypeError, "src must be f32, bf16 or f16, not float64", src=wide)

    @pytest.mark.parametrize(
        ("changes", "error", "words"),
        [
            ({"src": None}, TypeError, "src must be a NumPy array"),
            ({"src": np.zeros(3, np.float32)}, ValueError, "src must have 2 dimensions or more"),
            ({"src": np.zeros((3, 3))}, TypeError, "src must be f32, bf16 or f16, not float64"),
        ],
    )
    @pytest.mark.parametrize("make", [gradient, forward])
    def test_src_of_reduce(self, make, changes, error, words):
        pair = make(self.problem, "NXC")
        inputs = pair.part(pair.summed, ...) | changes
        with pytest.raises(error, match=words):
            pair.op.reduce(**inputs)

    @pytest.mark.parametrize(
        ("changes", "error", "words"),
        [
            ({"diff_dst": np.zeros((6, 5, 4), np.float32)}, ValueError, "diff_dst must have src's"),
            ({"mean": np.ones(2, np.float32)}, ValueError, r"mean must have shape \(3,\)"),
            ({"variance": np.ones(3, ml_dtypes.bfloat16)}, TypeError, "variance must be f32"),
            ({"mean": None}, TypeError, "mean must be a NumPy array"),
        ],
    )
    def test_arguments_of_the_gradients_reduce(self, changes, error, words):
        pair = gradient(self.problem, "NXC")
        with pytest.raises(error, match=words):
            pair.op.reduce(**(pair.part(pair.summed, ...) | changes))

    def test_statistics_of_broadcasting_operators(self):
        pair = frozen(self.problem, "NXC")
        with pytest.raises(ValueError, match=r"mean \(MeanTensor\) must have as many dimensions"):
            pair.op.reduce(**(pair.part(pair.summed, ...) | {"mean": self.problem.mean}))

    def test_gamma_without_beta(self):
        pair = forward(self.problem, "NXC")
        inputs = {name: a for name, a in pair.inputs.items() if name != "beta"}
        with pytest.raises(TypeError, match="beta is missing"):
            pair.op.apply(pair.reduce(), **inputs)


@pytest.mark.parametrize("make", [gradient, forward])
def test_a_log_says_which_pass_ran(make, caplog):
    pair = make(testing.random_problem((6, 5, 3)), "NXC")
    with onedsl.verbose():
        pair.apply(pair.reduce())
    first, second = (record.getMessage() for record in caplog.records)
    assert "f32 30x3x1 (outer x channels x inner): onedsl first pass" in first
    assert "f32 30x3x1 (outer x channels x inner): onedsl second pass" in second
