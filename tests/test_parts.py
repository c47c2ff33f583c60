"""The two passes of a call on parts of a batch: `reduce`, `+` and `apply`."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import helpers
import ml_dtypes
import numpy as np
import pytest
from fuzz import targets
from helpers import EPSILON, formats
from hypothesis import given
from hypothesis import strategies as st

import onedsl
from onedsl import testing

KINDS = [onedsl.BatchNormSums, onedsl.BatchNormMoments]


class Setting(NamedTuple):
    """A random problem of the native kernels, with the axes that are summed over."""

    problem: testing.Problem
    data_format: str
    seed: int

    def __repr__(self) -> str:
        """Return the seed instead of the arrays."""
        src = self.problem.src
        return f"<{src.dtype} {self.data_format} {src.shape} by {src.strides}, seed {self.seed}>"

    @property
    def others(self) -> tuple[int, ...]:
        return onedsl.DataFormat(self.data_format).summed_axes(self.problem.src.ndim)

    def per_channel(self, vector: np.ndarray) -> np.ndarray:
        data_format = onedsl.DataFormat(self.data_format)
        shape = data_format.broadcast_shape(self.problem.src.shape)
        return vector.astype(np.float64).reshape(shape)


@st.composite
def settings(draw: Any) -> Setting:
    """Draw a problem with 8 to some thousand elements per channel in any dense layout."""
    dtype, stats = draw(st.sampled_from(helpers.TYPES))
    data_format = draw(st.sampled_from(helpers.FORMATS))
    channels = draw(st.integers(1, 70))
    spatial = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    least = max(1, -(-8 // int(np.prod(spatial))))
    batch = draw(st.integers(least, least + 20))
    shape = helpers.shape_of(data_format, batch, channels, spatial)
    seed = draw(st.integers(0, 2**32 - 1))
    problem = testing.random_problem(shape, dtype, stats, data_format=data_format, seed=seed)
    order = draw(st.permutations(range(len(shape))))
    back = np.argsort(order)
    src, diff_dst = (np.ascontiguousarray(a.transpose(order)).transpose(back) for a in problem[:2])
    return Setting(problem._replace(src=src, diff_dst=diff_dst), data_format, seed)


class Setup(NamedTuple):
    """An operator, its inputs by name, and the names of its tensors and of the inputs of reduce."""

    op: Any
    inputs: dict[str, np.ndarray]
    tensors: tuple[str, ...]
    reduced: tuple[str, ...]

    def part(self, names: tuple[str, ...], where: Any) -> dict[str, np.ndarray]:
        return {
            name: self.inputs[name][where] if name in self.tensors else self.inputs[name]
            for name in names
        }

    def reduce(self, where: Any = ...) -> Any:
        return self.op.reduce(**self.part(self.reduced, where))

    def apply(self, totals: Any, where: Any = ..., **options: Any) -> Any:
        return self.op.apply(totals, **self.part(tuple(self.inputs), where), **options)

    def call(self, **options: Any) -> Any:
        return self.op(**self.inputs, **options)


def gradient(problem: testing.Problem, data_format: str) -> Setup:
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    names = tuple(problem._fields)
    return Setup(op, problem._asdict(), names[:2], names[:4])


def forward(problem: testing.Problem, data_format: str) -> Setup:
    op = onedsl.BatchNormForwardTraining(EPSILON, 0.9, data_format)
    src, _, mean, variance, gamma = problem
    inputs = {"src": src, "mean": mean, "variance": variance, "gamma": gamma, "beta": mean}
    return Setup(op, inputs, ("src",), ("src",))


OPERATORS = [gradient, forward]
operators = pytest.mark.parametrize("make", OPERATORS)


def bits(result: Any) -> list[bytes]:
    return [np.ascontiguousarray(array).tobytes() for array in result if array is not None]


def split(setting: Setting, random: Any) -> list[tuple[Any, ...]]:
    """Split the tensors into parts along an axis that is summed over, some of them empty."""
    axis = random.choice(setting.others)
    size = setting.problem.src.shape[axis]
    cuts = sorted(random.randint(0, size) for _ in range(random.randint(0, 5)))
    parts = [
        (slice(None),) * axis + (slice(a, b),)
        for a, b in zip([0, *cuts], [*cuts, size], strict=True)
    ]
    random.shuffle(parts)
    return parts


def join(setting: Setting, parts: list[tuple[Any, ...]], tensors: list[Any]) -> np.ndarray:
    whole = np.empty_like(setting.problem.src, tensors[0].dtype)
    for where, tensor in zip(parts, tensors, strict=True):
        whole[where] = tensor
    return whole


def add_in_random_order(totals: list[Any], random: Any) -> Any:
    totals = list(totals)
    while len(totals) > 1:
        random.shuffle(totals)
        totals.append(totals.pop() + totals.pop())
    return totals[0]


@given(settings(), st.sampled_from(OPERATORS), st.booleans())
def test_one_part_equals_the_call_bitwise(setting, make, in_place):
    setup = make(setting.problem, setting.data_format)
    expected = bits(setup.call())
    totals = setup.reduce()
    assert totals.count == setting.problem.src.size // setting.problem.mean.size
    out = None
    if in_place:
        over = setup.inputs[setup.tensors[-1]] = setup.inputs[setup.tensors[-1]].copy(order="K")
        out = (over, *(np.empty_like(a) for a in setup.call()[1:]))
    assert bits(setup.apply(totals, out=out)) == expected


# Tolerances are in units of the last place of the largest term. The kernels add up to eight terms
# in f32, and the division into parts changes which terms these are.
LAST_PLACE = {"f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}


def assert_near(got: np.ndarray, expected: np.ndarray, terms: np.ndarray) -> None:
    dtype = next(name for name, d in helpers.NUMPY.items() if d == got.dtype)
    error = np.abs(got.astype("f8") - expected.astype("f8"))
    size = np.maximum(np.abs(expected.astype("f8")), terms)
    assert (error <= 4 * LAST_PLACE[dtype] * size + 1e-30).all(), (error / size).max()


@given(settings(), st.randoms(use_true_random=False))
def test_parts_equal_the_whole(setting, random):
    problem, axes = setting.problem, setting.others
    parts = split(setting, random)
    src, diff_dst = (a.astype("f8") for a in problem[:2])
    gamma = np.abs(setting.per_channel(problem.gamma))
    size = src.size // problem.mean.size

    setup = gradient(problem, setting.data_format)
    whole = setup.call()
    reduced = [setup.reduce(where) for where in parts]
    sums = add_in_random_order(reduced, random)
    assert sums.count == size
    # Differences in the last bits of float64 vanish in float32.
    np.testing.assert_allclose(sums.to_vector(), sum(reduced).to_vector(), rtol=1e-13, atol=1e-13)
    assert bits(setup.apply(sums, parts[0])) == bits(setup.apply(sum(reduced), parts[0]))
    results = [setup.apply(sums, where) for where in parts]
    vectors = {name: setting.per_channel(setup.inputs[name]) for name in problem._fields[2:]}
    values = {"src": src, "diff_dst": diff_dst, "epsilon": EPSILON} | vectors
    terms, product, beta = (e.magnitude for e in targets.training_gradients(values, axes))
    diff_src = join(setting, parts, [r.diff_src for r in results])
    assert_near(diff_src, whole.diff_src, terms)
    for result in results:
        assert bits(result[1:]) == bits(results[0][1:])
    assert_near(results[0].diff_gamma, whole.diff_gamma, product.reshape(-1))
    assert_near(results[0].diff_beta, whole.diff_beta, beta.reshape(-1))

    setup = forward(problem, setting.data_format)
    normalized = setup.call()
    reduced = [setup.reduce(where) for where in parts]
    moments = add_in_random_order(reduced, random)
    assert moments.count == size
    for total in (moments, sum(reduced)):
        limits = {"rtol": 1e-6, "atol": 1e-6 * np.abs(src).max()}
        np.testing.assert_allclose(total.mean, src.mean(axes), **limits)
        np.testing.assert_allclose(total.m2 / size, src.var(axes), rtol=2e-6)
    done = [setup.apply(moments, where) for where in parts]
    dst = join(setting, parts, [r.dst for r in done])
    mean, variance = (setting.per_channel(a) for a in normalized[3:])
    in_mean = np.abs(src).mean(axes)
    terms = np.abs(src - mean) + setting.per_channel(in_mean)
    terms = gamma * terms / np.sqrt(variance + EPSILON) + np.abs(setting.per_channel(problem.mean))
    assert_near(dst, normalized.dst, terms)
    old = np.abs(problem.mean.astype("f8"))
    nothing = np.zeros_like(in_mean)
    for result in done:
        assert bits(result[1:]) == bits(done[0][1:])
    for got, expected, size_of_terms in zip(
        done[0][1:], normalized[1:], (in_mean + old, nothing, in_mean, nothing), strict=True
    ):
        assert_near(got, expected, size_of_terms)


@operators
@formats
def test_empty_parts(make, data_format):
    shape = helpers.shape_of(data_format, 4, 3, (5,))
    setup = make(testing.random_problem(shape, data_format=data_format), data_format)
    totals, nothing = setup.reduce(), setup.reduce(slice(0))
    assert nothing.count == 0
    assert not nothing.to_vector().any()
    assert totals + nothing == nothing + totals == totals
    whole, empty = setup.call(), setup.apply(totals, slice(0))
    assert empty[0].size == 0
    assert bits(empty[1:]) == bits(whole[1:]), "an empty part has the sums of the whole batch"
    with_nothing = setup.apply(nothing, slice(0))
    empty_call = setup.op(**setup.part(tuple(setup.inputs), slice(0)))
    assert bits(with_nothing) == bits(empty_call)


def test_gamma_is_ignored_for_diff_src_only():
    problem = testing.random_problem((6, 5, 3))
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    sums = op.reduce(*problem[:4])
    with pytest.warns(onedsl.GammaIgnoredWarning) as caught:
        got = op.apply(sums, *problem, outputs="diff_src")
    assert caught[0].filename == __file__
    assert bits(got) == bits(op(*problem[:4], outputs="diff_src"))


class TestTotals:
    """BatchNormSums and BatchNormMoments."""

    @pytest.fixture(params=KINDS)
    def kind(self, request):
        return request.param

    VECTOR = np.float64([4, 1, 2, 3, 4, 5, 6])

    def test_vector_round_trip(self, kind):
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

    def test_read_only(self, kind):
        totals = kind.from_vector(self.VECTOR)
        for name in ("count", "channels", "mean", "diff_beta", "other"):
            with pytest.raises(AttributeError):
                setattr(totals, name, 0)
        field = totals.mean if kind is onedsl.BatchNormMoments else totals.diff_beta
        with pytest.raises(ValueError, match="read-only"):
            field[0] = 1

    def test_equality_pickle_and_copy(self, kind):
        totals = kind.from_vector(self.VECTOR)
        assert pickle.loads(pickle.dumps(totals)) == copy.deepcopy(totals) == totals
        assert type(copy.copy(totals)) is kind
        assert totals != kind.from_vector(self.VECTOR + 1)
        assert totals != "other"
        other = KINDS[1 - KINDS.index(kind)]
        assert totals != other.from_vector(self.VECTOR)
        with pytest.raises(TypeError, match="unhashable"):
            hash(totals)

    def test_it_cannot_be_made_without_a_vector(self, kind):
        with pytest.raises(TypeError, match=f"{kind.__name__} must be made by an operator's red"):
            kind()
        with pytest.raises(TypeError, match="vector must be a plain array, got a masked array"):
            onedsl.BatchNormSums.from_vector(np.ma.array(self.VECTOR))
        with pytest.raises(TypeError, match="from_vector must be that of BatchNormSums or"):
            onedsl.BatchNormTotals.from_vector(self.VECTOR)

    def test_add(self, kind):
        totals = kind.from_vector(self.VECTOR)
        assert sum([totals]) == totals
        assert sum([totals, totals]) == totals + totals
        assert (totals + totals).count == 8
        with pytest.raises(ValueError, match=r"same number of channels to be added, got 3 and 1"):
            totals + kind.from_vector(np.float64([1, 2, 3]))
        for other in (1, 0.0, "sums", KINDS[1 - KINDS.index(kind)].from_vector(self.VECTOR)):
            with pytest.raises(TypeError):
                totals + other
            with pytest.raises(TypeError):
                other + totals

    @pytest.mark.parametrize(
        ("vector", "message"),
        [
            (np.float32([1, 2, 3]), r"2 C \+ 1 float64 .* got float32 of shape \(3,\)"),
            (np.float64([1, 2]), r"got float64 of shape \(2,\)"),
            (np.float64([]), r"got float64 of shape \(0,\)"),
            (np.zeros((1, 3)), r"got float64 of shape \(1, 3\)"),
            (["a"], "2 C"),
            (None, "2 C"),
            (np.float64([-1, 0, 0]), r"vector\[0\] must be a count from 0 to 2\^53, got -1"),
            (np.float64([1.5, 0, 0]), "got 1.5"),
            (np.float64([np.nan, 0, 0]), "got nan"),
            (np.float64([np.inf, 0, 0]), "got inf"),
            (np.float64([1e300, 0, 0]), r"got 1e\+300"),
            (np.float64([2.0**53 + 2, 0, 0]), r"got 9007199254740994"),
        ],
    )
    def test_invalid_vectors(self, kind, vector, message):
        with pytest.raises(ValueError, match=message):
            kind.from_vector(vector)

    def test_limits_of_the_count(self, kind):
        assert kind.from_vector(np.float64([0, 0, 0])).count == 0
        assert kind.from_vector(np.float64([2.0**53, 0, 0])).count == 2**53

    def test_sums_may_be_negative_and_m2_may_not(self):
        negative = np.float64([4, -1, -2, -3, -4, 0, -6])
        assert onedsl.BatchNormSums.from_vector(negative).diff_gamma.tolist() == [-4, 0, -6]
        with pytest.raises(ValueError, match=r"m2 .* must not be negative, got -4\.0"):
            onedsl.BatchNormMoments.from_vector(negative)

    @pytest.mark.parametrize(
        ("make", "value"), [(gradient, np.nan), (forward, np.nan), (forward, np.inf)]
    )
    def test_nan_and_inf_in_a_batch_propagate(self, make, value):
        """They propagate as in a direct call."""
        problem = testing.random_problem((6, 5, 3))
        problem.src[0, 0, 0] = value
        setup = make(problem, "NXC")
        totals = setup.reduce(slice(0, 2)) + setup.reduce(slice(2, 6))
        vector = totals.to_vector()
        assert np.isnan(vector).any()
        assert pickle.loads(pickle.dumps(totals)) == copy.deepcopy(totals) == totals
        restored = type(totals).from_vector(vector)
        assert restored == totals
        for got, expected in zip(setup.apply(restored), setup.call(), strict=True):
            assert np.array_equal(np.isnan(got), np.isnan(expected))

    def test_inf_minus_inf_is_nan_without_a_warning(self, kind):
        part, other = (kind.from_vector(np.float64([4, value, 1])) for value in (np.inf, -np.inf))
        assert np.isnan((part + other).to_vector()[1])


class TestErrors:
    """Invalid arguments raise, and nothing is written."""

    problem = testing.random_problem((6, 5, 3))

    def check(self, make, error, message, totals=None, **changes):
        setup = make(self.problem, "NXC")
        totals = setup.reduce() if totals is None else totals
        guarded = helpers.Guarded(*setup.call())
        inputs = setup.inputs | changes
        with pytest.raises(error, match=message):
            setup.op.apply(totals, **inputs, out=tuple(guarded.buffers))
        guarded.check_untouched()

    def test_totals_of_another_class(self):
        moments = forward(self.problem, "NXC").reduce()
        sums = gradient(self.problem, "NXC").reduce()
        message = "sums must be BatchNormSums from reduce, got BatchNormMoments"
        self.check(gradient, TypeError, message, moments)
        message = "moments must be BatchNormMoments from reduce, got BatchNormSums"
        self.check(forward, TypeError, message, sums)
        self.check(gradient, TypeError, "sums must be .* got ndarray", sums.to_vector())

    def test_sums_of_another_epsilon(self):
        """Regression: the gradients were wrong. Vectors do not have the epsilon."""
        sums = onedsl.BatchNormTrainingBackward(1e-3).reduce(*self.problem[:4])
        for same in (sums, sum([sums, sums]), pickle.loads(pickle.dumps(sums))):
            message = "sums must be from reduce of .* same epsilon, 1e-05, got 0.001"
            self.check(gradient, ValueError, message, same)
            with pytest.raises(ValueError, match=r"same epsilon to be added, got 1e-05 and 0.001"):
                gradient(self.problem, "NXC").reduce() + same
        moments = onedsl.BatchNormForwardTraining(1e-3).reduce(self.problem.src)
        assert moments == forward(self.problem, "NXC").reduce()
        forward(self.problem, "NXC").apply(moments)

    @operators
    def test_totals_with_other_channels(self, make):
        kind = type(make(self.problem, "NXC").reduce())
        message = r"must have 3 channels for .* with shape \(6, 5, 3\), got 2"
        totals = kind.from_vector(np.float64([30, 1, 2, 3, 4]))
        self.check(make, ValueError, message, totals)

    @operators
    def test_totals_without_this_part(self, make):
        totals = make(self.problem, "NXC").reduce()
        vector = totals.to_vector()
        vector[0] = 29
        message = "must include the 30 elements per channel of .*, got only 29 elements"
        self.check(make, ValueError, message, type(totals).from_vector(vector))

    @pytest.mark.parametrize(
        ("make", "changes", "error", "message"),
        [
            *(
                (make, {"src": value}, error, f"^src must {message}")
                for make in (gradient, forward)
                for value, error, message in [
                    (None, TypeError, "be a NumPy array"),
                    (np.zeros(3, np.float32), ValueError, "have at least 2 dimensions"),
                    (np.zeros((6, 5, 3)), TypeError, "be f32, bf16 or f16, got float64"),
                ]
            ),
            (gradient, {"diff_dst": np.zeros((6, 5, 4), "f4")}, ValueError, "diff_dst must have s"),
            (gradient, {"mean": np.ones(2, np.float32)}, ValueError, r"mean must have shape \(3"),
            (gradient, {"variance": np.ones(3, ml_dtypes.bfloat16)}, TypeError, "variance must be"),
            (gradient, {"mean": None}, TypeError, "mean must be a NumPy array"),
        ],
    )
    def test_arguments_of_both_passes(self, make, changes, error, message):
        self.check(make, error, message, **changes)
        setup = make(self.problem, "NXC")
        with pytest.raises(error, match=message):
            setup.op.reduce(**(setup.part(setup.reduced, ...) | changes))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"mean": np.ones(2, "f4")}, r"mean must have shape \(3,\)"),
            ({"beta": None}, "is missing"),
        ],
    )
    def test_arguments_of_apply_alone(self, changes, message):
        self.check(forward, (TypeError, ValueError), message, **changes)
