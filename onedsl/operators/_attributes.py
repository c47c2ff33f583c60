"""Words for operators' attributes: the functions here raise, or give what they parsed."""

from __future__ import annotations

import math
import numbers

import numpy as np

from .. import _core


def epsilon(value: object) -> float:
    """Take a positive number that is one in float32 too, oneDNN's type for the attribute."""
    number = _number("epsilon", value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"epsilon must be positive and finite, not {number}")
    # As float32 rounds. torch.compile traces this, and not np.float32.
    single = 0.0 if number <= 2.0**-150 else math.inf if number >= 2.0**128 - 2.0**103 else number
    if single in (0, math.inf):
        raise ValueError(f"epsilon must be representable in float32; {number} becomes {single}")
    return number


def momentum(value: object) -> float | None:
    """Take a share, or None."""
    if value is None:
        return None
    number = _number("momentum", value)
    if not 0 <= number <= 1:
        raise ValueError(f"momentum must be from 0 to 1, not {number}")
    return number


def clip(value: object) -> float | None:
    """Take a positive bound, or None."""
    if value is None:
        return None
    number = _number("clip", value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"clip must be positive and finite, or None for no bound, not {number}")
    return number


_BACKENDS = {name: _core.Backend[name] for name in ("auto", "onednn", "native")}


def backend(value: object) -> _core.Backend:
    """Take the name of a backend."""
    if isinstance(value, str) and value in _BACKENDS:
        return _BACKENDS[value]
    raise ValueError(f'backend must be "auto", "onednn" or "native", not {value!r}')


def statistics(value: object) -> _core.Statistics:
    """Take the word for where mean and variance come from."""
    if isinstance(value, str) and value in _core.Statistics.__members__:
        return _core.Statistics[value]
    raise ValueError(f"statistics must be 'batch' or 'frozen', not {value!r}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf
