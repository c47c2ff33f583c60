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
    testing.assert_close(tensor, wanted, factor=2 * factor)
    if setting.backend == "onednn":  # it sums in float32
        factor *= setting.cancellation()
    sums = got._replace(diff_src=None)
    testing.assert_close(sums, wanted, factor=2 * factor)
    allocated = setting.run()
    assert allocated.diff_src.strides == setting.problem.src.strides
    # A compiled call, and a call in place, have the same bits.
    op = onedsl.BatchNormTrainingBackward(EPSILON, setting.data_format)
    spec = onedsl.TensorSpec.of(setting.problem.src)
    plan = op.compile(spec, stats_dtype=setting.stats, backend=setting.backend)
    over = setting.problem.diff_dst.copy(order="K")
    out = (over, *(np.empty_like(a) for a in got[1:]))
    in_place = setting.run(setting.problem._replace(diff_dst=over), out=out)
    for other in (allocated, plan(*setting.problem), in_place):
        assert [a.tobytes() for a in other] == [a.tobytes() for a in got]


@given(settings(FLOAT), st.sampled_from([2.0, -0.5, 0.0, 1024.0]))
def test_scaling_diff_dst_by_a_power_of_two_scales_the_results_exactly(setting, scale):
    once = setting.run()
    more = setting.run(
        setting.problem._replace(diff_dst=setting.problem.diff_dst * np.float32(scale))
    )
    for a, b in zip(once, more, strict=True):
        assert np.array_equal(a * np.float32(scale), b)
