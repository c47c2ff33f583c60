"""Validation of operator attributes and options. Every function returns the value or raises."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from .. import _core
from ..tensors.options import Activation
from ..tensors.spec import parse_data_format

_LEAST, _MOST = _core.EPSILON_LIMITS


def is_valid_epsilon(number: float) -> bool:
    """Return whether a number is positive and finite in float32."""
    return _LEAST < number < _MOST


class ActivationInfo(NamedTuple):
    """A row of the core's table of activations."""

    name: str
    """PyTorch's name of the layer."""
    parameter: str
    """Name of its attribute, or ""."""
    default: float
    """The value of the attribute if it is None."""
    limits: tuple[float, float]
    """What the attribute must lie between."""


ACTIVATIONS = {name: ActivationInfo(*row) for name, row in _core.activations().items()}


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


def _parameter_parser(name: str, requirement: str) -> Callable[[object], Any]:
    """Return a function that validates an activation's attribute by its limits, or None."""
    least, most = next(info.limits for info in ACTIVATIONS.values() if info.parameter == name)
    return _parser(name, lambda number: least < number < most, f"{requirement}, or None")


def parse_activation(value: object) -> Activation:
    """Return the name of an activation."""
    if isinstance(value, str) and value in ACTIVATIONS:
        return value  # type: ignore[return-value]
    names = ", ".join(f'"{name}"' for name in ACTIVATIONS)
    raise ValueError(f"activation must be one of {names}, got {value!r}")


def parse_activation_or_none(value: object) -> Activation | None:
    """Return the name of an activation, or None."""
    return None if value is None else parse_activation(value)


def parameter_of(activation: str | None, **parameters: float | None) -> float | None:
    """Return the parameter of an activation, or raise if it has no such parameter."""
    own = "" if activation is None else ACTIVATIONS[activation].parameter
    for name, value in parameters.items():
        if name != own and value is not None:
            having = " or ".join(
                f'"{n}"' for n, row in ACTIVATIONS.items() if row.parameter == name
            )
            raise ValueError(
                f"{name} must be None with activation={activation!r}, got {value!r}. It is an "
                f"attribute of activation={having}"
            )
    return parameters.get(own)


parse_clip = _parameter_parser("clip", "positive and finite in float32")

PARSERS: dict[str, Callable[[object], Any]] = {
    "epsilon": parse_epsilon,
    "momentum": parse_momentum,
    "activation": parse_activation,
    "clip": parse_clip,
    "negative_slope": _parameter_parser("negative_slope", "finite in float32"),
    "data_format": parse_data_format,
}
"""The function that validates each attribute of an operator."""

# "auto" is never oneDNN: it sums in f32 one element after the other, so that its error exceeds the
# tolerance of 1e-6 at some thousand elements per channel; and on most layouts it is slower.
# "native" is an older name of "auto".
_BACKENDS: dict[object, bool] = {"auto": False, "native": False, "onednn": True}


def parse_backend(value: object) -> bool:
    """Return whether a backend is oneDNN."""
    try:
        return _BACKENDS[value]
    except (KeyError, TypeError):
        raise ValueError(f'backend must be "auto" or "onednn", got {value!r}') from None


StatisticsKind = Literal["batch", "frozen"]
"""Whether mean and variance are those of src, or constants."""


def parse_statistics(value: object) -> StatisticsKind:
    """Return ``"batch"`` or ``"frozen"``."""
    if isinstance(value, str) and value in get_args(StatisticsKind):
        return value  # type: ignore[return-value]
    raise ValueError(f"statistics must be 'batch' or 'frozen', got {value!r}")
