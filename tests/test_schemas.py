"""The three operator classes of one gradient, which differ in names and limits."""

from __future__ import annotations

import itertools

import helpers
import numpy as np
import pytest
from helpers import BACKENDS, EPSILON, FORMATS

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


def check(problem, grads, factor=1.0):
    """Compare all outputs with float64: f32 within 1e-6, f16 within 2^-10."""
    expected = testing.batch_normalization_grad(*problem, epsilon=EPSILON)
    limit = 1e-6 if problem[0].dtype == np.float32 else 2.0**-10
    for name, got, want in zip(grads._fields, grads, expected, strict=True):
        assert got.shape == want.shape, name
        assert got.dtype == problem[0].dtype, name
        assert testing.relative_l2(got, want) <= factor * limit, name


def subsets(rank):
    axes = range(rank)
    return itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(rank + 1))


SIZES = (5, 4, 3, 7)


class TestDirectML:
    @pytest.mark.parametrize("kept", list(subsets(4)), ids=str)
    def test_every_set_of_kept_axes(self, kept):
        dtype = ("f32", "f16")[len(kept) % 2]
        x, dy, *stats = directml_problem((12, 20, 33, 50), kept, dtype)
        problem = (x, dy / dy.dtype.type(16), *stats)  # f16 cannot hold larger sums
        check(problem, DIRECTML(*problem))

    def test_random_shapes(self):
        for seed in range(300):
            rng = np.random.default_rng(seed)
            rank = int(rng.integers(1, 9))
            shape = tuple(int(n) for n in rng.integers(1, 5, rank))
            kept = tuple(axis for axis in range(rank) if rng.random() < 0.5)
            problem = directml_problem(shape, kept, ("f32", "f16")[seed % 2], seed)
            check(problem, DIRECTML(*problem))

    @pytest.mark.parametrize("kept", [(1,), (0, 2), (1, 3), (1, 2)], ids=str)
    def test_every_memory_order(self, kept):
        problem = directml_problem((4, 5, 6, 7), kept)
        for order in itertools.permutations(range(4)):
            x, dy = (
                np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))
                for a in problem[:2]
            )
            grads = DIRECTML(x, dy, *problem[2:])
            check(problem, grads)
            if len(kept) == 1:
                assert grads.output_gradient.strides == x.strides

    @pytest.mark.parametrize("dtype", ["f32", "f16"])
    @pytest.mark.parametrize("kept", [(1,), (3,), (0, 2), (1, 3), (), (0, 1, 2, 3)], ids=str)
    def test_compiled_with_out(self, kept, dtype):
        problem = directml_problem((6, 5, 8, 9), kept, dtype)
        spec = onedsl.TensorSpec.of(problem[0])
        compiled = DIRECTML.compile(spec, problem[2].shape)
        assert compiled.stats_shape == problem[2].shape
        assert compiled.stats_dtype == dtype
        out = onedsl.BatchNormalizationGradients(
            *(np.full_like(problem[i], np.nan) for i in (0, 2, 2))
        )
        assert compiled(*problem, out=out) is out
        check(problem, out)
        want = DIRECTML(*problem)
        in_place = (problem[1], *(np.empty_like(a) for a in want[1:]))
        for got in (out, DIRECTML(*problem, out=in_place)):
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("kept", [(1,), (0, 2), (1, 3)], ids=str)
    @pytest.mark.parametrize("dtype", ["f32", "f16"])
    def test_scale_is_used_for_one_output(self, kept, dtype):
        problem = directml_problem((6, 5, 8, 9), kept, dtype)
        alone = DIRECTML(*problem, outputs="output_gradient")
        assert alone[1] is None
        assert alone[2] is None
        np.testing.assert_array_equal(alone[0], DIRECTML(*problem)[0])

    @pytest.mark.parametrize("kept", [(1,), (3,), (2, 3), (0,), (), (0, 1, 2, 3)], ids=str)
    @pytest.mark.parametrize("outputs", ["all", "output_gradient"])
    def test_onednn(self, kept, outputs):
        problem = directml_problem((6, 5, 8, 16), kept)
        grads = DIRECTML(*problem, outputs=outputs, backend="onednn")
        expected = testing.batch_normalization_grad(*problem, epsilon=EPSILON)
        testing.assert_close(grads, expected)
        compiled = DIRECTML.compile(
            onedsl.TensorSpec.of(problem[0]), problem[2].shape, outputs=outputs, backend="onednn"
        )
        assert compiled.backend == "onednn"

    @pytest.mark.parametrize("kept", [(0, 2), (1, 3), (0, 3)], ids=str)
    def test_onednn_needs_adjacent_axes(self, kept):
        problem = directml_problem((6, 5, 8, 9), kept)
        with pytest.raises(onedsl.UnsupportedError, match="adjacent in memory"):
            DIRECTML(*problem, backend="onednn")

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (2, 0, 3)], ids=str)
    def test_empty(self, shape):
        for kept in subsets(len(shape)):
            problem = directml_problem(shape, kept)
            grads = DIRECTML(*problem)
            assert grads.output_gradient.shape == shape
            for sums in grads[1:]:
                assert sums.shape == problem[2].shape
                assert not sums.any()

    def test_f16_sums_are_computed_in_a_wider_type(self):
        """Sums of ones in f16 stop at 2,048."""
        x = np.ones((60_000, 1), np.float16)
        one = np.ones((1, 1), np.float16)
        assert DIRECTML(x, x, one, one, one).output_bias_gradient.item() == 60_000

    def test_finite_differences(self):
        """Compare the reference with differences of the forward pass with constant statistics."""
        for kept in [(1,), (0, 2), (1, 3), ()]:
            x, dy, mean, variance, scale = (
                a.astype(np.float64) for a in directml_problem((2, 3, 2, 4), kept)
            )
            grads = testing.batch_normalization_grad(x, dy, mean, variance, scale, epsilon=EPSILON)

            def loss(x, scale, bias, dy=dy, mean=mean, variance=variance):
                return np.sum(dy * (scale * (x - mean) / np.sqrt(variance + EPSILON) + bias))

            arguments = [x, scale, np.zeros_like(scale)]
            for position, gradient in enumerate(grads):
                for index in np.ndindex(gradient.shape):
                    step = np.zeros_like(arguments[position])
                    step[index] = 1e-6
                    plus, minus = list(arguments), list(arguments)
                    plus[position] = plus[position] + step
                    minus[position] = minus[position] - step
                    slope = (loss(*plus) - loss(*minus)) / 2e-6
                    assert slope == pytest.approx(gradient[index], rel=1e-5, abs=1e-7)

    @pytest.mark.parametrize(
        ("position", "value", "error", "message"),
        [
            (0, np.ones((2, 3)), TypeError, r"input \(InputTensor\) must be f32.*got float64"),
            (0, np.ones((1,) * 9, np.float32), ValueError, r"\(InputTensor\) must have at most 8"),
            (0, np.array(1, np.float32), ValueError, r"\(InputTensor\) must have at least 1 dim"),
            (0, np.ones((2, 3), helpers.NUMPY["bf16"]), TypeError, r"must be f32 or f16, got bf16"),
            (1, np.ones((3, 2), np.float32), ValueError, r"\(InputGradientTensor\) must have"),
            (2, np.ones(3, np.float32), ValueError, r"mean \(MeanTensor\) must have as many"),
            (2, np.ones((2, 2), np.float32), ValueError, r"\(MeanTensor\).* its size or 1"),
            (2, np.ones((1, 3), np.float16), TypeError, r"\(MeanTensor\) must be f32 where"),
            (3, np.ones((2, 1), np.float32), ValueError, r"\(VarianceTensor\) must have"),
            (4, np.ones((1, 3), np.float16), TypeError, r"\(ScaleTensor\) must be f32 like"),
            (4, None, TypeError, r"scale \(ScaleTensor\) must be an array, got None"),
        ],
        ids=str,
    )
    def test_errors_name_the_field(self, position, value, error, message):
        arguments = list(directml_problem((2, 3), (1,)))
        arguments[position] = value
        with pytest.raises(error, match=message):
            DIRECTML(*arguments)

    def test_scale_is_required_by_apply(self):
        """Regression: apply without scale took ones."""
        x, dy, mean, variance, _ = directml_problem((2, 3), (1,))
        sums = DIRECTML.reduce(x, dy, mean, variance)
        with pytest.raises(TypeError, match=r"scale \(ScaleTensor\) must be an array, got None"):
            DIRECTML.apply(sums, x, dy, mean, variance, None)

    def test_compile_validates_ranks_and_dtypes(self):
        with pytest.raises(ValueError, match=r"\(InputTensor\) must have at most 8 dimensions"):
            DIRECTML.compile(onedsl.TensorSpec((2,) * 9), (1, 2) + (1,) * 7)
        with pytest.raises(TypeError, match="must be f32 or f16, got bf16"):
            DIRECTML.compile(onedsl.TensorSpec((2, 3), "bf16"), (1, 3))

    def test_overlap(self):
        x, dy, mean, variance, scale = directml_problem((2, 3), (1,))
        out = (x, np.empty_like(mean), np.empty_like(mean))
        with pytest.raises(ValueError, match=r"out.output_gradient \(OutputGradientTensor\) must"):
            DIRECTML(x, dy, mean, variance, scale, out=out)

    @pytest.mark.parametrize("stats_shape", [(3,), (2, 2), (1, 3, 1)], ids=str)
    def test_compile_validates_stats_shape(self, stats_shape):
        with pytest.raises(ValueError, match="MeanTensor"):
            DIRECTML.compile(onedsl.TensorSpec((2, 3)), stats_shape)

    def test_compiled_for_other_statistics(self):
        compiled = DIRECTML.compile(onedsl.TensorSpec((2, 3)), (1, 3))
        with pytest.raises(
            ValueError, match=r"must have shape \(1, 3\) as compiled for, got \(2, 1\)"
        ):
            compiled(*directml_problem((2, 3), (0,)))


class TestOneProblem:
    """Several classes give bitwise equal results for the same problem."""

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("data_format", FORMATS)
    @pytest.mark.parametrize(("dtype", "stats"), helpers.TYPES)
    @pytest.mark.parametrize("shape", [(9, 8), (4, 7, 8), (2, 8, 9, 8)], ids=str)
    def test_backward_and_backprop(self, shape, dtype, stats, data_format, backend):
        problem = testing.random_problem(shape, dtype, stats, data_format=data_format)
        first = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
        second = onedsl.BatchNormTrainingBackprop(EPSILON, data_format)
        if backend == "onednn" and not helpers.runs("onednn", dtype):
            for op in (first, second):
                with pytest.raises(onedsl.UnsupportedError):
                    op(*problem, backend=backend)
            return
        for gamma in (True, False):
            arguments = problem if gamma else problem[:4]
            grads = first(*arguments, backend=backend)
            deltas = second(*arguments, backend=backend)
            assert deltas._fields == ("input_delta", "gamma_delta", "beta_delta")
            spec = onedsl.TensorSpec.of(problem.src)
            compiled = second.compile(spec, stats_dtype=stats, gamma=gamma, backend=backend)
            for a, b, c in zip(grads, deltas, compiled(*arguments), strict=True):
                assert a.tobytes() == b.tobytes() == c.tobytes()

    @pytest.mark.parametrize("data_format", FORMATS)
    @pytest.mark.parametrize("shape", [(9, 8), (4, 7, 8), (2, 8, 9, 8), (8, 40, 50, 8)], ids=str)
    def test_backward_and_grad(self, shape, data_format):
        """diff_gamma and diff_beta are the same for batch and frozen statistics."""
        problem = testing.random_problem(shape, data_format=data_format)
        axis = onedsl.DataFormat(data_format).channel_axis
        stats_shape = [1] * len(shape)
        stats_shape[axis] = shape[axis]
        _, *sums = onedsl.BatchNormTrainingBackward(EPSILON, data_format)(*problem)
        frozen = DIRECTML(*problem[:2], *(a.reshape(stats_shape) for a in problem[2:]))
        for a, b in zip(sums, frozen[1:], strict=True):
            assert a.tobytes() == b.tobytes()


class TestBackprop:
    def test_gamma_is_used_for_one_output(self):
        """Unlike in oneDNN's documentation of BatchNormTrainingBackward."""
        problem = testing.random_problem((6, 5, 8))
        op = onedsl.BatchNormTrainingBackprop(EPSILON)
        for backend in BACKENDS:
            alone = op(*problem, outputs="input_delta", backend=backend)
            assert alone.gamma_delta is None
            whole = op(*problem, backend=backend)
            np.testing.assert_array_equal(alone.input_delta, whole.input_delta)

    def test_names_in_messages(self):
        op = onedsl.BatchNormTrainingBackprop(EPSILON)
        x, s = np.ones((4, 3), np.float32), np.ones(3, np.float32)
        with pytest.raises(ValueError, match="output_delta must have input_forward's shape"):
            op(x, x[:2], s, s)
        with pytest.raises(ValueError, match='outputs must be "all" or "input_delta"'):
            op(x, x, s, s, outputs="diff_src")
        with pytest.raises(ValueError, match=r"out\.input_delta must not overlap input_forward"):
            op(x, x.copy(), s, s, out=(x, s.copy(), s.copy()))
