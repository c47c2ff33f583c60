"""XLA custom calls of onedsl's C++ handlers, for arrays on one device.

XLA calls the handlers directly, without Python and the GIL. Therefore programs that contain these
calls can be exported and cached.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from ..operators import (
    batch_norm_act_forward_training,
    batch_norm_act_training_backward,
    batch_norm_forward_training,
    batch_norm_training_backward,
)
from ..operators.batch_norm_act_training_backward import BatchNormActGradients
from ..operators.batch_norm_training_backward import BatchNormGradients
from ..operators.schema import OpSchema
from ..runtime.import_errors import second_import_message
from ..tensors.ports import Port
from ._arguments import Attributes


def _check_ffi_version() -> None:
    """Raise ImportError if the FFI of the installed XLA has another major version than onedsl's.

    Without this check, JAX would fail when it first uses a device.
    """
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h")
    text = header.read_text(encoding="utf-8") if header.is_file() else ""
    found = re.search(r"^#define XLA_FFI_API_MAJOR (\d+)$", text, re.MULTILINE)
    major = found[1] if found else "unknown"
    if major != "0":
        raise ImportError(
            "onedsl.jax needs a JAX whose foreign function interface (FFI) has major version 0, "
            f"got JAX {jax.__version__} with version {major}. Install a newer onedsl, or an "
            "older JAX that onedsl.jax documents",
            name="jax",
        )


_check_ffi_version()
# All handlers are registered at import, because an exported program may call any of them.
_HANDLERS = _core.xla_handlers()
for _name, _handler in _HANDLERS.values():
    jax.ffi.register_ffi_target(_name, _handler, platform="cpu")

try:  # allows export of programs that return BatchNormGradients
    import jax.export

    jax.export.register_namedtuple_serialization(
        BatchNormGradients, serialized_name="onedsl.BatchNormGradients"
    )
except ImportError:  # JAX 0.6 has no jax.export without absl-py
    pass
except ValueError as _error:
    raise ImportError(second_import_message("onedsl.jax", "JAX")) from _error


def backward(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
    beta: jax.Array | None,
    residual: jax.Array | None,
) -> BatchNormActGradients[jax.Array]:
    """Compute the gradients. Without an activation, beta and residual must be None."""
    inputs = {"src": src, "diff_dst": diff_dst, "mean": mean, "variance": variance}
    if attributes.activation is None:
        schema = batch_norm_training_backward.SCHEMA
        return BatchNormActGradients(*_call(schema, attributes, True, **inputs, gamma=gamma))
    gamma, beta = _both_or_neither(gamma, beta, mean.shape)
    inputs |= {"gamma": gamma, "beta": beta, "residual": residual}
    schema = batch_norm_act_training_backward.SCHEMA
    return BatchNormActGradients(*_call(schema, attributes, residual is not None, **inputs))


def forward(
    attributes: Attributes,
    src: jax.Array,
    gamma: jax.Array | None,
    beta: jax.Array | None,
    residual: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute the training layer; return dst, and mean and variance in f32."""
    channels = attributes.data_format.channels_of(src.shape)
    gamma, beta = _both_or_neither(gamma, beta, channels)
    running = {
        "mean": jnp.zeros(channels, jnp.float32),
        "variance": jnp.ones(channels, jnp.float32),
    }
    schema = batch_norm_forward_training.SCHEMA
    if attributes.activation is None and residual is not None:  # the identity as an activation
        attributes = dataclasses.replace(attributes, activation="leaky_relu", parameter=1.0)
    if attributes.activation is not None:
        schema = batch_norm_act_forward_training.SCHEMA
    dst, _, _, mean, variance = _call(
        schema, attributes, True, src=src, **running, gamma=gamma, beta=beta, residual=residual
    )
    return dst, mean, variance


def _both_or_neither(
    gamma: jax.Array | None, beta: jax.Array | None, shape: tuple[int, ...]
) -> tuple[jax.Array | None, jax.Array | None]:
    """Return gamma and beta, with the default of one that is None if the other is given."""
    if gamma is None and beta is None:
        return None, None
    return (
        jnp.ones(shape, jnp.float32) if gamma is None else gamma,
        jnp.zeros(shape, jnp.float32) if beta is None else beta,
    )


def _call(
    schema: OpSchema, attributes: Attributes, all_outputs: bool, **inputs: jax.Array | None
) -> list[jax.Array]:
    """Return the outputs of the custom call of an operator. Optional inputs may be None.

    Unless `all_outputs`, they are only those that the operator always computes.
    """
    given: dict[Port, jax.Array] = {}
    types: dict[str, Any] = {}
    for port in schema.inputs:
        array = inputs.get(port.name)
        if array is None:
            continue
        given[port] = array
        types.setdefault(port.kind, jax.ShapeDtypeStruct(array.shape, array.dtype))
    rank = len(types["tensor"].shape)
    call = jax.ffi.ffi_call(
        _HANDLERS[schema.operation][0],
        [types[port.kind] for port in schema.outputs if all_outputs or not port.optional],
        # Under jax.vmap, one call computes the whole batch. "sequential" would copy each item.
        vmap_method="broadcast_all",
    )
    numbers: dict[str, Any] = {
        port.name: np.int64(port in given) for port in schema.inputs if port.optional
    }
    if attributes.activation is not None:
        numbers["activation"] = attributes.activation
    if attributes.parameter is not None:
        numbers["parameter"] = np.float64(attributes.parameter)
    outputs: list[jax.Array] = call(
        *given.values(),
        rank=np.int64(rank),
        channel_axis=np.int64(attributes.data_format.channel_axis % rank),
        frozen=np.int64(attributes.statistics == "frozen"),
        epsilon=np.float64(attributes.epsilon),
        **numbers,
    )
    return outputs
