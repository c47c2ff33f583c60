"""BatchNormForwardTraining, and its fusion with a residual and a ReLU: special values."""

from __future__ import annotations

import helpers
import numpy as np
import pytest
from helpers import EPSILON, backends, formats, types

import onedsl
from onedsl import testing

MOMENTUM = 0.9
SHAPES = [
    (4, 16, (5, 5)),
    (7, 40, (3,)),
    (300, 20, ()),
    (2, 24, (30, 31)),
    (3, 5, (2, 3, 4)),
    (1, 3, (17,)),
]
clips = pytest.mark.parametrize("clip", [None, 1.0], ids=["relu", "clip"])


class Inputs:
    """Arguments of the forward pass and of its gradient."""

    def __init__(self, shape, dtype="f32", stats="f32", data_format="NXC", seed=0):
        batch, channels, spatial = shape
        problem = testing.random_problem(
            helpers.shape_of(data_format, batch, channels, spatial),
            dtype,
            stats,
            data_format=data_format,
            seed=seed,
        )
        rng = np.random.default_rng(seed + 1)
        self.src, self.diff_dst, _, _, self.gamma = problem
        self.mean, self.beta = rng.standard_normal((2, channels)).astype(self.gamma.dtype)
        self.variance = (np.abs(self.mean.astype(np.float32)) + 0.5).astype(self.gamma.dtype)
        self.residual = rng.standard_normal(self.src.shape).astype(self.src.dtype)

    @property
    def forward(self):
        return self.src, self.mean, self.variance, self.gamma, self.beta


@types
@formats
@clips
def test_mask_from_src(clip, data_format, dtype, stats):
    """Bitwise as from dst. dst of bf16 statistics is computed before they are rounded."""
    attributes = {"data_format": data_format, "clip": clip}
    op = onedsl.BatchNormReLUForwardTraining(EPSILON, MOMENTUM, **attributes)
    gradient = onedsl.BatchNormReLUTrainingBackward(EPSILON, **attributes)
    for seed, shape in enumerate(SHAPES):
        inputs = Inputs(shape, dtype, stats, data_format, seed)
        forward = op(*inputs.forward)
        statistics = forward.batch_mean, forward.batch_variance
        dst = forward.dst
        if stats == "bf16":
            affine = {"gamma": inputs.gamma, "beta": inputs.beta, "epsilon": EPSILON}
            mean, variance = (a.astype(np.float64) for a in statistics)
            dst = testing.batch_norm(
                inputs.src, mean=mean, variance=variance, data_format=data_format, **affine
            ).astype(inputs.src.dtype)
        arguments = inputs.src, inputs.diff_dst, *statistics, inputs.gamma, inputs.beta
        for a, b in zip(gradient(*arguments)[:3], gradient(*arguments, dst)[:3], strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@formats
@pytest.mark.parametrize("clip", [None, 1.0, 0.1])
def test_mask_from_src_next_to_the_thresholds(clip, dtype, data_format):
    """With gamma = 0, dst is beta: f32 numbers next to those where its rounding changes."""
    narrow = helpers.NUMPY[dtype].type
    bound = narrow(clip or 6.0)
    least, below = np.nextafter(narrow(0), narrow(1)), np.nextafter(bound, narrow(0))
    below, bound, least = (np.float32(value) for value in (below, bound, least))
    middles = np.float32([0, least / 2, least, (bound + below) / 2, bound])
    beta = np.concatenate([np.nextafter(middles, np.float32(end)) for end in (-9, 9)] + [middles])
    shape = helpers.shape_of(data_format, 3, beta.size, (5,))
    src, diff_dst, mean, variance, gamma = testing.random_problem(
        shape, dtype, data_format=data_format
    )
    dst = beta.astype(narrow).astype(np.float32)
    is_open = (dst > 0) & (dst < (bound if clip else np.inf))
    sums = diff_dst.astype(np.float64).sum((0, 1) if data_format == "NXC" else (0, 2))
    gradient = onedsl.BatchNormReLUTrainingBackward(EPSILON, data_format, clip=clip)
    got = gradient(src, diff_dst, mean, variance, 0 * gamma, beta)
    assert np.array_equal(got.diff_beta != 0, is_open)
    assert testing.relative_l2(got.diff_beta, np.where(is_open, sums, 0)) < 1e-6


@formats
def test_relu_propagates_nan(data_format):
    inputs = Inputs((2, 3, (4,)), data_format=data_format)
    inputs.residual[...] = 0
    inputs.residual.reshape(-1)[::5] = np.nan
    op = onedsl.BatchNormReLUForwardTraining(EPSILON, data_format=data_format, clip=6.0)
    forward = op(*inputs.forward, inputs.residual)
    assert np.array_equal(np.isnan(forward.dst), np.isnan(inputs.residual))
    gradient = onedsl.BatchNormReLUTrainingBackward(EPSILON, data_format, clip=6.0)
    gradients = gradient(
        inputs.src, inputs.diff_dst, forward.batch_mean, forward.batch_variance,
        inputs.gamma, inputs.beta, forward.dst, residual=True,
    )  # fmt: skip
    nan = np.isnan(forward.dst)
    assert np.array_equal(gradients.diff_residual[nan], inputs.diff_dst[nan])


@backends
@formats
def test_in_place_and_out(data_format, backend):
    inputs = Inputs((4, 16, (5, 5)), data_format=data_format)
    op = onedsl.BatchNormReLUForwardTraining(EPSILON, MOMENTUM, data_format, clip=2.0)
    expected = op(*inputs.forward, inputs.residual, backend=backend)
    guarded = helpers.Guarded(inputs.src, *[inputs.mean] * 4)
    out = onedsl.BatchNormForward(*guarded.buffers)
    for given in (inputs.src, out.dst):
        guarded.buffers[0][...] = inputs.src
        arguments = given, *inputs.forward[1:], inputs.residual
        assert op(*arguments, out=out, backend=backend) is out
        guarded.check_walls()
        assert all(map(np.array_equal, out, expected))
    with pytest.raises(ValueError, match=r"out\.dst must not overlap residual. It may be src"):
        out = out._replace(dst=inputs.residual)
        op(*inputs.forward, inputs.residual, out=out, backend=backend)


def test_statistics_with_a_large_mean():
    """E[x^2] - E[x]^2 in f32 has no correct digit here."""
    rng = np.random.default_rng(0)
    src = (rng.standard_normal((1_000_000, 2), dtype=np.float32) + np.float32(1e4)).astype("f4")
    zeros = np.zeros(2, np.float32)
    forward = onedsl.BatchNormForwardTraining(EPSILON)(src, zeros, zeros)
    exact = src.astype(np.float64)
    assert testing.relative_l2(forward.batch_mean, exact.mean(0)) < 1e-6
    assert testing.relative_l2(forward.batch_variance, exact.var(0)) < 1e-6


@formats
def test_documented_range(data_format):
    """Squares are below 1e36, and all sums of them."""
    src = np.random.default_rng(0).choice(np.float32([-9e17, 9e17]), (64, 40, 40))
    zeros = np.zeros(40, np.float32)
    got = onedsl.BatchNormForwardTraining(EPSILON, data_format=data_format)(src, zeros, zeros)
    axes = (0, 1) if data_format == "NXC" else (0, 2)
    assert testing.relative_l2(got.batch_variance, src.astype("f8").var(axes)) < 1e-6


@formats
@pytest.mark.parametrize("shape", [(3000, 5, ()), (50, 3, (300,))], ids=["columns", "planes"])
def test_statistics_if_the_pivot_is_estimated_from_outliers(data_format, shape):
    """The pivot is the mean of eight samples. Here they are 10^5 deviations from the others."""
    batch, channels, spatial = shape
    rng = np.random.default_rng(0)
    values = rng.uniform(-1e-2, 1e-2, (channels, batch, *spatial))
    count = values[0].size
    values.reshape(channels, -1)[:, (2 * np.arange(8) + 1) * count // 16] += 1e3
    src = np.moveaxis(values, 0, -1 if data_format == "NXC" else 1).astype("f4", order="C")
    zeros = np.zeros(channels, np.float32)
    got = onedsl.BatchNormForwardTraining(EPSILON, data_format=data_format)(src, zeros, zeros)
    exact = np.moveaxis(src, -1 if data_format == "NXC" else 1, 0).reshape(channels, -1)
    assert testing.relative_l2(got.batch_mean, exact.mean(1, dtype="f8")) < 1e-6
    assert testing.relative_l2(got.batch_variance, exact.var(1, dtype="f8")) < 1e-6


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"momentum": 1.5}, ValueError, "momentum must be from 0 to 1, got 1.5"),
        ({"momentum": float("nan")}, ValueError, "momentum must be from 0 to 1"),
        ({"momentum": "a"}, TypeError, "momentum must be a number, got 'a'"),
        ({"momentum": True}, TypeError, "momentum must be a number, got True"),
        ({"clip": 0}, ValueError, "clip must be positive and finite, or None"),
        ({"clip": float("inf")}, ValueError, "clip must be positive and finite, or None"),
        ({"clip": 1j}, TypeError, "clip must be a number"),
    ],
)
def test_invalid_attributes(attributes, error, message):
    with pytest.raises(error, match=message):
        onedsl.BatchNormReLUForwardTraining(EPSILON, **attributes)


def test_inputs_that_belong_together():
    inputs = Inputs((4, 16, (5, 5)))
    src, mean, variance, gamma, beta = inputs.forward
    op = onedsl.BatchNormForwardTraining(EPSILON)
    with pytest.raises(TypeError, match="gamma and beta must be given together, beta is mi"):
        op(src, mean, variance, gamma)
    gradient = onedsl.BatchNormReLUTrainingBackward(EPSILON)
    arguments = src, inputs.diff_dst, mean, variance
    with pytest.raises(TypeError, match="gamma is missing"):
        gradient(*arguments, beta=beta)
    with pytest.raises(TypeError, match="dst must be given with residual=True"):
        gradient(*arguments, gamma, beta, residual=True)
    with pytest.raises(TypeError, match="residual must be True or False, got ndarray"):
        gradient(*arguments, gamma, beta, src, residual=src)
    with pytest.raises(onedsl.UnsupportedError, match="dst must be given: oneDNN's ReLUBackward"):
        gradient(*arguments, gamma, beta, backend="onednn")
