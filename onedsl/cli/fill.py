"""Inputs as benchdnn's bnorm driver fills them, so that f32 sums of any order are exact.

Pairs of neighbours in src stand about the mean, a number of few bits, at the same distance, of few
bits too; with too many elements a channel for that the mean is 0, and most of src. diff_dst is
small whole numbers, most of them 0. mean, variance, gamma and src are benchdnn's own values;
diff_dst has its distribution, from NumPy's generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..graph import LogicalTensor
from ..operators._single_op_graph import ArrayInfo
from ..tensors.dtypes import DTYPES

Array = npt.NDArray[Any]

BLOCK = 1 << 22  # elements that are made in one go

_DIGITS = {"f32": 24, "bf16": 8, "f16": 11}


@dataclass(frozen=True)
class _Bits:
    """How many bits of the values may differ."""

    flexible: int
    about_zero: bool
    density: float
    """Of what is not zero."""


def _bits(dtype: str, count: int) -> _Bits:
    digits = _DIGITS[dtype]
    free = math.trunc((digits - math.ceil(math.log2(count))) / 2) - 1 if count else 0
    if free >= 3:
        return _Bits(min(digits, free), False, 1.0)
    flexible = min(6, digits // 2)
    return _Bits(flexible, True, (1 << (digits - 2 * flexible)) / max(count, 1))


@dataclass(frozen=True)
class Inputs:
    """Inputs of one call; gamma is None where the graph has none, or has it ignored."""

    src: Array
    diff_dst: Array
    mean: Array
    variance: Array
    gamma: Array | None


def empty(tensor: LogicalTensor) -> Array:
    """Make an array with a logical tensor's shape, type and strides; zeros."""
    dtype = DTYPES[tensor.dtype]
    shape = tensor.shape or ()
    if tensor.strides is None or 0 in shape:
        return np.zeros(shape, dtype)
    # The stride of an axis of one element may be any, and too large to be counted in bytes.
    steps = [step if n > 1 else 0 for n, step in zip(shape, tensor.strides, strict=True)]
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    return np.lib.stride_tricks.as_strided(
        np.zeros(extent, dtype), shape, [step * dtype.itemsize for step in steps]
    )


def blocks(array: Array, channel_axis: int) -> Iterator[slice]:
    """Cut the channels into slices of some millions of elements."""
    channels = array.shape[channel_axis]
    step = max(1, BLOCK * channels // max(array.size, 1))
    for first in range(0, channels, step):
        yield slice(first, min(first + step, channels))


def filled(described: ArrayInfo, seed: int) -> Inputs:
    """Make the inputs that a graph describes, whose shapes must be known."""
    axis = described.data_format.channel_axis
    src = empty(described.inputs["src"])
    diff_dst = empty(described.inputs["diff_dst"])
    channels = src.shape[axis]
    count = src.size // max(channels, 1)
    bits = _bits(described.dtype, count)
    powers = 2.0 ** (np.arange(channels) % 7)
    mean = np.zeros(channels) if bits.about_zero else 0.25 * powers
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
        coins = rng.random(shape, np.float32) < sparsity
        by_channel[1][part] = rng.integers(-2, 3, shape, np.int8) * coins
    narrow = DTYPES[described.stats_dtype]
    takes_gamma = "gamma" in described.inputs and len(described.outputs) > 1
    return Inputs(
        src,
        diff_dst,
        mean.astype(narrow),
        variance.astype(narrow),
        (powers / 8).astype(narrow) if takes_gamma else None,
    )


def _src(channels: npt.NDArray[np.int64], count: int, mean: Array, bits: _Bits) -> Array:
    """Give the channels' elements, a row a channel, image by image."""
    place = np.arange(count)[None, :]
    number = place + channels[:, None] * (239 * 2)
    pair = number // 2
    fraction = (pair * 1637 & ((1 << bits.flexible) - 1)) / np.float32(1 << bits.flexible)
    fraction = np.where(number % 2 == 0, fraction, -fraction).astype(np.float32)
    if bits.about_zero:
        heads = pair * 257 * 753737 % 1000003 < np.float32(bits.density) * np.float32(1000003)
        return np.where(heads, fraction, np.float32(0))
    values: Array = mean.astype(np.float32)[:, None] * (1 + fraction)
    if count % 2:
        values[:, -1] = mean
    return values
