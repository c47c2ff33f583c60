"""Validation of operator attributes and options. Every function returns the value or raises."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from .. import _core
from ..tensors.spec import parse_data_format

_LEAST, _MOST = _core.EPSILON_LIMITS


def is_valid_epsilon(number: float) -> bool:
    """Return whether a number is positive and finite in float32. A clip must be so, too."""
    return _LEAST < number < _MOST


def _parser(
    name: str, is_valid: Callable[[float], bool], requirement: str, *, optional: bool = True
) -> Callable[[object], Any]:
    """Return a function that validates a number, or None if it is optional."""

    def parse(value: object) -> float | None:
        if value is None and optional:
            return None
        if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number, got {value!r}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not is_valid(number):
            raise ValueError(f"{name} must be {requirement}, got {number}")
        return number

    return parse


parse_epsilon = _parser(
    "epsilon", is_valid_epsilon, "positive and finite in float32", optional=False
)
parse_momentum = _parser("momentum", lambda number: 0 <= number <= 1, "from 0 to 1")
parse_clip = _parser("clip", is_valid_epsilon, "positive and finite in float32, or None")

PARSERS: dict[str, Callable[[object], Any]] = {
    "epsilon": parse_epsilon,
    "momentum": parse_momentum,
    "clip": parse_clip,
    "data_format": parse_data_format,
}
"""The function that validates each attribute of an operator."""

# "auto" is never oneDNN: it sums in f32 one element after the other, so that its error exceeds the
# tolerance of 1e-6 at some thousand elements per channel; and on most layouts it is slower.
_BACKENDS: dict[object, bool] = {"auto": False, "native": False, "onednn": True}


def parse_backend(value: object) -> bool:
    """Return whether a backend is oneDNN."""
    try:
        return _BACKENDS[value]
    except (KeyError, TypeError):
        raise ValueError(f'backend must be "auto", "onednn" or "native", got {value!r}') from None


Statistics = Literal["batch", "frozen"]
"""Whether mean and variance are those of src, or constants."""


def parse_statistics(value: object) -> Statistics:
    """Return ``"batch"`` or ``"frozen"``."""
    if isinstance(value, str) and value in get_args(Statistics):
        return value  # type: ignore[return-value]
    raise ValueError(f"statistics must be 'batch' or 'frozen', got {value!r}")
