"""The three operator classes of one gradient, which differ in names and limits."""

from __future__ import annotations

import itertools

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import testing

DIRECTML = onedsl.BatchNormalizationGrad(EPSILON)


def directml_problem(shape, kept, dtype="f32", seed=0):
    """Return random inputs with statistics of the kept axes."""
    rng = np.random.default_rng(seed)
    narrow = helpers.NUMPY[dtype]
    stats_shape = tuple(size if axis in kept else 1 for axis, size in enumerate(shape))
    x = (rng.standard_normal(shape) * 1.5 + 0.5).astype(narrow)
    dy = (rng.standard_normal(shape) + 0.25 + 0.5 * x.astype(np.float32)).astype(narrow)
    mean = rng.normal(0.5, 0.1, stats_shape).astype(narrow)
    variance = rng.uniform(1, 3, stats_shape).astype(narrow)
    scale = rng.uniform(0.5, 2, stats_shape).astype(narrow)
    return x, dy, mean, variance, scale


class TestDirectML:
    @pytest.mark.parametrize("kept", [(), (2,), (0, 2), (1, 3), (0, 3), (0, 1, 2, 3)], ids=str)
    @pytest.mark.parametrize("outputs", ["all", "output_gradient"])
    def test_every_memory_order(self, kept, outputs):
        """Of axes that are not adjacent, or in another order in memory than in the shape."""
        problem = directml_problem((3, 5, 4, 2), kept)
        expected = testing.batch_normalization_grad(*problem, epsilon=EPSILON)
        stats = problem[2:]
        for order in itertools.permutations(range(4)):
            back = np.argsort(order)
            x, dy = (np.ascontiguousarray(a.transpose(order)).transpose(back) for a in problem[:2])
            sums = (np.empty_like(stats[0]) if outputs == "all" else None for _ in range(2))
            out = (np.empty_like(x), *sums)
            for grads in (
                DIRECTML(x, dy, *stats, outputs=outputs),
                DIRECTML(x, dy.copy("C"), *stats, outputs=outputs),
                DIRECTML(x, dy, *stats, outputs=outputs, out=out),
            ):
                assert grads[0].strides == x.strides
                testing.assert_close(grads, expected)

    def test_reordered_in_place(self):
        x, dy, *stats = directml_problem((3, 5, 4, 2), (0, 2))
        expected = DIRECTML(x, dy, *stats)
        grads = DIRECTML(x, dy, *stats, out=(dy, *map(np.empty_like, stats[:2])))
        assert grads[0] is dy
        assert [g.tobytes() for g in grads] == [e.tobytes() for e in expected]

    def test_f16_sums_are_computed_in_a_wider_type(self):
        """Sums of ones in f16 stop at 2,048."""
        x = np.ones((60_000, 1), np.float16)
        one = np.ones((1, 1), np.float16)
        assert DIRECTML(x, x, one, one, one).output_bias_gradient.item() == 60_000

    @pytest.mark.parametrize(
        ("position", "value", "error", "message"),
        [
            (0, np.ones((2, 3)), TypeError, r"input must be f32 or f16, got float64"),
            (0, np.ones((1,) * 9, np.float32), ValueError, r"input must have at most 8"),
            (0, np.array(1, np.float32), ValueError, r"input must have at least 1 dim"),
            (0, np.ones((2, 3), helpers.NUMPY["bf16"]), TypeError, r"must be f32 or f16, got bf16"),
            (1, np.ones((3, 2), np.float32), ValueError, r"input_gradient must have"),
            (
                2,
                np.ones(3, np.float32),
                ValueError,
                r"mean must have 2 dimensions like input, for example",
            ),
            (
                2,
                np.ones((2, 2), np.float32),
                ValueError,
                r"mean must have size 1, or 3 like input, on axis 1, got 2: shape \(2, 2\)",
            ),
            (2, np.ones((1, 3), np.float16), TypeError, r"mean must be f32 where"),
            (3, np.ones((2, 1), np.float32), ValueError, r"variance must have"),
            (4, np.ones((1, 3), np.float16), TypeError, r"scale must be f32 like"),
            (4, None, TypeError, r"scale must be an array, got None"),
        ],
        ids=str,
    )
    def test_errors_name_the_field(self, position, value, error, message):
        arguments = list(directml_problem((2, 3), (1,)))
        arguments[position] = value
        with pytest.raises(error, match=message):
            DIRECTML(*arguments)

    def test_overlap(self):
        x, dy, mean, variance, scale = directml_problem((2, 3), (1,))
        out = (x, np.empty_like(mean), np.empty_like(mean))
        with pytest.raises(ValueError, match=r"out.output_gradient must"):
            DIRECTML(x, dy, mean, variance, scale, out=out)


class TestOneProblem:
    """Several classes give bitwise equal results for the same problem."""

    @helpers.formats
    def test_backward_and_backprop(self, data_format):
        problem = testing.random_problem((4, 7, 8), data_format=data_format)
        first = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
        second = onedsl.BatchNormTrainingBackprop(EPSILON, data_format)
        grads, deltas = first(*problem), second(*problem)
        assert deltas._fields == ("input_delta", "gamma_delta", "beta_delta")
        assert [a.tobytes() for a in grads] == [a.tobytes() for a in deltas]

    @helpers.formats
    @pytest.mark.parametrize("shape", [(9, 8), (8, 40, 50, 8)], ids=str)
    def test_backward_and_grad(self, shape, data_format):
        """diff_gamma and diff_beta are the same for batch and frozen statistics."""
        problem = testing.random_problem(shape, data_format=data_format)
        kept = [1] * len(shape)
        kept[-1 if data_format == "NXC" else 1] = -1
        _, *sums = onedsl.BatchNormTrainingBackward(EPSILON, data_format)(*problem)
        frozen = DIRECTML(*problem[:2], *(a.reshape(kept) for a in problem[2:]))
        assert [a.tobytes() for a in sums] == [a.tobytes() for a in frozen[1:]]


class TestBackprop:
    def test_names_in_messages(self):
        op = onedsl.BatchNormTrainingBackprop(EPSILON)
        x, s = np.ones((4, 3), np.float32), np.ones(3, np.float32)
        with pytest.raises(ValueError, match="output_delta must have input_forward's shape"):
            op(x, x[:2], s, s)
        with pytest.raises(ValueError, match='outputs must be "all" or "input_delta"'):
            op(x, x, s, s, outputs="diff_src")
        with pytest.raises(ValueError, match=r"out\.input_delta must not overlap input_forward"):
            op(x, x.copy(), s, s, out=(x, s.copy(), s.copy()))
