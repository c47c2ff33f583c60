"""Arrays in float64, and how statistics lie beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..tensors.spec import DataFormatLike, parse_data_format

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def wide(array: npt.ArrayLike) -> Float64:
    return np.asarray(array).astype(np.float64)


def layout(
    src: npt.ArrayLike, data_format: DataFormatLike
) -> tuple[Float64, tuple[int, ...], tuple[int, ...]]:
    """Give src in float64, the axes that are summed, and the shape that a (C,) array takes."""
    x, parsed = wide(src), parse_data_format(data_format)
    return x, parsed.summed_axes(x.ndim), parsed.statistics_shape_beside(x.shape)
