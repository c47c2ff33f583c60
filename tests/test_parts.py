"""The two passes of a call on parts of a batch: `reduce`, `+` and `apply`.

The laws and the fuzzer have the results. Here are the sums as objects, and what does not fit
together.
"""

import copy
import itertools
import pickle
from typing import Any, NamedTuple

import helpers
import ml_dtypes
import numpy as np
import pytest
from helpers import EPSILON, formats

import onedsl
from onedsl import testing

KINDS = [onedsl.BatchNormSums, onedsl.BatchNormMoments]


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
    names = ("src", "mean", "variance", "gamma", "beta")
    values = helpers.values_of(problem)
    return Setup(op, {name: values[name] for name in names}, ("src",), ("src",))


operators = pytest.mark.parametrize("make", [gradient, forward])


def bits(result: Any) -> list[bytes]:
    return [np.ascontiguousarray(array).tobytes() for array in result if array is not None]


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


@operators
@formats
@pytest.mark.parametrize("ends", [(1, 8), (7, 8), (1, 3, 8), (5, 6, 8)], ids=str)
def test_parts_of_unequal_sizes(make, data_format, ends):
    """Their totals are those of the whole batch, and so are the results of each part."""
    shape = helpers.shape_of(data_format, 8, 5, (7,))
    problem = testing.random_problem(shape, data_format=data_format)
    problem.src[:] += np.arange(8, dtype=np.float32).reshape(8, 1, 1)  # the parts differ in mean
    setup = make(problem, data_format)
    parts = [slice(*edges) for edges in itertools.pairwise((0, *ends))]
    totals = [setup.reduce(part) for part in parts]
    whole, added = setup.reduce(), sum(totals)
    assert [t.count for t in totals] == [7 * (part.stop - part.start) for part in parts]
    assert added.count == whole.count
    np.testing.assert_allclose(added.to_vector(), whole.to_vector(), 1e-6, 1e-6)
    joined = [setup.apply(added, part) for part in parts]
    expected = setup.call()
    np.testing.assert_allclose(np.concatenate([p[0] for p in joined]), expected[0], 1e-5, 1e-5)
    for each in joined:
        for got, array in zip(each[1:], expected[1:], strict=True):
            np.testing.assert_allclose(got, array, 1e-5, 1e-5)


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
            (np.float64([]), r"got float64 of shape \(0,\)"),
            (np.zeros((1, 3)), r"got float64 of shape \(1, 3\)"),
            (["a"], "2 C"),
            (None, "2 C"),
            (np.float64([-1, 0, 0]), r"vector\[0\] must be a count from 0 to 2\^53, got -1"),
            (np.float64([1.5, 0, 0]), "got 1.5"),
            (np.float64([np.nan, 0, 0]), "got nan"),
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

    def check(self, make, error, message, totals=None, problem=problem, **changes):
        setup = make(problem, "NXC")
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
    @pytest.mark.parametrize("channels", [3, 0])  # regression of 0: a ZeroDivisionError
    def test_totals_without_this_part(self, make, channels):
        problem = testing.random_problem((6, 5, channels))
        totals = make(problem, "NXC").reduce()
        vector = totals.to_vector()
        vector[0] = 29
        message = "must include the 30 elements per channel of .*, got only 29 elements"
        self.check(make, ValueError, message, type(totals).from_vector(vector), problem)

    @pytest.mark.parametrize(
        ("make", "changes", "error", "message"),
        [
            (forward, {"src": None}, TypeError, "^src must be a NumPy array"),
            (gradient, {"src": np.zeros((6, 5, 3))}, TypeError, "^src must be f32, bf16 or f16"),
            (gradient, {"diff_dst": np.zeros((6, 5, 4), "f4")}, ValueError, "diff_dst must have s"),
            (gradient, {"mean": np.ones(2, np.float32)}, ValueError, r"mean must have shape \(3"),
            (gradient, {"variance": np.ones(3, ml_dtypes.bfloat16)}, TypeError, "variance must be"),
        ],
    )
    def test_arguments_of_both_passes(self, make, changes, error, message):
        self.check(make, error, message, **changes)
        setup = make(self.problem, "NXC")
        with pytest.raises(error, match=message):
            setup.op.reduce(**(setup.part(setup.reduced, ...) | changes))
