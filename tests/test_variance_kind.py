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
GIVEN = 0b11111


@helpers.types
@pytest.mark.parametrize("mode", ["batch", "frozen"])
@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "compiled"])
def test_inverse_stddev(dtype, stats, mode, compiled):
    src, diff_dst, mean, variance, gamma = helpers.case(SHAPE, dtype, stats, "NCX").problem
    inverse = (1 / np.sqrt(variance.astype(np.float64) + EPSILON)).astype(variance.dtype)
    schema = dataclasses.replace(SCHEMA, statistics=_core.Statistics[mode])
    operator = schema.core_operator(
        1e3,  # has no effect
        onedsl.DataFormat.NCX.statistics_shape_kind,
        variance_kind=_core.VarianceKind.inverse_stddev,
    )
    inputs = (src, diff_dst, mean, inverse, gamma)
    if compiled:
        got = _core.Compiled(
            operator,
            data=_core.DataType[dtype],
            shape=src.shape,
            strides=src.strides,
            statistics=_core.DataType[stats],
            stats_shape=mean.shape,
            given=GIVEN,
            all_outputs=True,
            backend=_core.Backend.auto,
        ).run(inputs, None)
    else:
        got = operator.run(inputs, True, None, _core.Backend.auto)
    assert got is not None
    wanted = testing.batch_norm_backward(
        *(src, diff_dst, mean, inverse.astype(np.float64) ** -2, gamma),
        epsilon=0,
        data_format="NCX",
        statistics=mode,
    )
    testing.assert_gradients_close(onedsl.BatchNormGradients(*got), wanted)


def test_onednn_rejects_inverse_stddev():
    src, diff_dst, mean, inverse, gamma = helpers.case(SHAPE, "f32", "f32", "NCX").problem
    operator = SCHEMA.core_operator(
        EPSILON,
        onedsl.DataFormat.NCX.statistics_shape_kind,
        variance_kind=_core.VarianceKind.inverse_stddev,
    )
    with pytest.raises(onedsl.UnsupportedError, match="inverse standard deviations"):
        operator.run((src, diff_dst, mean, inverse, gamma), True, None, _core.Backend.onednn)
