"""Argument validation of onedsl.jax. It needs only shapes and dtypes, so it accepts tracers."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..operators import attributes
from ..operators.base import ChannelOperator
from ..operators.batch_norm_act_forward_training import SCHEMA as FORWARD_SCHEMA
from ..operators.batch_norm_training_backward import SCHEMA
from ..operators.schema import OpSchema
from ..operators.validation import ArrayInfo
from ..tensors.arrays import DELETED, reject_masked
from ..tensors.dtypes import dtype_name
from ..tensors.options import Activation
from ..tensors.spec import DataFormat, parse_data_format

# The layers are not operators of the core; these schemas only describe their arguments.
FROZEN_LAYER = dataclasses.replace(FORWARD_SCHEMA, all_or_none=())
TRAINING_LAYER = dataclasses.replace(
    FROZEN_LAYER,
    inputs=tuple(dataclasses.replace(p, optional=p.name != "src") for p in FORWARD_SCHEMA.inputs),
    types=dict.fromkeys(SCHEMA.types, ("f32",)),
)


@dataclass(frozen=True)
class Attributes:
    """The attributes of a call, a static argument of JAX, which hashes and compares it."""

    epsilon: float
    data_format: DataFormat
    statistics: attributes.StatisticsKind
    activation: Activation | None = None
    parameter: float | None = None
    """The parameter of the activation, or None for its default."""

    @property
    def without_activation(self) -> Attributes:
        """The attributes of batch norm alone."""
        return dataclasses.replace(self, activation=None, parameter=None)


def parse_attributes(
    epsilon: object,
    data_format: object,
    statistics: object,
    activation: object = None,
    **parameters: object,
) -> Attributes:
    """Parse the attributes of a call, or raise TypeError or ValueError."""
    for name, value in {"epsilon": epsilon, **parameters}.items():
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"{name} must be a Python number, got a tracer. Close over it, or name it in "
                "jax.jit's static_argnames"
            )
        if isinstance(value, jax.Array):
            raise TypeError(f"{name} must be a Python number, got a JAX array. Pass float({name})")
    parsed = attributes.parse_activation_or_none(activation)
    numbers = {name: attributes.PARSERS[name](value) for name, value in parameters.items()}
    return Attributes(
        attributes.parse_epsilon(epsilon),
        parse_data_format(data_format),
        attributes.parse_statistics(statistics),
        parsed,
        attributes.parameter_of(parsed, **numbers),
    )


def check(
    schema: OpSchema, data_format: DataFormat, src: object, *others: Any
) -> tuple[jax.Array | None, ...]:
    """Raise if the device, dtype or shape of an input is invalid for the schema.

    `others` are the inputs after src, in the schema's order. Return them, with 16-bit gamma and
    beta converted to f32 where the statistics are f32.
    """
    infos: list[ArrayInfo | None] = [array_info("src", src)]
    statistics_dtype, checked = "f32", []
    for port, given in zip(schema.inputs[1:], others, strict=True):
        value = given
        info = None if value is None and port.optional else array_info(port.name, value)
        if info and port.name == "mean":
            statistics_dtype = info.dtype
        if info and port.name in ("gamma", "beta") and statistics_dtype == "f32":
            info, value = dataclasses.replace(info, dtype="f32"), value.astype(np.float32)
        infos.append(info)
        checked.append(value)
    known = {size for info in infos if info for size in info.shape if type(size) is int}
    unknown = (number for number in itertools.count(2) if number not in known)
    sizes: dict[object, int] = {}  # numbers for symbolic sizes, which differ from all others

    def concrete(size: Any) -> int:
        return size if type(size) is int else sizes.setdefault(size, next(unknown))

    operator: ChannelOperator[Any] = ChannelOperator(schema, epsilon=1.0, data_format=data_format)
    operator._check_shapes(infos, size_of=concrete)
    return tuple(checked)


def array_info(name: str, value: object) -> ArrayInfo:
    """Return the shape and dtype of an array or a tracer, or raise if onedsl cannot use it."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        if value.is_deleted():
            raise ValueError(f"{name} {DELETED}")
        platforms = {device.platform for device in value.devices()}
        if platforms != {"cpu"}:
            raise ValueError(
                f"{name} must be on the CPU, got an array on {' and '.join(sorted(platforms))}. "
                f'Move it with jax.device_put({name}, jax.devices("cpu")[0])'
            )
    elif not isinstance(value, jax.Array | np.ndarray):
        raise TypeError(f"{name} must be a JAX or NumPy array, got {type(value).__name__}")
    reject_masked(name, value)
    return ArrayInfo(value.shape, dtype_name(value.dtype, name))
