"""Types x formats x ranks x ports x backends, against the float64 reference.

test_isa.py runs this file again under caps of the instruction set.
"""

from __future__ import annotations

import functools
import warnings

import helpers
import numpy as np
import pytest
from helpers import EPSILON, backends, formats, types

import onedsl
from onedsl import testing

# Odd sizes, 32 elements a channel or so, a channel count of another remainder for each rank.
SPATIAL = {
    2: (),
    3: (33,),
    4: (7, 5),
    5: (3, 2, 5),
    6: (3, 1, 2, 5),
    7: (2, 2, 1, 3, 2),
    8: (2, 1, 2, 3, 1, 2),
}
BATCH = {2: 33}
CHANNELS = {2: 17, 3: 8, 4: 16, 5: 3, 6: 64, 7: 5, 8: 24}

PORTS = ["all-gamma", "all-no_gamma", "diff_src-no_gamma", "diff_src-gamma"]


def check(case, dtype, data_format, backend, ports="all-gamma", *, compiled=False, offset=0):
    """Run one cell of the matrix into poisoned, walled buffers."""
    outputs, gamma = ports.split("-")
    problem = case.problem
    inputs = problem if gamma == "gamma" else problem[:4]
    # With diff_src alone, gamma is ignored: the op's document.
    wanted = case.with_gamma if ports == "all-gamma" else case.without_gamma
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    guarded = helpers.outputs_like(problem, sums=outputs == "all", offset=offset)

    def compile_plan():
        return op.compile(
            onedsl.TensorSpec.of(problem.src),
            stats_dtype=problem.mean.dtype,
            gamma=gamma == "gamma",
            outputs=outputs,
            backend=backend,
        )

    def call():
        with warnings.catch_warnings():
            if ports == "diff_src-gamma":
                warnings.simplefilter("ignore", onedsl.GammaIgnoredWarning)
            if compiled:
                return compile_plan()(*inputs, out=guarded.out)
            return op(*inputs, outputs=outputs, out=guarded.out, backend=backend)

    if not helpers.runs(backend, dtype):
        helpers.expect_unsupported(dtype, call)
        guarded.check_untouched()
        return
    got = call()
    guarded.check_walls()
    for given, returned in zip(guarded.buffers, got, strict=False):
        assert returned is given
    assert not any(np.isnan(buffer).any() for buffer in guarded.buffers), "not all was written"
    factor = helpers.tolerance_factor(compile_plan().backend, problem.src.size // problem.mean.size)
    testing.assert_gradients_close(got, wanted, factor=factor)
    if outputs == "diff_src":
        assert got.diff_gamma is None
        assert got.diff_beta is None


@backends
@types
@formats
@pytest.mark.parametrize("rank", range(2, 9))
@pytest.mark.parametrize("ports", PORTS)
def test_ranks_and_ports(dtype, stats, data_format, rank, ports, backend):
    shape = helpers.shape_of(data_format, BATCH.get(rank, 2), CHANNELS[rank], SPATIAL[rank])
    case = helpers.case(shape, dtype, stats, data_format)
    check(case, dtype, data_format, backend, ports)


@backends
@types
@formats
@pytest.mark.parametrize("spatial", [1, 7, 33])
@pytest.mark.parametrize("channels", [1, 3, 8, 16, 17, 64, 257])
def test_channels_and_sizes(dtype, stats, data_format, channels, spatial, backend):
    batch = {1: 37, 7: 4, 33: 2}[spatial]
    shape = helpers.shape_of(data_format, batch, channels, (spatial, spatial))
    case = helpers.case(shape, dtype, stats, data_format)
    check(case, dtype, data_format, backend)


@backends
@types
@formats
@pytest.mark.parametrize("ports", PORTS)
def test_compiled(dtype, stats, data_format, ports, backend):
    shape = helpers.shape_of(data_format, 4, 20, (6, 5))
    case = helpers.case(shape, dtype, stats, data_format)
    check(case, dtype, data_format, backend, ports, compiled=True)


@backends
@types
@formats
def test_results_that_the_call_allocates(dtype, stats, data_format, backend):
    shape = helpers.shape_of(data_format, 4, 20, (6, 5))
    problem, wanted, _ = helpers.case(shape, dtype, stats, data_format)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    if not helpers.runs(backend, dtype):
        helpers.expect_unsupported(dtype, lambda: op(*problem, backend=backend))
        return
    got = op(*problem, backend=backend)
    testing.assert_gradients_close(got, wanted)
    assert type(got) is onedsl.BatchNormGradients
    assert got.diff_src.dtype == helpers.NUMPY[dtype]
    assert got.diff_src.strides == problem.src.strides
    assert got.diff_src.flags.writeable
    for member in got[1:]:
        assert member.dtype == helpers.NUMPY[stats]
        assert member.shape == problem.mean.shape
        assert member.flags.c_contiguous


@functools.lru_cache(maxsize=1)
def large_case(channels: int, dtype: str, data_format: str) -> helpers.Case:
    elements = 3_000_000 if dtype == "f32" else 6_000_000
    width = elements // channels // 600
    shape = helpers.shape_of(data_format, 3, channels, (200, width))
    small = testing.random_problem((100_003, 1), dtype, "f32", data_format="NXC")
    src, diff_dst = (np.resize(a, shape) for a in (small.src, small.diff_dst))
    mean, variance, gamma = np.random.default_rng(0).uniform(0.5, 2, (3, channels)).astype("f4")
    problem = testing.Problem(src, diff_dst, mean, variance, gamma)
    wanted = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)
    return helpers.Case(problem, wanted, wanted)


# Larger than half a cache that cores share, so that kernels with stores around the cache are used;
# a start that is aligned to one item only makes such kernels prove their heads and tails.
@pytest.mark.parametrize("backend", ["auto", "native"])
@pytest.mark.parametrize(
    ("dtype", "channels"), [("f32", 17), ("f32", 64), ("bf16", 17), ("f16", 64)]
)
@formats
def test_large(dtype, data_format, channels, backend):
    check(large_case(channels, dtype, data_format), dtype, data_format, backend, offset=3)


@backends
@types
@formats
@pytest.mark.parametrize("channels", [5, 16])
@pytest.mark.parametrize("offset", [1, 7, 16, 31])
def test_any_alignment_of_every_array(dtype, stats, data_format, channels, offset, backend):
    """Items are aligned to themselves; nothing promises that a vector is."""
    shape = helpers.shape_of(data_format, 2, channels, (7, 9))
    problem, wanted, without = helpers.case(shape, dtype, stats, data_format)
    shifted = []
    for array in problem:
        (copy,) = helpers.Guarded(array, offset=offset).buffers
        copy[...] = array
        shifted.append(copy)
    case = helpers.Case(testing.Problem(*shifted), wanted, without)
    check(case, dtype, data_format, backend, offset=offset + 1)
