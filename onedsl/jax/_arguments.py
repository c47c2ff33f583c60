"""The arguments of onedsl.jax: checked where they come in, also while JAX traces.

Shapes and types are known then, and no memory is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import numpy as np

from .. import _core
from ..operators import _attributes, _validation
from ..operators._schema import OpSchema, Port
from ..operators.batch_norm_training_backward import SCHEMA
from ..tensors.dtypes import dtype_name
from ..tensors.spec import DataFormat, parse_data_format

_SRC = Port("src", "tensor")
_GAMMA = Port("gamma", "statistic", optional=True)
_BETA = Port("beta", "statistic", optional=True)

# The layers are no operations of the core, but their arguments are refused as if they were.
FROZEN_LAYER = dataclasses.replace(
    SCHEMA, inputs=(_SRC, Port("mean", "statistic"), Port("variance", "statistic"), _GAMMA, _BETA)
)
TRAINING_LAYER = dataclasses.replace(
    SCHEMA, inputs=(_SRC, _GAMMA, _BETA), types=dict.fromkeys(SCHEMA.types, ("f32",))
)


@dataclass(frozen=True)
class Attributes:
    """What is compiled into a program: static for JAX, which compares and hashes it by value."""

    epsilon: float
    data_format: DataFormat
    statistics: _core.Statistics


def parse_attributes(epsilon: object, data_format: object, statistics: object) -> Attributes:
    """Take the attributes, or say what is wrong with them."""
    if isinstance(epsilon, jax.core.Tracer):
        raise TypeError(
            "epsilon must be a Python number, which is compiled into the program, and not a value "
            "that JAX traces: close over it, or name it in jax.jit's static_argnames"
        )
    if isinstance(epsilon, jax.Array):
        raise TypeError(
            "epsilon must be a Python number, which is compiled into the program, and not a JAX "
            "array: pass float(epsilon)"
        )
    return Attributes(
        _attributes.epsilon(epsilon),
        parse_data_format(data_format),
        _attributes.statistics(statistics),
    )


def check(schema: OpSchema, data_format: DataFormat, src: object, *others: object) -> None:
    """Refuse arrays whose devices, types or shapes are not what a schema's inputs must be."""
    tensor = described("src", src)
    rest = [
        None if value is None and port.optional else described(port.name, value)
        for port, value in zip(schema.inputs[1:], others, strict=True)
    ]
    if not any(rest):  # an absent gamma means ones
        rest[0] = _validation.ArrayInfo(tensor.shape[data_format.channel_axis :][:1], "f32")
    _validation.arguments(schema, data_format.statistics_shape_kind, [tensor, *rest])


def described(name: str, value: object) -> _validation.ArrayInfo:
    """Take what there is to be checked of an array, or of a tracer that stands for one."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        if value.is_deleted():
            raise ValueError(f"{name} has no memory any more: it was deleted, or donated to a call")
        refuse_platforms(name, {device.platform for device in value.devices()})
    elif not isinstance(value, jax.Array | np.ndarray):
        raise TypeError(f"{name} must be a JAX or NumPy array, not {type(value).__name__}")
    return _validation.ArrayInfo(value.shape, dtype_name(value.dtype, name))


def refuse_platforms(name: str, platforms: set[str]) -> None:
    """Refuse an array that is anywhere but on the CPU."""
    if platforms != {"cpu"}:
        raise ValueError(
            f"{name} is on {' and '.join(sorted(platforms))}, and onedsl computes on CPUs: move it "
            f'with jax.device_put({name}, jax.devices("cpu")[0])'
        )
