"""Inputs to test with."""

# No annotations from __future__ here: pdoc would not find the types of a NamedTuple's fields.

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..tensors.dtypes import DTYPES, DType, dtype_name
from ..tensors.spec import DataFormat, DataFormatLike, parse_data_format
from ._arrays import Array, layout


class Problem(NamedTuple):
    """Inputs of one call, in the operator's own order."""

    src: Array
    diff_dst: Array
    mean: Array
    variance: Array
    gamma: Array


def random_problem(
    shape: Sequence[int],
    dtype: DType = "f32",
    stats_dtype: DType = "f32",
    *,
    data_format: DataFormatLike = DataFormat.NXC,
    seed: int = 0,
) -> Problem:
    """Make inputs whose mean and variance are those of src, rounded to their dtype.

    diff_dst leans on src, as it does in training. If it did not, diff_gamma would be what is left
    when M terms cancel, and its relative error would grow as the root of M in any arithmetic.

    Parameters
    ----------
    shape : sequence of int
        Of src, in the order of data_format.
    dtype, stats_dtype : str or dtype
    data_format : {"NXC", "NCX"} or DataFormat
    seed : int

    Returns
    -------
    Problem
    """
    narrow, stats = DTYPES[dtype_name(dtype)], DTYPES[dtype_name(stats_dtype)]
    rng = np.random.default_rng(seed)
    src = (rng.standard_normal(shape) * 1.5 + 0.5).astype(narrow)
    diff_dst = (rng.standard_normal(shape) + 0.25 + 0.5 * src.astype(np.float32)).astype(narrow)
    x, axes, per_channel = layout(src, data_format)
    channels = x.shape[parse_data_format(data_format).channel_axis]
    mean: Array = np.zeros(channels)
    variance: Array = np.ones(channels)
    if x.size:
        mean = np.mean(x, axis=axes)
        variance = np.mean((x - mean.reshape(per_channel)) ** 2, axis=axes)
    gamma = rng.uniform(0.5, 2, size=(channels,))
    return Problem(
        src, diff_dst, np.asarray(mean, stats), np.asarray(variance, stats), gamma.astype(stats)
    )
