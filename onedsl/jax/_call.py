"""The call out of XLA's program into onedsl, of arrays that are all on one device.

XLA calls onedsl's own handlers, which are C++, hold no GIL and know nothing of Python: so programs
that call them can be exported and cached. A JAX whose foreign function interface is another than
theirs gets the call by way of Python, through `jax.experimental.buffer_callback`, as before.
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
from ..operators._schema import OpSchema
from ..operators.batch_norm_training_backward import BatchNormGradients
from . import _callback
from ._arguments import Attributes


def _takes_handlers() -> bool:
    """Whether XLA's interface, as its header says, has the major version of onedsl's handlers.

    JAX registers a handler when it first needs a device, and an unfit one would stop it there.
    """
    try:
        header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^#define XLA_FFI_API_MAJOR 0$", header, re.MULTILINE) is not None


HAS_HANDLERS = _takes_handlers()
if HAS_HANDLERS:  # also for programs that were exported elsewhere
    for _name, _handler in _core.xla_handlers().items():
        jax.ffi.register_ffi_target(_name, _handler, platform="cpu")


try:  # so that programs which give BatchNormGradients can be saved
    import jax.export

    jax.export.register_namedtuple_serialization(
        BatchNormGradients, serialized_name="onedsl.BatchNormGradients"
    )
except ImportError:  # JAX 0.6 without absl-py exports nothing
    pass


def backward(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
) -> BatchNormGradients:
    """Compute the gradients."""
    schema = batch_norm_training_backward.SCHEMA
    return BatchNormGradients(*_call(schema, attributes, src, diff_dst, mean, variance, gamma))


def forward(
    attributes: Attributes, src: jax.Array, gamma: jax.Array | None, beta: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize by the batch's own statistics: dst, mean, variance, the last two in f32."""
    channels = src.shape[attributes.data_format.channel_axis]
    zeros, ones = jnp.zeros(channels, jnp.float32), jnp.ones(channels, jnp.float32)
    if gamma is not None or beta is not None:  # the op takes both or none
        gamma = ones if gamma is None else gamma
        beta = zeros if beta is None else beta
    schema = batch_norm_forward_training.SCHEMA
    dst, _, _, mean, variance = _call(schema, attributes, src, zeros, ones, gamma, beta)
    return dst, mean, variance


def _call(schema: OpSchema, attributes: Attributes, *inputs: jax.Array | None) -> list[jax.Array]:
    """Put the call into the program that JAX traces."""
    of_kind: dict[str, Any] = {}
    for port, array in zip(schema.inputs, inputs, strict=True):
        if array is not None:
            of_kind.setdefault(port.kind, jax.ShapeDtypeStruct(array.shape, array.dtype))
    results = [of_kind[port.kind] for port in schema.outputs]
    src = of_kind["tensor"]
    if HAS_HANDLERS:
        # Under vmap this is one call for all items, where "sequential" would copy each.
        call = jax.ffi.ffi_call(
            f"onedsl_batch_norm_{schema.operation.name}", results, vmap_method="expand_dims"
        )
        outputs: list[jax.Array] = call(
            *(array for array in inputs if array is not None),
            rank=np.int64(len(src.shape)),
            data_format=attributes.data_format.value,
            statistics=attributes.statistics.name,
            epsilon=np.float64(attributes.epsilon),
        )
        return outputs
    return _callback.call(schema, attributes, results, *inputs)
