"""Descriptions of tensors: `DataFormat` and `TensorSpec`."""

from __future__ import annotations

import enum
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, SupportsIndex

from .. import _core
from .arrays import AnyArray, as_numpy
from .dtypes import DTYPES, MAX_RANK, DType, DTypeName, dtype_name


class DataFormat(str, enum.Enum):
    """The position of the channels in a tensor's shape. It is the op's attribute ``data_format``.

    N is the batch, C the channels, and X any number of spatial axes, including zero: a tensor of
    rank 2 is (N, C) in both formats.
    """

    NXC = "NXC"
    """Channels last, as in (N, H, W, C)."""

    NCX = "NCX"
    """Channels second, as in (N, C, H, W)."""

    __repr__ = str.__repr__
    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]

    @property
    def channel_axis(self) -> int:
        """Index of the channel axis in the shape."""
        return -1 if self is DataFormat.NXC else 1

    def summed_axes(self, rank: int) -> tuple[int, ...]:
        """Return the axes over which statistics are summed: all axes except the channel axis."""
        if not isinstance(rank, SupportsIndex) or operator.index(rank) < 2:
            raise ValueError(f"rank must be an integer of at least 2, got {rank!r}")
        return tuple(axis for axis in range(rank) if axis != self.channel_axis % rank)

    def channels_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape (C,) of the statistics of a tensor of this shape.

        It is () if the tensor has no such axis: of rank 0, and of rank 1 in NCX.
        """
        return tuple(shape[self.channel_axis :][:1])

    def broadcast_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape in which an array of shape (C,) broadcasts to a tensor of this shape."""
        summed = self.summed_axes(len(shape))
        return tuple(1 if axis in summed else size for axis, size in enumerate(shape))


DataFormatLike = DataFormat | Literal["NXC", "NCX"]


def parse_data_format(value: object) -> DataFormat:
    """Return the DataFormat for the enum or its string, or raise ValueError."""
    try:
        return DataFormat(value)
    except ValueError:
        other = {"NHWC": "NXC", "NCHW": "NCX", "channels_last": "NXC", "channels_first": "NCX"}
        hint = other.get(value) if isinstance(value, str) else None
        same = f". {value} is {hint}" if hint else ""
        raise ValueError(f"data_format must be 'NXC' or 'NCX', got {value!r}{same}") from None


@dataclass(frozen=True, init=False, slots=True)
class TensorSpec:
    """The shape, dtype and memory layout of a tensor.

    Parameters
    ----------
    shape : sequence of int
        All sizes, with the axes in the order of the op's data_format.
    dtype : str or dtype, default "f32"
        ``"f32"``, ``"bf16"``, ``"f16"``, or the dtype of NumPy, ml_dtypes or PyTorch, or its name.
    strides : sequence of int, optional
        Strides in elements, as in oneDNN's logical tensor. The default is C order. The memory must
        be dense in some order of the axes, as in PyTorch's channels_last.

    Raises
    ------
    TypeError, ValueError
        If a size is negative or not an integer, the dtype is not one of the three, the tensor has
        more than 2**56 bytes, where a size of 0 counts as 1, or the memory is not dense.

    Examples
    --------
    >>> onedsl.TensorSpec((32, 56, 56, 64), "bf16")
    onedsl.TensorSpec((32, 56, 56, 64), 'bf16')
    """

    shape: tuple[int, ...]
    dtype: DTypeName
    strides: tuple[int, ...]

    def __init__(
        self, shape: Sequence[int], dtype: DType = "f32", strides: Sequence[int] | None = None
    ) -> None:
        sizes = integers("shape", shape)
        if any(size < 0 for size in sizes):
            raise ValueError(f"shape must have no negative size, got {sizes}")
        if len(sizes) > MAX_RANK:
            raise ValueError(f"shape must have at most {MAX_RANK} dimensions, got {len(sizes)}")
        name = dtype_name(dtype)
        nbytes = math.prod(max(size, 1) for size in sizes) * DTYPES[name].itemsize
        if nbytes > _core.MAX_TENSOR_BYTES:
            raise ValueError(
                f"shape must have at most {_core.MAX_TENSOR_BYTES} bytes, where a size of 0 counts "
                f"as 1, got {sizes} with {nbytes} bytes"
            )
        steps = c_strides(sizes) if strides is None else integers("strides", strides)
        if len(steps) != len(sizes):
            raise ValueError(f"strides must have as many entries as shape {sizes}, got {steps}")
        if any(abs(step) > sys.maxsize for step in steps):
            raise ValueError(f"strides must be 64-bit integers, got {steps}")
        if _core.geometry(sizes, steps) is None:
            raise ValueError(
                f"strides must describe dense memory of shape {sizes}, got {steps} (in elements), "
                "which skip or share elements"
            )
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "strides", steps)

    @classmethod
    def of(cls, array: AnyArray) -> TensorSpec:
        """Return the spec of a NumPy array or of another CPU array with ``__dlpack__``.

        Raises
        ------
        TypeError, ValueError
            If it is not an f32, bf16 or f16 array, or its memory is not dense.
        """
        array = as_numpy("array", array)
        name = dtype_name(array.dtype, "array")
        if array.size == 0:
            return cls(array.shape, name)
        if _core.geometry(array.shape, array.strides, None, array.itemsize) is None:
            raise ValueError(
                f"array must be dense, got strides {array.strides} (in bytes) of shape "
                f"{array.shape}. Pass a contiguous copy, such as np.ascontiguousarray(array)"
            )
        return cls(array.shape, name, [step // array.itemsize for step in array.strides])

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides in bytes, as in NumPy, or 0 where unused (axes of size 1, empty tensors)."""
        return byte_strides(self.shape, self.dtype, self.strides)

    def __repr__(self) -> str:
        strides = "" if self.strides == c_strides(self.shape) else f", strides={self.strides}"
        return f"onedsl.TensorSpec({self.shape}, {self.dtype!r}{strides})"


def byte_strides(shape: Sequence[int], dtype: str, strides: Sequence[int]) -> tuple[int, ...]:
    """Convert strides from elements to bytes.

    Strides that are never used (of axes of size 1, and of empty tensors) become 0: their values
    are arbitrary and might overflow.
    """
    steps = zip(shape, strides, strict=True)
    item, empty = DTYPES[dtype].itemsize, 0 in shape
    return tuple(0 if empty or size <= 1 else step * item for size, step in steps)


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides in elements of a C-ordered tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def integers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """Return the values as a tuple of int, or raise TypeError."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers, got {values!r}") from None
