"""Argument validation of onedsl.jax. It needs only shapes and dtypes, so it accepts tracers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import _core
from ..operators import attributes, validation
from ..operators.batch_norm_training_backward import SCHEMA
from ..operators.schema import OpSchema
from ..tensors.arrays import reject_masked
from ..tensors.dtypes import dtype_name
from ..tensors.ports import Port
from ..tensors.spec import DataFormat, parse_data_format

_SRC = Port("src", "tensor")
_GAMMA = Port("gamma", "statistic", optional=True)
_BETA = Port("beta", "statistic", optional=True)

# The layers are not operators of the core; these schemas only describe their arguments.
FROZEN_LAYER = dataclasses.replace(
    SCHEMA, inputs=(_SRC, Port("mean", "statistic"), Port("variance", "statistic"), _GAMMA, _BETA)
)
TRAINING_LAYER = dataclasses.replace(
    SCHEMA, inputs=(_SRC, _GAMMA, _BETA), types=dict.fromkeys(SCHEMA.types, ("f32",))
)


@dataclass(frozen=True)
class Attributes:
    """The attributes of a call, a static argument of JAX, which hashes and compares it."""

    epsilon: float
    data_format: DataFormat
    statistics: _core.Statistics


def parse_attributes(epsilon: object, data_format: object, statistics: object) -> Attributes:
    """Parse the attributes of a call, or raise TypeError or ValueError."""
    if isinstance(epsilon, jax.core.Tracer):
        raise TypeError(
            "epsilon must be a Python number, got a tracer. Close over it, or name it in "
            "jax.jit's static_argnames"
        )
    if isinstance(epsilon, jax.Array):
        raise TypeError("epsilon must be a Python number, got a JAX array. Pass float(epsilon)")
    return Attributes(
        attributes.parse_epsilon(epsilon),
        parse_data_format(data_format),
        attributes.parse_statistics(statistics),
    )


def check(
    schema: OpSchema, data_format: DataFormat, src: object, *others: Any
) -> tuple[jax.Array | None, ...]:
    """Raise if the device, dtype or shape of an input is invalid for the schema.

    `others` are the inputs after src, in the schema's order. Return them, with 16-bit gamma and
    beta converted to f32 where the statistics are f32.
    """
    infos: list[validation.ArrayInfo | None] = [array_info("src", src)]
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
    validation.check_inputs(schema, data_format.channel_axis, infos)
    return tuple(checked)


def array_info(name: str, value: object) -> validation.ArrayInfo:
    """Return the shape and dtype of an array or a tracer, or raise if onedsl cannot use it."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        if value.is_deleted():
            raise ValueError(f"{name} must have memory, got a deleted or donated array")
        platforms = {device.platform for device in value.devices()}
        if platforms != {"cpu"}:
            raise ValueError(
                f"{name} must be on the CPU, got an array on {' and '.join(sorted(platforms))}. "
                f'Move it with jax.device_put({name}, jax.devices("cpu")[0])'
            )
    elif not isinstance(value, jax.Array | np.ndarray):
        raise TypeError(f"{name} must be a JAX or NumPy array, got {type(value).__name__}")
    reject_masked(name, value)
    return validation.ArrayInfo(value.shape, dtype_name(value.dtype, name))
