"""Validation of operator attributes and options. Every function returns the value or raises."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from ..tensors.spec import parse_data_format


def parse_epsilon(value: object) -> float:
    """Return a number that is positive and finite in float32, oneDNN's type of epsilon."""
    number = _number("epsilon", value)
    if not is_valid_epsilon(number):
        raise ValueError(f"epsilon must be positive and finite in float32, got {number}")
    return number


def is_valid_epsilon(number: float) -> bool:
    """Return whether a number is positive and finite in float32, as the C++ core decides it."""
    # The limits of np.float32(number), which torch.compile cannot trace.
    return 2.0**-150 < number < 2.0**128 - 2.0**103


def parse_momentum(value: object) -> float | None:
    """Return a number from 0 to 1, or None."""
    if value is None:
        return None
    number = _number("momentum", value)
    if not 0 <= number <= 1:
        raise ValueError(f"momentum must be from 0 to 1, got {number}")
    return number


def parse_clip(value: object) -> float | None:
    """Return a positive finite number, or None."""
    if value is None:
        return None
    number = _number("clip", value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"clip must be positive and finite, or None, got {number}")
    return number


PARSERS: dict[str, Callable[[object], Any]] = {
    "epsilon": parse_epsilon,
    "momentum": parse_momentum,
    "clip": parse_clip,
    "data_format": parse_data_format,
}
"""The function that validates each attribute of an operator."""

# "auto" is never oneDNN: it sums in f32 one element after the other, so that its error exceeds the
# tolerance of 1e-6 at some thousand elements per channel; and on most layouts it is slower.
_BACKENDS = {"auto": False, "native": False, "onednn": True}


def parse_backend(value: object) -> bool:
    """Return whether a backend is oneDNN."""
    if isinstance(value, str) and value in _BACKENDS:
        return _BACKENDS[value]
    raise ValueError(f'backend must be "auto", "onednn" or "native", got {value!r}')


def parse_statistics(value: object) -> _core.Statistics:
    """Return the core's enumerator for ``"batch"`` or ``"frozen"``."""
    if isinstance(value, str) and value in _core.Statistics.__members__:
        return _core.Statistics[value]
    raise ValueError(f"statistics must be 'batch' or 'frozen', got {value!r}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf
