"""Conversion to float64, and the shapes of statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..tensors.spec import DataFormatLike, parse_data_format

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def to_float64(array: npt.ArrayLike) -> Float64:
    return np.asarray(array).astype(np.float64)


def prepare(
    src: npt.ArrayLike, data_format: DataFormatLike
) -> tuple[Float64, tuple[int, ...], tuple[int, ...]]:
    """Return src in float64, the axes over which statistics are summed, and a shape.

    An array of shape (C,) that is reshaped to this shape broadcasts to src.
    """
    x, parsed = to_float64(src), parse_data_format(data_format)
    return x, parsed.summed_axes(x.ndim), parsed.statistics_shape_beside(x.shape)
