"""Inputs of ``onedsl run``, filled as in the batch-normalization driver of oneDNN's benchdnn.

The inputs have so few significant bits that f32 sums over a channel are exact in any order. Each
channel of src consists of pairs of neighboring elements, and the two elements of a pair have
opposite deviations from the channel's mean. If a channel has too many elements for exact sums, its
mean and most of its elements are 0. The elements of diff_dst are small integers, most of them 0.

src, mean, variance and gamma are equal to benchdnn's. diff_dst has the same distribution as
benchdnn's, but comes from NumPy's random generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..graph import LogicalTensor
from ..operators._single_op_graph import CallInfo
from ..tensors.dtypes import DTYPES

Array = npt.NDArray[Any]

BLOCK = 1 << 22  # number of elements that are computed at a time

_SIGNIFICAND_BITS = {"f32": 24, "bf16": 8, "f16": 11}


@dataclass(frozen=True)
class _Bits:
    """The precision of the elements of src.

    Attributes
    ----------
    flexible : int
        Number of significant bits of the deviations from the mean.
    zero_mean : bool
        Whether the mean of every channel is 0.
    density : float
        Fraction of elements that are not zero.
    """

    flexible: int
    zero_mean: bool
    density: float


def _bits(dtype: str, count: int) -> _Bits:
    """Return the precision for which sums of `count` elements per channel are exact."""
    bits = _SIGNIFICAND_BITS[dtype]
    free = math.trunc((bits - math.ceil(math.log2(count))) / 2) - 1 if count else 0
    if free >= 3:
        return _Bits(min(bits, free), False, 1.0)
    flexible = min(6, bits // 2)
    return _Bits(flexible, True, (1 << (bits - 2 * flexible)) / max(count, 1))


@dataclass(frozen=True)
class Inputs:
    """Inputs of one call.

    gamma is None if the graph has no gamma, or if diff_src is the op's only output: oneDNN ignores
    gamma in this case.
    """

    src: Array
    diff_dst: Array
    mean: Array
    variance: Array
    gamma: Array | None


def zeros(tensor: LogicalTensor) -> Array:
    """Return an array of zeros with the shape, dtype and strides of a logical tensor."""
    dtype = DTYPES[tensor.dtype]
    shape = tensor.shape or ()
    if tensor.strides is None or 0 in shape:
        return np.zeros(shape, dtype)
    # The stride of an axis of size 1 is arbitrary, and may overflow when it is converted to bytes.
    steps = [step if n > 1 else 0 for n, step in zip(shape, tensor.strides, strict=True)]
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    return np.lib.stride_tricks.as_strided(
        np.zeros(extent, dtype), shape, [step * dtype.itemsize for step in steps]
    )


def blocks(array: Array, channel_axis: int) -> Iterator[slice]:
    """Yield slices that cover all channels; each selects about `BLOCK` elements of the array."""
    channels = array.shape[channel_axis]
    step = max(1, BLOCK * channels // max(array.size, 1))
    for first in range(0, channels, step):
        yield slice(first, min(first + step, channels))


def filled(info: CallInfo, seed: int) -> Inputs:
    """Return inputs for the op of a graph. The shapes in `info` must be known."""
    axis = info.data_format.channel_axis
    src = zeros(info.inputs["src"])
    diff_dst = zeros(info.inputs["diff_dst"])
    channels = src.shape[axis]
    count = src.size // max(channels, 1)
    bits = _bits(info.dtype, count)
    powers = 2.0 ** (np.arange(channels) % 7)
    mean = np.zeros(channels) if bits.zero_mean else 0.25 * powers
    variance = np.zeros(channels)
    sparsity = max(0.05, min(1.0, 20 / max(src.size, 1)))
    rng = np.random.default_rng(seed)
    by_channel = [np.moveaxis(array, axis, 0) for array in (src, diff_dst)]
    for part in blocks(src, axis):
        shape = by_channel[0][part].shape
        values = _src(np.arange(part.start, part.stop), count, mean[part], bits)
        by_channel[0][part] = values.reshape(shape)
        rounded = by_channel[0][part].reshape(len(values), -1).astype(np.float64)
        if count:
            variance[part] = ((rounded - mean[part, None]) ** 2).mean(1)
        nonzero = rng.random(shape, np.float32) < sparsity
        by_channel[1][part] = rng.integers(-2, 3, shape, np.int8) * nonzero
    stats_dtype = DTYPES[info.stats_dtype]
    uses_gamma = "gamma" in info.inputs and len(info.outputs) > 1
    return Inputs(
        src,
        diff_dst,
        mean.astype(stats_dtype),
        variance.astype(stats_dtype),
        (powers / 8).astype(stats_dtype) if uses_gamma else None,
    )


def _src(channels: npt.NDArray[np.int64], count: int, mean: Array, bits: _Bits) -> Array:
    """Return the elements of src in the given channels, as one row for each channel.

    A row contains the channel's elements of the first image, then those of the second image, and
    so on. `count` is the length of a row.
    """
    number = np.arange(count)[None, :] + channels[:, None] * (239 * 2)
    pair = number // 2
    fraction = (pair * 1637 & ((1 << bits.flexible) - 1)) / np.float32(1 << bits.flexible)
    fraction = np.where(number % 2 == 0, fraction, -fraction).astype(np.float32)
    if bits.zero_mean:
        is_nonzero = pair * 257 * 753737 % 1000003 < np.float32(bits.density) * np.float32(1000003)
        return np.where(is_nonzero, fraction, np.float32(0))
    values: Array = mean.astype(np.float32)[:, None] * (1 + fraction)
    if count % 2:
        values[:, -1] = mean
    return values
