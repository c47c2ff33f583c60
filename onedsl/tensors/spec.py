"""How tensors are described: data formats and specs."""

from __future__ import annotations

import enum
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .. import _core
from .arrays import AnyArray, as_numpy
from .dtypes import DTYPES, MAX_RANK, DType, dtype_name


class DataFormat(str, enum.Enum):
    """Where the channels are in a tensor's shape; the op's attribute ``data_format``.

    X is any number of spatial axes, none included: a tensor of rank 2 is (N, C) in both.
    """

    NXC = "NXC"
    """Channels last: (N, H, W, C) and the like."""

    NCX = "NCX"
    """Channels after the batch: (N, C, H, W) and the like."""

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]

    @property
    def channel_axis(self) -> int:
        """Index of the channel axis in the shape."""
        return -1 if self is DataFormat.NXC else 1

    @property
    def statistics_shape_kind(self) -> _core.StatisticsShape:
        """The core's word for it."""
        shapes = _core.StatisticsShape
        return shapes.channel_last if self is DataFormat.NXC else shapes.channel_second

    def summed_axes(self, rank: int) -> tuple[int, ...]:
        """Axes of a tensor that a statistic is summed over: all but that of the channels."""
        return tuple(axis for axis in range(rank) if axis != self.channel_axis % rank)

    def statistics_shape_beside(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape in which a (C,) array stands beside a tensor of this shape, to broadcast to it."""
        summed = self.summed_axes(len(shape))
        return tuple(1 if axis in summed else size for axis, size in enumerate(shape))


DataFormatLike = DataFormat | Literal["NXC", "NCX"]


def parse_data_format(value: object) -> DataFormat:
    """Take the enum or its string."""
    try:
        return DataFormat(value)
    except ValueError:
        raise ValueError(f"data_format must be 'NXC' or 'NCX', not {value!r}") from None


@dataclass(frozen=True, init=False, slots=True)
class TensorSpec:
    """What a plan must know of src: its shape, its dtype and how it lies in memory.

    Parameters
    ----------
    shape : sequence of int
        In the order of the op's data_format, batch and spatial sizes included.
    dtype : str or dtype, default "f32"
        ``"f32"``, ``"bf16"``, ``"f16"``, or the NumPy / ml_dtypes dtype or its name.
    strides : sequence of int, optional
        In elements, as in oneDNN's logical tensor. The default is C order. They must leave no gap:
        an NCX tensor that lies in NXC order (PyTorch's channels_last) has such strides.

    Raises
    ------
    TypeError, ValueError
        If a size is negative or no integer, the dtype is none of the three, or the strides do not
        describe dense memory.

    Examples
    --------
    >>> onedsl.TensorSpec((32, 56, 56, 64), "bf16")
    onedsl.TensorSpec((32, 56, 56, 64), 'bf16')
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    def __init__(
        self,
        shape: Sequence[int],
        dtype: DType = "f32",
        strides: Sequence[int] | None = None,
    ) -> None:
        sizes = _integers("shape", shape)
        if any(size < 0 for size in sizes):
            raise ValueError(f"shape must hold no negative size: {sizes}")
        if len(sizes) > MAX_RANK:
            raise ValueError(f"shape must have {MAX_RANK} sizes at most, not {len(sizes)}")
        name = dtype_name(dtype)
        if 0 not in sizes and math.prod(sizes) * DTYPES[name].itemsize > sys.maxsize:
            raise ValueError(f"shape {sizes} is more than an array can hold")
        steps = c_strides(sizes) if strides is None else _integers("strides", strides)
        if len(steps) != len(sizes):
            raise ValueError(f"strides {steps} must have as many entries as shape {sizes}")
        if not _dense(sizes, steps):
            raise ValueError(
                f"strides {steps} (in elements) of shape {sizes} do not describe dense memory: "
                "some element would be skipped or shared"
            )
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "strides", steps)

    @classmethod
    def of(cls, array: AnyArray) -> TensorSpec:
        """Describe an array as it is: NumPy's, or any other on the CPU with ``__dlpack__``.

        Raises
        ------
        TypeError, ValueError
            If it is no array of the three types, or its memory is not dense.
        """
        array = as_numpy("array", array)
        if array.size == 0:
            return cls(array.shape, array.dtype)
        if any(step % array.itemsize for step in array.strides):
            raise ValueError(f"array is not dense: strides {array.strides} of shape {array.shape}")
        return cls(array.shape, array.dtype, [step // array.itemsize for step in array.strides])

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy (or ml_dtypes) dtype."""
        return DTYPES[self.dtype]

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides as NumPy counts them.

        0 for what is never walked, axes of one element and empty tensors: the number given for it
        may be any, and too large to be counted in bytes.
        """
        walked = 0 not in self.shape
        return tuple(
            step * self.numpy_dtype.itemsize if walked and size > 1 else 0
            for step, size in zip(self.strides, self.shape, strict=True)
        )

    def __repr__(self) -> str:
        strides = "" if self.strides == c_strides(self.shape) else f", strides={self.strides}"
        return f"onedsl.TensorSpec({self.shape}, {self.dtype!r}{strides})"


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a C-ordered tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def _integers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers, not {values!r}") from None


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
