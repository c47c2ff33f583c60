"""The port `variance` with 1 / sqrt(variance + epsilon), as PyTorch's forward pass saves it."""

from __future__ import annotations

import dataclasses

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core, testing
from onedsl.operators.batch_norm_training_backward import SCHEMA

SHAPE = (4, 5, 6, 7)


def operator(statistics):
    return dataclasses.replace(SCHEMA, statistics=_core.Statistics[statistics]).core_operator(
        1e3,  # has no effect
        onedsl.DataFormat.NCX.statistics_shape_kind,
        variance_kind=_core.VarianceKind.inverse_stddev,
    )


@helpers.types
@pytest.mark.parametrize("mode", ["batch", "frozen"])
def test_inverse_stddev(dtype, stats, mode):
    src, diff_dst, mean, variance, gamma = helpers.case(SHAPE, dtype, stats, "NCX").problem
    inverse = (1 / np.sqrt(variance.astype(np.float64) + EPSILON)).astype(variance.dtype)
    inputs = (src, diff_dst, mean, inverse, gamma)
    got = operator(mode).run(inputs, True, None, _core.Backend.auto)
    assert got is not None
    wanted = testing.batch_norm_backward(
        *(src, diff_dst, mean, inverse.astype(np.float64) ** -2, gamma),
        epsilon=0,
        data_format="NCX",
        statistics=mode,
    )
    testing.assert_close(onedsl.BatchNormGradients(*got), wanted)


def test_onednn_rejects_inverse_stddev():
    inputs = tuple(helpers.case(SHAPE, "f32", "f32", "NCX").problem)
    with pytest.raises(onedsl.UnsupportedError, match="inverse standard deviations"):
        operator("batch").run(inputs, True, None, _core.Backend.onednn)
