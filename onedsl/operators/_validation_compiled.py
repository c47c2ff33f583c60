"""Words for inputs that are right, and not what an operator was compiled for."""

from __future__ import annotations

from collections.abc import Sequence

from ..tensors.arrays import Array
from ..tensors.dtypes import dtype_name
from ..tensors.spec import TensorSpec
from ._schema import OpSchema


def not_compiled_for(
    schema: OpSchema,
    arrays: Sequence[Array | None],
    spec: TensorSpec,
    statistic: TensorSpec,
    given: int,
) -> None:
    """Refuse inputs that are right together, and not those of the compiled plan."""
    for i, (port, array) in enumerate(zip(schema.inputs, arrays, strict=True)):
        name, expected = port.label, bool(given >> i & 1)
        if (array is not None) != expected:
            raise TypeError(
                f"{name} is {'missing' if expected else 'given'}, and this was compiled with "
                f"{port.name}={expected}"
            )
        if array is None:
            continue
        wanted, dtype = spec, spec.dtype
        if port.kind == "statistic":
            wanted, dtype = statistic, f'stats_dtype="{statistic.dtype}"'
        got = dtype_name(array.dtype)
        if got != wanted.dtype:
            raise TypeError(f"{name} is {got}, and this was compiled for {dtype}")
        if array.shape != wanted.shape:
            raise ValueError(
                f"{name} has shape {array.shape}, and this was compiled for {wanted.shape}"
            )
        if port.kind == "tensor":
            _not_compiled_strides(name, array, wanted.byte_strides)


def _not_compiled_strides(name: str, array: Array, wanted: tuple[int, ...]) -> None:
    steps = zip(array.shape, array.strides, wanted, strict=True)
    if array.size and any(a != b for size, a, b in steps if size > 1):
        raise ValueError(
            f"{name} has strides {array.strides}, and this was compiled for {wanted} (in bytes): "
            f"compile for TensorSpec.of({name}), or copy {name} into that order"
        )
    if not array.flags.aligned:
        raise ValueError(f"{name} is not aligned to its items; pass {name}.copy()")
