"""Activations and their derivatives in float64."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np

from ..tensors.options import Activation
from ._results import Float64

# As arrays, because NumPy has no error function. erfc(-y) is 1 + erf(y) without cancellation.
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _logistic(y: Float64) -> Float64:
    """Return 1 / (1 + exp(-y)), without overflow and with small results for large -y."""
    e = np.exp(-np.abs(y))
    result: Float64 = np.where(y > 0, 1, e) / (1 + e)
    return result


def _normal(y: Float64) -> Any:
    """Return the distribution function of the standard normal distribution, and its density."""
    return _erfc(-y / math.sqrt(2)) / 2, np.exp(-y * y / 2) / math.sqrt(2 * math.pi)


def _argument_of_logistic(y: Float64) -> Any:
    """Return 2u and its derivative, where (1 + tanh(u)) / 2 is GELU's factor."""
    c = 2 * math.sqrt(2 / math.pi)
    return c * (y + 0.044715 * y**3), c * (1 + 3 * 0.044715 * y**2)


def evaluate(activation: str, y: Float64, parameter: float | None) -> tuple[Any, Any]:
    """Return an activation at y, and its derivative.

    `parameter` is the upper bound of "relu" and the slope of "leaky_relu".
    """
    match activation:
        case "relu":
            is_closed = (y <= 0) if parameter is None else (y <= 0) | (y >= parameter)
            return np.clip(y, 0, parameter), np.where(is_closed, 0.0, 1.0)
        case "leaky_relu":
            slope = np.where(y > 0, 1.0, 0.01 if parameter is None else parameter)
            return y * slope, slope
        case "silu":
            s, other = _logistic(y), _logistic(-y)
            return y * s, s * (1 + y * other)
        case "hardswish":
            derivative = np.where(y <= -3, 0, np.where(y < 3, y / 3 + 0.5, 1))
            return y * np.clip(y + 3, 0, 6) / 6, derivative
        case "gelu":
            probability, density = _normal(y)
            return y * probability, probability + y * density
        case "gelu_tanh":
            u, slope = _argument_of_logistic(y)
            s = _logistic(u)
            return y * s, s * (1 + y * _logistic(-u) * slope)
    names = ", ".join(f'"{name}"' for name in get_args(Activation))
    raise ValueError(f"activation must be one of {names}, got {activation!r}")
