"""Types x formats x ranks x ports x backends, against the float64 reference.

test_isa.py runs this file again with lower instruction sets.
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

# Odd sizes, about 32 elements per channel, and for each rank another remainder of channels.
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


def check(case, dtype, data_format, backend, ports="all-gamma", *, offset=0):
    """Check one call that writes to guarded buffers."""
    outputs, gamma = ports.split("-")
    problem = case.problem
    inputs = problem if gamma == "gamma" else problem[:4]
    # For diff_src only, gamma is ignored.
    wanted = case.with_gamma if ports == "all-gamma" else case.without_gamma
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    guarded = helpers.outputs_like(problem, sums=outputs == "all", offset=offset)

    out = guarded.out

    def call():
        with warnings.catch_warnings():
            if ports == "diff_src-gamma":
                warnings.simplefilter("ignore", onedsl.GammaIgnoredWarning)
            return op(*inputs, outputs=outputs, out=out, backend=backend)

    if not helpers.runs(backend, dtype):
        helpers.expect_unsupported(dtype, call)
        guarded.check_untouched()
        return
    assert call() is out
    guarded.check_walls()
    assert not any(np.isnan(buffer).any() for buffer in guarded.buffers), (
        "an output was not written"
    )
    testing.assert_close(out, wanted, backend=backend)
    assert outputs == "all" or out[1:] == (None, None)


@backends
@types
@formats
@pytest.mark.parametrize("rank", range(2, 9))
def test_ranks_and_ports(dtype, stats, data_format, rank, backend):
    shape = helpers.shape_of(data_format, BATCH.get(rank, 2), CHANNELS[rank], SPATIAL[rank])
    case = helpers.case(shape, dtype, stats, data_format)
    for ports in PORTS:
        check(case, dtype, data_format, backend, ports)


@types
@formats
def test_auto_is_native(dtype, stats, data_format):
    """The other tests run "native" for both."""
    shape = helpers.shape_of(data_format, 4, 20, (6, 5))
    problem = helpers.case(shape, dtype, stats, data_format).problem
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    native = op(*problem, backend="native")
    assert type(native) is onedsl.BatchNormGradients
    assert native.diff_src.strides == problem.src.strides
    assert [a.dtype for a in native] == [helpers.NUMPY[d] for d in (dtype, stats, stats)]
    for results in (op(*problem), op(*problem, backend="auto")):
        for got, expected in zip(results, native, strict=True):
            assert got.tobytes() == expected.tobytes()


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


# Large enough for non-temporal stores. The offset tests their unaligned heads and tails.
@pytest.mark.parametrize(
    ("dtype", "channels"), [("f32", 17), ("f32", 64), ("bf16", 17), ("f16", 64)]
)
@formats
def test_large(dtype, data_format, channels):
    check(large_case(channels, dtype, data_format), dtype, data_format, "native", offset=3)
