"""onedsl.testing: references by finite differences, tolerances, and invalid arguments.

The laws compare the kernels, and oneDNN's, with these references.
"""

import functools
import inspect
import itertools

import helpers
import numpy as np
import pytest
from cases.activations import ACTIVATIONS
from fuzz.targets import TARGETS
from helpers import EPSILON, formats

import onedsl
from onedsl import testing
from onedsl.tensors.ports import signature


def check_gradients(got, loss, **inputs):
    """Compare gradients, in the order of the inputs, with central differences of a loss."""
    for name, (of, at) in zip(got._fields, inputs.items(), strict=True):
        wanted = np.empty_like(at)
        for index in np.ndindex(at.shape):
            up, down = at.copy(), at.copy()
            up[index] += 1e-5
            down[index] -= 1e-5
            wanted[index] = (loss(**inputs | {of: up}) - loss(**inputs | {of: down})) / 2e-5
        assert testing.relative_l2(getattr(got, name), wanted) < 1e-8, name


@pytest.mark.parametrize("statistics", ["batch", "frozen"])
@formats
@pytest.mark.parametrize("spatial", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("with_gamma", [True, False], ids=["gamma", "no_gamma"])
def test_against_finite_differences(statistics, data_format, spatial, with_gamma):
    rng = np.random.default_rng(len(spatial))
    shape = helpers.shape_of(data_format, 4, 3, spatial)
    src, diff_dst = rng.normal(0.5, 1.5, shape), rng.normal(size=shape)
    gamma, beta = rng.uniform(0.5, 2, 3), rng.normal(size=3)
    others = tuple(a for a in range(src.ndim) if a != (1 if data_format == "NCX" else src.ndim - 1))
    mean, variance, given = src.mean(others), src.var(others), {}
    if statistics == "frozen":
        mean, variance = rng.normal(size=3), rng.uniform(0.5, 2, 3)
        given = {"mean": mean, "variance": variance}
    options = {"epsilon": 0.01, "data_format": data_format}

    def loss(x, scale, shift):
        return float((testing.batch_norm(x, scale, shift, **options, **given) * diff_dst).sum())

    inputs = src, diff_dst, mean, variance, gamma if with_gamma else None
    got = testing.batch_norm_backward(*inputs, **options, statistics=statistics)
    check_gradients(got, loss, x=src, scale=gamma if with_gamma else np.ones(3), shift=beta)


@formats
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activations_against_finite_differences(activation, data_format):
    rng = np.random.default_rng(3)
    src, residual, diff_dst = rng.standard_normal((3, *helpers.shape_of(data_format, 3, 2, (2,))))
    gamma, beta = rng.uniform(0.5, 2, (2, 2))
    options = {"epsilon": 1e-5, "data_format": data_format, **activation.attributes}

    def forward(x, scale, shift, added):
        statistics = np.zeros(2), np.ones(2)
        return testing.batch_norm_forward_training(x, *statistics, scale, shift, added, **options)

    def loss(**inputs):
        return float((forward(**inputs).dst * diff_dst).sum())

    statistics = forward(src, gamma, beta, residual)[-2:]
    inputs = src, diff_dst, *statistics, gamma, beta, residual
    got = testing.batch_norm_act_backward(*inputs, **options)
    check_gradients(got, loss, x=src, scale=gamma, shift=beta, added=residual)


def test_results_are_not_the_callers_arrays():
    mean, variance = np.zeros(3), np.ones(3)
    got = testing.batch_norm_forward_training(np.zeros((0, 3)), mean, variance, epsilon=1e-5)
    assert not np.shares_memory(got.running_mean, mean)
    assert not np.shares_memory(got.running_variance, variance)


def test_invalid_arguments(says):
    for src, options in (
        (np.ones((2, 3)), {"epsilon": 1e-5}),
        ([[1.0]], {"epsilon": 1, "statistics": "running"}),
    ):
        with pytest.raises(ValueError) as caught:
            testing.batch_norm_backward(src, src, [1.0], [1.0], **options)
        says(caught.value)
    for name, value in (
        ("epsilon", -1.0), ("momentum", 5), ("clip", -1.0), ("activation", None),
        ("negative_slope", np.nan), ("negative_slope", 0.1),
    ):  # fmt: skip
        options = {"epsilon": 1e-5, "activation": "relu", "clip": 6} | {name: value}
        with pytest.raises(ValueError) as caught:
            testing.batch_norm_forward_training([[1.0]], [1.0], [1.0], **options)
        says(caught.value)


SHAPES = dict.fromkeys(["src", "diff_dst", "dst", "residual", "input", "input_gradient"], (4, 2, 3))
SHAPES |= dict.fromkeys(["mean", "variance", "gamma", "beta"], (3,))
OF_DIRECTML = dict.fromkeys(["mean", "variance", "scale"], (1, 2, 1))


REFERENCES = [(name, "") for name in testing.__all__ if "batch_norm" in name]
REFERENCES.remove(("batch_norm_act_backward", ""))
REFERENCES += [("batch_norm_act_backward", name) for name in ("dst", "residual")]


@pytest.mark.parametrize(("which", "without"), REFERENCES)
def test_no_array_is_broadcast(which, without, says):
    reference = getattr(testing, which)
    shapes = SHAPES | OF_DIRECTML if which == "batch_normalization_grad" else SHAPES
    parameters = inspect.signature(reference).parameters
    names = [name for name in parameters if name in shapes and name != without]
    inputs = {name: np.ones(shapes[name]) for name in names}
    if parameters.get("activation", inspect.Parameter).default is inspect.Parameter.empty:
        reference = functools.partial(reference, activation="relu")
    reference(**inputs, epsilon=1e-5)
    messages = set()
    for name, array in list(inputs.items())[1:]:
        for shape in {array[:1].shape: 0, (): 0, (4, 2): 0}:
            if shape != array.shape:
                with pytest.raises(ValueError, match=f"^{name} must ") as caught:
                    reference(**inputs | {name: np.ones(shape)}, epsilon=1e-5)
                messages.add(str(caught.value).replace(name, "NAME"))
    for message in sorted(messages):
        says(message)
    first = next(iter(inputs))
    for value in 1.0, np.ma.array(inputs[first]):
        with pytest.raises((TypeError, ValueError)) as caught:
            reference(**inputs | {first: value}, epsilon=1e-5)
        says(caught.value)
    with pytest.raises(TypeError, match=f"^{first} must be array_like, got list, for which NumPy"):
        reference(**inputs | {first: [[1], [2, 3]]}, epsilon=1e-5)  # NumPy's words follow
    with pytest.raises(ValueError) as caught:
        reference(**inputs, epsilon="1")
    says(caught.value)


def test_terms_of_a_known_problem():
    """By hand. Looser ones would accept wrong results."""
    inputs = [[2.0], [-2.0]], [[1.0], [3.0]], [0.0], [1.0], [4.0]
    # With epsilon = 3, xhat is (1, -1), and gamma / sqrt(variance + epsilon) is 2.
    found = testing.batch_norm_backward(*inputs, epsilon=3).terms
    assert [terms.magnitude.ravel().tolist() for terms in found] == [[10, 14], [4], [4]]
    assert [terms.sums.ravel().tolist() for terms in found] == [[6, 6], [2], [4]]
    found = testing.batch_norm_backward(*inputs, epsilon=3, statistics="frozen").terms
    assert [terms.magnitude.ravel().tolist() for terms in found] == [[2, 6], [4], [4]]
    # The number that kernels subtract from src differs from a mean of 2**10 by at most 1/2.
    far = [[2.0 + 2**10], [-2.0 + 2**10]], inputs[1], [2.0**10], *inputs[3:]
    found = testing.batch_norm_backward(*far, epsilon=3).terms
    assert [terms.magnitude.ravel().tolist() for terms in found[1:]] == [[1.25 * 4], [4]]


def test_terms_near_a_kink():
    """Within the error of the argument, 2**-20 of its term, both derivatives are accepted."""
    beta = 3 * (1 + np.array([0, 0.9, 1.1, -0.9, -1.1]) * 2.0**-20)
    zeros = np.zeros(beta.size)
    inputs = zeros[None], zeros[None] + 1, zeros, zeros + 1, zeros, beta
    found = testing.batch_norm_act_backward(*inputs, epsilon=1e-5, activation="hardswish")
    assert (found.terms[3].slack[0] > 0).tolist() == [True, True, False, True, False]
    # Elsewhere, that error does not change the slope of a ReLU.
    found = testing.batch_norm_act_backward(*inputs, epsilon=1e-5, activation="relu")
    assert (found.terms[3].magnitude == 1).all()


def test_terms_of_activations():
    """They have the largest slope and the largest second derivative of all, and not much more."""
    y = np.linspace(-8, 8, 16_000)  # as beta, where gamma is 0
    zeros = np.zeros(y.size)
    inputs = zeros[None], zeros, zeros + 1, zeros, y
    slopes, curvatures, terms = [], [], []
    for row in ACTIVATIONS:
        options = {"epsilon": 1e-5, **row.attributes}
        dst = testing.batch_norm_forward_training(*inputs, **options)
        ones, *others = zeros[None] + 1, *inputs[1:]
        gradient = testing.batch_norm_act_backward(inputs[0], ones, *others, **options)
        derivative = gradient.diff_residual[0]
        second = np.abs(np.diff(derivative) / np.diff(y))
        slopes.append(np.abs(derivative).max())
        curvatures.append(second[second < 10].max())  # without jumps
        of_gradient = gradient.terms[3].magnitude[0] - np.abs(derivative)
        terms.append((dst.terms[0].magnitude[0] / np.abs(y), of_gradient / np.abs(y)))
    for i, exact in enumerate((slopes, curvatures)):
        bounds = [pair[i] for pair in terms if pair[i].any()]
        np.testing.assert_allclose(bounds, max(exact), rtol=5e-3)
    # A slope is one, also if it is steeper than all others. An upper bound is none.
    first, *others = (
        testing.batch_norm_forward_training(*inputs, epsilon=1e-5, **options).terms[0].magnitude
        for options in (
            {"activation": "silu"},
            {"activation": "relu", "clip": 6.0},
            {"activation": "leaky_relu", "negative_slope": 4.5},
            {"activation": "leaky_relu", "negative_slope": -4.5},
        )
    )
    for magnitude, factor in zip(others, (1, 3, 3), strict=True):
        np.testing.assert_allclose(magnitude, factor * first)


class TestHelpers:
    def test_relative_l2(self):
        assert testing.relative_l2([3.0, 4.5], [3.0, 4.0]) == 0.1
        assert testing.relative_l2([0.0], [0.0]) == 0
        assert testing.relative_l2([1.0], [0.0]) == float("inf")
        assert np.isnan(testing.relative_l2([np.nan], [1.0]))
        assert np.isnan(testing.relative_l2([np.nan], [0.0]))
        assert testing.relative_l2(np.empty((0, 3)), np.empty((0, 3))) == 0
        with pytest.raises(ValueError, match=r"actual must have .* \(2,\), got \(1,\)"):
            testing.relative_l2([1.0], [1.0, 2.0])

    def test_assert_close_raises(self):
        """Also for a dict, as compiled graphs return. test_fuzz.py has the tolerances."""
        good = testing.batch_norm_backward(*testing.random_problem((8, 3)), epsilon=1e-5)
        narrow = {name: a.astype(np.float32) for name, a in good._asdict().items()}
        testing.assert_close(onedsl.BatchNormGradients(**narrow), good)
        for member, error in itertools.product(narrow, (1.01, np.nan)):
            bad = narrow | {member: narrow[member] * np.float32(error)}
            for actual in (onedsl.BatchNormGradients(**bad), {member: bad[member]}):
                with pytest.raises(AssertionError, match=f"{member} must be within .*, got "):
                    testing.assert_close(actual, good)
                if error == 1.01:
                    testing.assert_close(actual, good, factor=1e5)

    @helpers.types
    @pytest.mark.parametrize("activation", [None, *ACTIVATIONS], ids=str)
    def test_few_values_per_channel(self, activation, dtype, stats):
        """Their terms cancel. Regression: most right gradients of two values were rejected.

        test_fuzz.py tests that a larger error is rejected.
        """
        rng = np.random.default_rng(0)
        shapes = [(n, c) for n in range(1, 5) for c in (1, 2, 3, 5, 8)]
        shapes += [(n, 40) for n in (2, 3, 5, 10)]
        attributes = {"epsilon": EPSILON} | (activation.attributes if activation else {})
        for shape, target in itertools.product(shapes, TARGETS):
            if ("activation" in target.attributes) != bool(activation) or target.broadcast:
                continue
            problem = testing.random_problem(shape, dtype, stats, seed=int(rng.integers(1 << 30)))
            values = helpers.values_of(problem)
            names = [port.name for port in signature(target.schema.operation).inputs]
            inputs = [values[name] for name in names if name != "dst"]
            expected = target.reference(*inputs, **attributes)
            testing.assert_close(target.cls(**attributes)(*inputs), expected)

    @pytest.mark.parametrize("row", [row for row in ACTIVATIONS if row.jumps], ids=str)
    def test_both_derivatives_at_a_kink_are_accepted(self, row):
        """Regression: those of a LeakyReLU with a slope of -0.75 differed by too much."""
        kinks, jumps = (np.float32([*values]) for values in (row.jumps, row.jumps.values()))
        zeros, ones = np.zeros(kinks.size), np.ones((2, kinks.size))

        def check(beta, change):
            # With gamma = 0, the argument is the residual 1 and beta - 1, and diff_residual is the
            # derivative.
            inputs = ones, ones, zeros, zeros + 1, zeros, beta - 1, ones
            expected = testing.batch_norm_act_backward(*inputs, epsilon=1e-5, **row.attributes)
            changed = np.float32(expected.diff_residual + change)
            testing.assert_close({"diff_residual": changed}, expected)

        for change in jumps, -jumps:
            check(kinks, change)
            for beta, factor in ((kinks, 1.01), (kinks + 0.01, 1)):
                with pytest.raises(AssertionError, match="diff_residual must be within"):
                    check(beta, factor * change)

    @helpers.dtypes
    @pytest.mark.parametrize("name", ["relu", "leaky_relu"])
    def test_an_argument_without_rounding(self, name, dtype):
        """With gamma = beta = 0, it is 0. Regression: both derivatives were accepted."""
        problem = testing.random_problem((8, 3), dtype)
        zeros = np.zeros(3, np.float32)
        inputs = *problem[:4], zeros, zeros
        expected = testing.batch_norm_act_backward(*inputs, epsilon=1e-5, activation=name)
        op = onedsl.BatchNormActTrainingBackward(1e-5, activation=name)
        right = op(*inputs)
        testing.assert_close(right, expected)
        of_one = testing.batch_norm_backward(*problem[:4], zeros, epsilon=1e-5)
        wrong = [np.asarray(a, b.dtype) for a, b in zip(of_one, right, strict=False)]
        with pytest.raises(AssertionError, match="diff_gamma must be within"):
            testing.assert_close((*wrong, None), expected)

    @helpers.types
    def test_another_epsilon_is_rejected(self, dtype, stats):
        """Regression: twice the epsilon was accepted in 16 bits."""
        problem = testing.random_problem((64, 8), dtype, stats)
        expected = testing.batch_norm_backward(*problem, epsilon=1e-5)
        for epsilon in (5e-6, 1e-5, 2e-5):
            result = onedsl.BatchNormTrainingBackward(epsilon)(*problem)
            if epsilon == 1e-5:
                testing.assert_close(result, expected)
            else:
                with pytest.raises(AssertionError, match="diff_src must be within"):
                    testing.assert_close(result, expected)

    def test_another_implementation_that_sums_in_f32(self):
        """Regression: the message named oneDNN alone."""
        problem = testing.random_problem((8, 40, 40, 96))
        expected = testing.batch_norm_backward(*problem, epsilon=1e-5)
        rows = problem.diff_dst.reshape(-1, 96)
        sums = {"diff_beta": np.cumsum(rows, axis=0, dtype=np.float32)[-1]}
        with pytest.raises(AssertionError, match="or another implementation that sums in f32"):
            testing.assert_close(sums, expected)
        testing.assert_close(sums, expected, backend="onednn")

    @helpers.formats
    @pytest.mark.parametrize(
        ("mean", "shape"),
        [(0, (8, 3, (224, 224))), (10, (2, 16, (112, 112))), (100, (2, 16, (56, 56)))],
        ids=str,
    )
    def test_the_tolerance_includes_the_error_of_onednns_sums(self, mean, shape, data_format):
        """Regression: right results with a mean, or of many elements, were not within it."""
        rng = np.random.default_rng(0)
        size = helpers.shape_of(data_format, *shape)
        src, diff_dst = (rng.standard_normal(size, np.float32) + np.float32(mean) for _ in "12")
        axes = onedsl.DataFormat(data_format).summed_axes(4)
        batch_mean, variance = (f(axes, dtype="f8").astype("f4") for f in (src.mean, src.var))
        attributes = {"epsilon": 1e-5, "data_format": onedsl.DataFormat(data_format)}
        ones = np.ones_like(batch_mean)
        forward = onedsl.BatchNormForwardTraining(**attributes)
        want = testing.batch_norm_forward_training(src, ones, ones, ones, ones, **attributes)
        got = forward(src, ones, ones, ones, ones, backend="onednn")
        testing.assert_close(got, want, backend="onednn")
        backward = onedsl.BatchNormTrainingBackward(**attributes)
        inputs = src, diff_dst, batch_mean, variance, ones
        want = testing.batch_norm_backward(*inputs, **attributes)
        got = backward(*inputs, backend="onednn")
        testing.assert_close(got, want, backend="onednn")
        with pytest.raises(AssertionError, match=r"must be within"):
            testing.assert_close(got, want, factor=0.01, backend="onednn")

    def test_assert_close_rejects_invalid_arguments(self, says):
        good = testing.batch_norm_backward(*testing.random_problem((8, 3)), epsilon=1e-5)
        narrow = tuple(a.astype(np.float32) for a in good)
        for actual, expected, backend in (
            (None, good, "auto"),
            ({"dst": narrow[0]}, good, "auto"),
            ({0: narrow[0]}, good, "auto"),
            ({}, good, "auto"),
            ((None, None, None), good, "auto"),
            (narrow[:2], good, "auto"),
            (narrow, good[:1], "auto"),
            (([1.0], None, None), good, "auto"),
            (narrow, good, "oneDNN"),
            (narrow, good, np.array(["auto", "onednn"])),
        ):
            with pytest.raises((TypeError, ValueError)) as caught:
                testing.assert_close(actual, expected, backend=backend)
            says(caught.value)
        with pytest.raises(ValueError) as caught:
            testing.assert_close(narrow, good, factor=np.nan)
        says(caught.value)

    @formats
    def test_random_problem_has_the_statistics_of_src(self, data_format):
        shape = helpers.shape_of(data_format, 6, 3, (5,))
        problem = testing.random_problem(shape, "bf16", data_format=data_format)
        axes = (0, 1) if data_format == "NXC" else (0, 2)
        x = problem.src.astype(np.float64)
        np.testing.assert_allclose(problem.mean, x.mean(axes), rtol=1e-6)
        np.testing.assert_allclose(problem.variance, x.var(axes), rtol=1e-6)
        np.testing.assert_allclose(np.sqrt(problem.variance), [1.5, 1.5, 0.01], rtol=0.4)
        assert problem.src.dtype == helpers.NUMPY["bf16"]
        assert problem.gamma.dtype == np.float32
        again = testing.random_problem(shape, "bf16", data_format=data_format)
        assert all(map(np.array_equal, problem, again))
        other = testing.random_problem(shape, "bf16", data_format=data_format, seed=1)
        assert not np.array_equal(problem.src, other.src)

    @formats
    def test_invalid_arguments_of_random_problem(self, data_format, says):
        for arguments in ((2, 3), "f32", "f64"), ((3,),), (3,):
            with pytest.raises((TypeError, ValueError)) as caught:
                testing.random_problem(*arguments, data_format=data_format)
            says(caught.value)
