"""XLA custom calls of onedsl's C++ handlers, for arrays on one device.

XLA calls the handlers directly, without Python and the GIL. Therefore programs that contain these
calls can be exported and cached.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from ..operators import batch_norm_forward_training, batch_norm_training_backward
from ..operators.batch_norm_training_backward import BatchNormGradients
from ..operators.schema import OpSchema
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


def backward(attributes: Attributes, *inputs: jax.Array | None) -> BatchNormGradients[jax.Array]:
    """Compute diff_src, diff_gamma and diff_beta from the inputs of the operator."""
    return BatchNormGradients(*_call(batch_norm_training_backward.SCHEMA, attributes, *inputs))


def forward(
    attributes: Attributes, src: jax.Array, gamma: jax.Array | None, beta: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize by the batch statistics; return dst, and mean and variance in f32."""
    channels = attributes.data_format.channels_of(src.shape)
    zeros, ones = jnp.zeros(channels, jnp.float32), jnp.ones(channels, jnp.float32)
    if gamma is not None or beta is not None:  # the op has both inputs or neither
        gamma = ones if gamma is None else gamma
        beta = zeros if beta is None else beta
    schema = batch_norm_forward_training.SCHEMA
    dst, _, _, mean, variance = _call(schema, attributes, src, zeros, ones, gamma, beta)
    return dst, mean, variance


def _call(schema: OpSchema, attributes: Attributes, *inputs: jax.Array | None) -> list[jax.Array]:
    """Return the outputs of the custom call of an operator. Optional inputs may be None."""
    types: dict[str, Any] = {}
    for port, array in zip(schema.inputs, inputs, strict=True):
        if array is not None:
            types.setdefault(port.kind, jax.ShapeDtypeStruct(array.shape, array.dtype))
    rank = len(types["tensor"].shape)
    call = jax.ffi.ffi_call(
        _HANDLERS[schema.operation][0],
        [types[port.kind] for port in schema.outputs],
        # Under jax.vmap, one call computes the whole batch. "sequential" would copy each item.
        vmap_method="broadcast_all",
    )
    outputs: list[jax.Array] = call(
        *(array for array in inputs if array is not None),
        rank=np.int64(rank),
        channel_axis=np.int64(attributes.data_format.channel_axis % rank),
        frozen=np.int64(attributes.statistics == "frozen"),
        epsilon=np.float64(attributes.epsilon),
    )
    return outputs
