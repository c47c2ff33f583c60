"""Large tensors, and calls that oneDNN does not support. tests/laws has the other calls.

test_isa.py runs this file again with lower instruction sets.
"""

from dataclasses import replace

import helpers
import numpy as np
import pytest
from cases.calls import calls_of
from cases.laws import RELUS
from doors import DOORS
from helpers import EPSILON, formats

import onedsl
from onedsl import testing

(ONEDNN,) = (door for door in DOORS if door.name == "onednn")
CALLS = [replace(call, out="given") for call in calls_of(RELUS, ["rank 4"])]


def reject(call, *fragments):
    """Check that a call raises UnsupportedError, and writes nothing."""
    with pytest.raises(onedsl.UnsupportedError) as caught:
        ONEDNN.run(call)
    assert caught.value.status == "unimplemented"
    for fragment in fragments:
        assert fragment in str(caught.value)
    for array, before in ONEDNN.written:
        assert array.tobytes() == before


def test_frozen_statistics_with_onednn():
    for call in (call for call in CALLS if call.target.broadcast):
        reject(call, "no op for frozen statistics")


def test_dtypes_that_onednn_does_not_run_here():
    """The message names the missing instruction set."""
    isas = {"AVX512": "avx512_core", "AVX512_FP16": "avx512_core_fp16"}
    for call in CALLS:
        if not (ONEDNN.reason_against(call) or ONEDNN.runs_here(call)):
            isa = isas[helpers.missing_isa(call.dtype)]
            message = f"oneDNN has no {call.dtype} kernel for CPUs without {isa} ("
            reject(call, message, 'Use backend="auto"')


# Large enough for non-temporal stores. The offset tests their unaligned heads and tails.
@pytest.mark.parametrize(("dtype", "channels"), [("f32", 17), ("bf16", 64), ("f16", 17)])
@formats
def test_large(dtype, data_format, channels):
    width = (3_000_000 if dtype == "f32" else 6_000_000) // channels // 600
    shape = helpers.shape_of(data_format, 3, channels, (200, width))
    small = testing.random_problem((100_003, 1), dtype, "f32", data_format="NXC")
    src, diff_dst = (np.resize(a, shape) for a in (small.src, small.diff_dst))
    mean, variance, gamma = np.random.default_rng(0).uniform(0.5, 2, (3, channels)).astype("f4")
    problem = testing.Problem(src, diff_dst, mean, variance, gamma)
    expected = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)
    guarded = helpers.outputs_like(problem, offset=3)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    op(*problem, out=guarded.out)
    guarded.check_walls()
    testing.assert_close(guarded.out, expected)
    # Non-temporal stores must not hit memory that is read later.
    in_place = problem.diff_dst.copy()
    sums = map(np.empty_like, (mean, mean))
    got = op(*problem._replace(diff_dst=in_place), out=(in_place, *sums))
    assert [a.tobytes() for a in got] == [a.tobytes() for a in guarded.out]
