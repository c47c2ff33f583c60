"""The two passes of a call on parts of a batch: `reduce`, `+` and `apply`.

The laws and the fuzzer have the results, also of empty parts. Here are the sums as objects, and
what does not fit together.
"""

import copy
import pickle

import helpers
import ml_dtypes
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import testing

KINDS = [onedsl.BatchNormSums, onedsl.BatchNormMoments]
VECTOR = np.float64([4, 1, 2, 3, 4, 5, 6])
PROBLEM = testing.random_problem((6, 5, 3))

kinds = pytest.mark.parametrize("kind", KINDS)


class Gradient:
    """The methods of the gradient, on inputs by name."""

    op = onedsl.BatchNormTrainingBackward(EPSILON)
    names = "src", "diff_dst", "mean", "variance", "gamma"
    tensors, reduced = names[:2], names[:4]

    def __init__(self, problem=PROBLEM, **changes):
        values = helpers.values_of(problem)
        self.inputs = {name: values[name] for name in self.names} | changes

    def reduce(self, where=...):
        inputs = {name: self.inputs[name] for name in self.reduced}
        return self.op.reduce(**inputs | {name: inputs[name][where] for name in self.tensors})

    def apply(self, totals, **options):
        return self.op.apply(totals, **self.inputs | options)


class Forward(Gradient):
    """The same of the forward pass."""

    op = onedsl.BatchNormForwardTraining(EPSILON, 0.9)
    names = "src", "mean", "variance", "gamma", "beta"
    tensors = reduced = names[:1]


operators = pytest.mark.parametrize("passes", [Gradient, Forward])


def test_gamma_is_ignored_for_diff_src_only():
    op = Gradient.op
    sums = op.reduce(*PROBLEM[:4])
    with pytest.warns(onedsl.GammaIgnoredWarning) as caught:
        got = op.apply(sums, *PROBLEM, outputs="diff_src")
    assert caught[0].filename == __file__
    assert got.diff_src.tobytes() == op(*PROBLEM[:4], outputs="diff_src").diff_src.tobytes()


# ---- BatchNormSums and BatchNormMoments ----


@kinds
def test_vector_round_trip(kind):
    totals = kind.from_vector(VECTOR)
    assert (totals.count, totals.channels) == (4, 3)
    assert type(totals.count) is int
    vector = totals.to_vector()
    assert vector.tobytes() == VECTOR.tobytes()
    vector[:] = 0
    assert totals.to_vector().tobytes() == VECTOR.tobytes()
    assert repr(totals) == f"<{kind.__name__}: 3 channels, 4 elements each>"
    for count in (0, 2**53):
        assert kind.from_vector(np.float64([count, 0, 0])).count == count


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (onedsl.BatchNormSums, ("diff_beta", "diff_gamma")),
        (onedsl.BatchNormMoments, ("mean", "m2")),
    ],
)
def test_fields_are_read_only(kind, fields):
    totals = kind.from_vector(VECTOR)
    assert [getattr(totals, name).tolist() for name in fields] == [[1, 2, 3], [4, 5, 6]]
    for name in ("count", "channels", "other", *fields):
        with pytest.raises(AttributeError):
            setattr(totals, name, 0)
    with pytest.raises(ValueError, match="read-only"):
        getattr(totals, fields[0])[0] = 1


@kinds
def test_equality_pickle_and_copy(kind):
    totals, other = (each.from_vector(VECTOR) for each in (kind, KINDS[1 - KINDS.index(kind)]))
    assert pickle.loads(pickle.dumps(totals)) == copy.deepcopy(totals) == totals
    assert type(copy.copy(totals)) is kind
    assert totals not in (kind.from_vector(VECTOR + 1), "other", other)
    with pytest.raises(TypeError, match="unhashable"):
        hash(totals)


@kinds
def test_add(kind):
    totals, other = (each.from_vector(VECTOR) for each in (kind, KINDS[1 - KINDS.index(kind)]))
    assert sum([totals]) == totals
    assert sum([totals, totals]) == totals + totals
    assert (totals + totals).count == 8
    with pytest.raises(ValueError, match=r"same number of channels to be added, got 3 and 1"):
        totals + kind.from_vector(np.float64([1, 2, 3]))
    for value in (1, 0.0, "sums", other):
        with pytest.raises(TypeError):
            totals + value
        with pytest.raises(TypeError):
            value + totals
    infinite = [kind.from_vector(np.float64([4, value, 1])) for value in (np.inf, -np.inf)]
    assert np.isnan(sum(infinite).to_vector()[1])  # without a warning


@operators
def test_an_empty_part_changes_no_bit(passes):
    parts = passes(testing.random_problem((7, 5, 3), seed=3))  # count * mean is rounded
    totals, nothing = parts.reduce(), parts.reduce(slice(0))
    assert (nothing.count, nothing.to_vector().any()) == (0, False)
    assert totals + nothing == nothing + totals == totals


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
@kinds
def test_invalid_vectors(kind, vector, message):
    with pytest.raises(ValueError, match=message):
        kind.from_vector(vector)


def test_other_ways_to_make_them_raise():
    for kind in KINDS:
        with pytest.raises(TypeError, match=f"{kind.__name__} must be made by an operator's red"):
            kind()
    with pytest.raises(TypeError, match="vector must be a plain array, got a masked array"):
        onedsl.BatchNormSums.from_vector(np.ma.array(VECTOR))
    with pytest.raises(TypeError, match="from_vector must be that of BatchNormSums or"):
        onedsl.BatchNormTotals.from_vector(VECTOR)


def test_sums_may_be_negative_and_m2_may_not():
    negative = np.float64([4, -1, -2, -3, -4, 0, -6])
    assert onedsl.BatchNormSums.from_vector(negative).diff_gamma.tolist() == [-4, 0, -6]
    with pytest.raises(ValueError, match=r"m2 .* must not be negative, got -4\.0"):
        onedsl.BatchNormMoments.from_vector(negative)


@operators
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_in_a_batch_propagate(passes, value):
    """They propagate as in a direct call."""
    src = PROBLEM.src.copy()
    src[0, 0, 0] = value
    parts = passes(src=src)
    totals = parts.reduce(slice(0, 2)) + parts.reduce(slice(2, 6))
    assert not np.isfinite(totals.to_vector()).all()
    assert pickle.loads(pickle.dumps(totals)) == copy.deepcopy(totals) == totals
    restored = type(totals).from_vector(totals.to_vector())
    assert restored == totals
    for got, expected in zip(parts.apply(restored), parts.op(**parts.inputs), strict=True):
        assert np.array_equal(np.isnan(got), np.isnan(expected))


# ---- What does not fit together ----


def check_rejected(parts, totals, error, message, **changes):
    """Nothing is written before the error."""
    guarded = helpers.Guarded(*parts.op(**parts.inputs))
    with pytest.raises(error, match=message):
        parts.apply(totals, out=tuple(guarded.buffers), **changes)
    guarded.check_untouched()


def test_totals_of_another_class():
    moments, sums = Forward().reduce(), Gradient().reduce()
    for parts, totals, message in (
        (Gradient(), moments, "sums must be BatchNormSums from reduce, got BatchNormMoments"),
        (Forward(), sums, "moments must be BatchNormMoments from reduce, got BatchNormSums"),
        (Gradient(), sums.to_vector(), "sums must be .* got ndarray"),
    ):
        check_rejected(parts, totals, TypeError, message)


def test_sums_of_another_epsilon():
    """Regression: the gradients were wrong. Vectors do not have the epsilon."""
    sums = onedsl.BatchNormTrainingBackward(1e-3).reduce(*PROBLEM[:4])
    for same in (sums, sum([sums, sums]), pickle.loads(pickle.dumps(sums))):
        message = "sums must be from reduce of .* same epsilon, 1e-05, got 0.001"
        check_rejected(Gradient(), same, ValueError, message)
        with pytest.raises(ValueError, match=r"same epsilon to be added, got 1e-05 and 0.001"):
            Gradient().reduce() + same
    moments = onedsl.BatchNormForwardTraining(1e-3).reduce(PROBLEM.src)
    assert moments == Forward().reduce()
    Forward().apply(moments)


@operators
@pytest.mark.parametrize("channels", [3, 0])  # regression of 0: a ZeroDivisionError
def test_totals_of_other_channels_or_without_this_part(passes, channels):
    parts = passes(testing.random_problem((6, 5, channels)))
    kind, vector = type(parts.reduce()), parts.reduce().to_vector()
    message = rf"must have {channels} channels for .* with shape \(6, 5, {channels}\), got 2"
    check_rejected(parts, kind.from_vector(np.float64([30, 1, 2, 3, 4])), ValueError, message)
    vector[0] = 29
    message = "must include the 30 elements per channel of .*, got only 29 elements"
    check_rejected(parts, kind.from_vector(vector), ValueError, message)


@pytest.mark.parametrize(
    ("passes", "changes", "error", "message"),
    [
        (Forward, {"src": None}, TypeError, "^src must be a NumPy array"),
        (Gradient, {"src": np.zeros((6, 5, 3))}, TypeError, "^src must be f32, bf16 or f16"),
        (Gradient, {"diff_dst": np.zeros((6, 5, 4), "f4")}, ValueError, "diff_dst must have s"),
        (Gradient, {"mean": np.ones(2, np.float32)}, ValueError, r"mean must have shape \(3"),
        (Gradient, {"variance": np.ones(3, ml_dtypes.bfloat16)}, TypeError, "variance must be"),
    ],
)
def test_arguments_of_both_passes(passes, changes, error, message):
    parts = passes()
    check_rejected(parts, parts.reduce(), error, message, **changes)
    inputs = parts.inputs | changes
    with pytest.raises(error, match=message):
        parts.op.reduce(**{name: inputs[name] for name in parts.reduced})
