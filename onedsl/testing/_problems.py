"""Random inputs for tests."""

# Without `from __future__ import annotations`: pdoc could not resolve the types of the fields.

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..tensors.arrays import Array
from ..tensors.dtypes import DTYPES, DType, dtype_name
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec, parse_data_format


class Problem(NamedTuple):
    """Inputs of one call, in the order of `BatchNormTrainingBackward`'s arguments."""

    src: Array
    """Normally distributed, with mean 0.5 and standard deviation 1.5. The last of several channels
    has mean 0 and standard deviation 0.01, so that results depend on epsilon."""
    diff_dst: Array
    """Correlated with src, as in training. Its size is the same in each channel."""
    mean: Array
    """Mean of src, for each channel."""
    variance: Array
    """Biased variance of src, for each channel."""
    gamma: Array
    """From 0.5 to 2."""


def random_problem(
    shape: Sequence[int],
    dtype: DType = "f32",
    stats_dtype: DType = "f32",
    *,
    data_format: DataFormatLike = DataFormat.NXC,
    seed: int = 0,
) -> Problem:
    """Return random inputs. mean and variance are the statistics of src, rounded to stats_dtype.

    Without the correlation of diff_dst with src, the terms of diff_gamma would cancel: its relative
    error would grow with the square root of the number of elements per channel, in every
    implementation.

    Parameters
    ----------
    shape : sequence of int
        Shape of src, in the order of data_format.
    dtype : str or dtype
        Dtype of src and diff_dst.
    stats_dtype : str or dtype
        Dtype of mean, variance and gamma.
    data_format : {"NXC", "NCX"} or DataFormat
    seed : int
        Seed of the random generator. The same seed gives the same inputs.

    Returns
    -------
    Problem
        For an empty src, mean is 0 and variance is 1.
    """
    spec = TensorSpec(shape, dtype)
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")
    shape = spec.shape
    if len(shape) < 2:
        raise ValueError(f"shape must have at least 2 dimensions, got {shape}")
    tensor, stats = DTYPES[spec.dtype], DTYPES[dtype_name(stats_dtype, "stats_dtype")]
    rng = np.random.default_rng(seed)
    parsed = parse_data_format(data_format)
    axes, channels = parsed.summed_axes(len(shape)), parsed.channels_of(shape)
    normal = rng.standard_normal(shape)
    src = (normal * 1.5 + 0.5).astype(tensor)
    diff_dst = (rng.standard_normal(shape) + 0.25 + 0.5 * src.astype(np.float32)).astype(tensor)
    if channels[0] > 1:
        last = np.moveaxis(src, parsed.channel_axis, 0)[-1]
        last[...] = np.moveaxis(normal, parsed.channel_axis, 0)[-1] * 0.01
    x = src.astype(np.float64)
    mean = x.mean(axes) if x.size else np.zeros(channels)
    variance = x.var(axes) if x.size else np.ones(channels)
    gamma = rng.uniform(0.5, 2, channels)
    return Problem(src, diff_dst, *(np.asarray(array, stats) for array in (mean, variance, gamma)))
