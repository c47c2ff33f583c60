"""The three operator classes of one gradient, which differ in names and limits.

The laws have the values of each. Here is what they have in common.
"""

import dataclasses
import itertools

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import testing
from onedsl.operators.base import ChannelOperator
from onedsl.operators.batch_norm_training_backward import SCHEMA

DIRECTML = onedsl.BatchNormalizationGrad(EPSILON)
BACKPROP = onedsl.BatchNormTrainingBackprop(EPSILON)


def directml_problem(shape, kept):
    """Return random inputs with statistics of the kept axes."""
    rng = np.random.default_rng(0)
    of_statistics = tuple(size if axis in kept else 1 for axis, size in enumerate(shape))
    x, dy = rng.standard_normal((2, *shape), np.float32)
    return x, dy, *rng.uniform(0.5, 2, (3, *of_statistics)).astype(np.float32)


def test_operators_of_other_schemas_or_statistics_differ():
    """Regression: only attributes were compared. Equal operators share compiled graphs."""

    def new(statistics="batch", **changes):
        schema = dataclasses.replace(SCHEMA, **changes)
        return ChannelOperator(schema, statistics, epsilon=EPSILON, data_format="NXC")

    assert new() == new()
    assert hash(new()) == hash(new())
    others = new(ignored=""), new("frozen"), onedsl.BatchNormTrainingBackward(EPSILON)
    assert all(new() != other for other in others)


class TestDirectML:
    @pytest.mark.parametrize("kept", [(), (2,), (0, 2), (1, 3), (0, 3), (0, 1, 2, 3)], ids=str)
    @pytest.mark.parametrize("outputs", ["all", "output_gradient"])
    def test_every_memory_order(self, kept, outputs):
        """Of axes that are not adjacent, or in another order in memory than in the shape."""
        problem = directml_problem((3, 5, 4, 2), kept)
        expected = testing.batch_normalization_grad(*problem, epsilon=EPSILON)
        stats = problem[2:]
        for order in itertools.permutations(range(4)):
            x, dy = (helpers.in_order(a, order) for a in problem[:2])
            sums = (np.empty_like(stats[0]) if outputs == "all" else None for _ in range(2))
            out = (np.empty_like(x), *sums)
            for grads in (
                DIRECTML(x, dy, *stats, outputs=outputs),
                DIRECTML(x, dy.copy("C"), *stats, outputs=outputs),
                DIRECTML(x, dy, *stats, outputs=outputs, out=out),
            ):
                is_dense = np.copy(grads[0], order="K").strides == grads[0].strides
                assert grads[0].strides == x.strides or is_dense  # that of a copy of x
                testing.assert_close(grads, expected)


@helpers.formats
@pytest.mark.parametrize("shape", [(9, 8), (8, 40, 50, 8)], ids=str)
def test_sums_do_not_depend_on_the_class(shape, data_format):
    """diff_gamma and diff_beta are the same for batch and frozen statistics."""
    problem = testing.random_problem(shape, data_format=data_format)
    kept = [1] * len(shape)
    kept[-1 if data_format == "NXC" else 1] = -1
    _, *sums = onedsl.BatchNormTrainingBackward(EPSILON, data_format)(*problem)
    frozen = DIRECTML(*problem[:2], *(a.reshape(kept) for a in problem[2:]))
    assert [a.tobytes() for a in sums] == [a.tobytes() for a in frozen[1:]]


X, S = np.ones((2, 3), np.float32), np.ones(3, np.float32)
ROW = S[None]
INPUTS = {
    DIRECTML: {"input": X, "input_gradient": X, "mean": ROW, "variance": ROW, "scale": ROW},
    BACKPROP: {"input_forward": X, "output_delta": X, "mean": S, "variance": S},
}
# No axis fits. The example has the size of the second one, which is not the last.
OTHER_RANK = {"input": X[..., None], "input_gradient": X[..., None], "mean": np.ones(5, "f4")}
BF16, HALF = helpers.NUMPY["bf16"], np.float16
ERRORS = [
    (DIRECTML, {"input": X.astype("f8")}, TypeError, "input must be f32 or f16, got float64"),
    (DIRECTML, {"input": X.astype(BF16)}, TypeError, "input must be f32 or f16, got bf16"),
    (DIRECTML, {"input": np.ones((1,) * 9, "f4")}, ValueError, "input must have at most 8"),
    (DIRECTML, {"input": X[0, 0, ...]}, ValueError, "input must have at least 1 dim"),
    (DIRECTML, {"input_gradient": X.T}, ValueError, "input_gradient must have input's shape"),
    (DIRECTML, {"mean": np.ones(3, "f4")}, ValueError, r"mean must .* for example \(1, 3\)"),
    (DIRECTML, {"mean": np.ones(2, "f4")}, ValueError, r"mean must .* for example \(2, 1\)"),
    (DIRECTML, OTHER_RANK, ValueError, r"have 3 dimensions like input, .* \(1, 3, 1\), got \(5,\)"),
    (DIRECTML, {"mean": X[:1, :2]}, ValueError, "mean must have size 1, or 3 .* on axis 1, got 2"),
    (DIRECTML, {"mean": ROW.astype(HALF)}, TypeError, "mean must be f32 where"),
    (DIRECTML, {"variance": X[:, :1]}, ValueError, "variance must have"),
    (DIRECTML, {"scale": ROW.astype(HALF)}, TypeError, "scale must be f32 like"),
    (DIRECTML, {"scale": None}, TypeError, "scale must be a NumPy array"),
    (DIRECTML, {"out": (X, ROW.copy(), ROW.copy())}, ValueError, r"out.output_gradient must not"),
    (BACKPROP, {"output_delta": X[:1]}, ValueError, "output_delta must have input_forward's shape"),
    (BACKPROP, {"outputs": "diff_src"}, ValueError, 'outputs must be "all" or "input_delta"'),
    (DIRECTML, {"out": ()}, TypeError, r"tuple \(output_gradient, output_scale_g.*, output_bias_g"),
    (BACKPROP, {"out": ()}, TypeError, r"tuple \(input_delta, gamma_delta, beta_delta\)"),
    (BACKPROP, {"out": (X, S.copy(), S.copy())}, ValueError, r"out.input_delta must not overlap"),
]


@pytest.mark.parametrize(("op", "changes", "error", "message"), ERRORS)
def test_errors_have_the_names_of_the_class(op, changes, error, message):
    with pytest.raises(error, match=message):
        op(**INPUTS[op] | changes)
