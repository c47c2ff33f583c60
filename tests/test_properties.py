"""Properties for random shapes, formats, types, memory layouts and backends."""

from __future__ import annotations

from typing import Any, NamedTuple

import helpers
import numpy as np
from helpers import EPSILON
from hypothesis import given
from hypothesis import strategies as st

import onedsl
from onedsl import testing


class Setting(NamedTuple):
    problem: testing.Problem
    data_format: str
    dtype: str
    stats: str
    backend: str
    seed: int

    def __repr__(self) -> str:
        """Return the seed instead of the arrays."""
        src = self.problem.src
        return (
            f"<{self.dtype}/{self.stats} {self.data_format} {src.shape} by {src.strides}, "
            f"{self.backend}, seed {self.seed}>"
        )

    def run(self, problem: testing.Problem | None = None, **options: Any):
        op = onedsl.BatchNormTrainingBackward(EPSILON, self.data_format)
        return op(*(problem or self.problem), **{"backend": self.backend, **options})

    def wanted(self):
        return testing.batch_norm_backward(
            *self.problem, epsilon=EPSILON, data_format=self.data_format
        )

    def cancellation(self) -> float:
        """Return how much more the terms of the sums cancel than random ones: 1 if not more."""
        src, diff_dst, mean, variance, _ = self.problem
        deviation = src.astype(np.float64) - self.per_channel(mean)
        xhat = deviation / np.sqrt(self.per_channel(variance) + EPSILON)
        count = src.size // mean.size
        ratios = [
            np.linalg.norm(np.abs(terms).sum(self.others)) / np.linalg.norm(terms.sum(self.others))
            for terms in (diff_dst.astype(np.float64), diff_dst * xhat)
        ]
        return max(1.0, *(float(ratio) / count**0.5 for ratio in ratios))

    @property
    def axis(self) -> int:
        return self.problem.src.ndim - 1 if self.data_format == "NXC" else 1

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(a for a in range(self.problem.src.ndim) if a != self.axis)

    def per_channel(self, vector):
        shape = [1] * self.problem.src.ndim
        shape[self.axis] = -1
        return vector.astype(np.float64).reshape(shape)


@st.composite
def settings(draw, cells=tuple(helpers.CELLS)):
    """Draw a problem with 8 to some thousand elements per channel in any dense layout."""
    dtype, stats, backend = draw(st.sampled_from(cells))
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
    problem = problem._replace(src=src, diff_dst=diff_dst)
    return Setting(problem, data_format, dtype, stats, backend, seed)


FLOAT = tuple(cell for cell in helpers.CELLS if cell[0] == "f32")


@given(settings())
def test_equals_the_reference(setting):
    guarded = helpers.outputs_like(setting.problem)
    got = setting.run(out=guarded.out)
    guarded.check_walls()
    wanted = setting.wanted()
    per_channel = setting.problem.src.size // setting.problem.mean.size
    factor = helpers.tolerance_factor(setting.backend, per_channel)
    tensor = got._replace(diff_gamma=None, diff_beta=None)
    testing.assert_gradients_close(tensor, wanted, factor=2 * factor)
    if setting.backend == "onednn":  # it sums in float32
        factor *= setting.cancellation()
    sums = got._replace(diff_src=None)
    testing.assert_gradients_close(sums, wanted, factor=2 * factor)
    assert setting.run().diff_src.strides == setting.problem.src.strides


@given(settings(FLOAT), st.sampled_from([2.0, -0.5, 0.0, 1024.0]))
def test_scaling_diff_dst_by_a_power_of_two_scales_the_results_exactly(setting, scale):
    once = setting.run()
    more = setting.run(
        setting.problem._replace(diff_dst=setting.problem.diff_dst * np.float32(scale))
    )
    for a, b in zip(once, more, strict=True):
        assert np.array_equal(a * np.float32(scale), b)


@given(settings(FLOAT))
def test_is_linear_in_diff_dst(setting):
    problem = setting.problem
    rng = np.random.default_rng(0)
    other = np.empty_like(problem.diff_dst)
    other[...] = rng.normal(size=other.shape)
    total = setting.run(problem._replace(diff_dst=problem.diff_dst + other))
    parts = [setting.run(problem), setting.run(problem._replace(diff_dst=other))]
    count = problem.src.size // problem.mean.size
    for whole, a, b in zip(total, *parts, strict=True):
        size = np.abs(a).max() + np.abs(b).max() + np.abs(whole).max()
        if whole.ndim == 1:  # a sum, whose terms may be far larger than itself
            size += 10 * count
        assert np.abs(whole - (a.astype("f8") + b)).max() <= 2e-5 * size


@given(settings(FLOAT))
def test_diff_src_is_orthogonal_to_ones_and_xhat(setting):
    """With the statistics of src, and up to epsilon for xhat."""
    problem = setting.problem
    diff_src = setting.run().diff_src.astype(np.float64)
    xhat = (problem.src.astype("f8") - setting.per_channel(problem.mean)) / np.sqrt(
        setting.per_channel(problem.variance) + EPSILON
    )
    size = np.abs(problem.gamma / np.sqrt(problem.variance + EPSILON))
    count = problem.src.size // problem.mean.size
    error = 2e-6 * helpers.tolerance_factor(
        "native" if setting.backend == "native" else "onednn", count
    )
    assert (np.abs(diff_src.sum(setting.others)) <= error * size * count).all()
    leftover = np.abs((diff_src * xhat).sum(setting.others))
    # xhat's mean square is 1 - epsilon / (variance + epsilon).
    slack = (error + EPSILON / problem.variance) * count
    assert (leftover <= size * slack * 3).all()


@given(settings(FLOAT))
def test_backends_agree(setting):
    a, b = (setting.run(backend=backend) for backend in ("onednn", "native"))
    per_channel = setting.problem.src.size // setting.problem.mean.size
    factor = 2 * helpers.tolerance_factor("onednn", per_channel)
    testing.assert_gradients_close(a, b, factor=factor)


@given(settings(), st.randoms(use_true_random=False))
def test_permutations_of_positions(setting, random):
    """A permutation of the elements of a channel changes only the summation order."""
    problem = setting.problem
    shuffled = list(problem[:2])
    indices = {a: random.sample(range(n), n) for a, n in enumerate(problem.src.shape)}
    for axis in setting.others:
        shuffled = [np.take(x, indices[axis], axis) for x in shuffled]
    got = setting.run(testing.Problem(*shuffled, *problem[2:]))
    plain = setting.run()
    wanted = plain.diff_src
    for axis in setting.others:
        wanted = np.take(wanted, indices[axis], axis)
    close = onedsl.BatchNormGradients(wanted, plain.diff_gamma, plain.diff_beta)
    testing.assert_gradients_close(got, close, factor=4)


@given(settings(), st.randoms(use_true_random=False))
def test_channels_are_independent(setting, random):
    """Removing or permuting channels does not change the results of the others."""
    problem = setting.problem
    channels = problem.mean.size
    kept = random.sample(range(channels), random.randint(1, channels))
    fewer = testing.Problem(*(np.take(a, kept, setting.axis if a.ndim > 1 else 0) for a in problem))
    got, all_of_them = setting.run(fewer), setting.run()
    wanted = onedsl.BatchNormGradients(
        np.take(all_of_them.diff_src, kept, setting.axis),
        all_of_them.diff_gamma[kept],
        all_of_them.diff_beta[kept],
    )
    testing.assert_gradients_close(got, wanted, factor=8)


@given(settings())
def test_direct_and_compiled_are_bitwise_equal(setting):
    op = onedsl.BatchNormTrainingBackward(EPSILON, setting.data_format)
    spec = onedsl.TensorSpec.of(setting.problem.src)
    plan = op.compile(spec, stats_dtype=setting.stats, backend=setting.backend)
    for a, b in zip(plan(*setting.problem), setting.run(), strict=True):
        assert np.array_equal(
            a.view(np.uint8 if a.ndim == 1 else a.dtype),
            b.view(np.uint8 if b.ndim == 1 else b.dtype),
        )


@given(settings())
def test_in_place_is_bitwise_equal(setting):
    wanted = setting.run()
    buffer = np.empty_like(setting.problem.diff_dst)
    buffer[...] = setting.problem.diff_dst
    sums = (np.empty_like(setting.problem.mean), np.empty_like(setting.problem.mean))
    setting.run(setting.problem._replace(diff_dst=buffer), out=(buffer, *sums))
    assert buffer.tobytes() == wanted.diff_src.tobytes()
    assert [s.tobytes() for s in sums] == [w.tobytes() for w in wanted[1:]]
