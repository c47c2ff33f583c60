"""Argument validation. Every function returns the parsed value or raises.

The C++ core rejects unusable arguments by returning ``None``. The functions here then raise the
matching exception.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..tensors.arrays import (
    Array,
    as_numpy,
    check_overlap,
    is_contiguous,
    same_layout,
)
from ..tensors.dtypes import DTypeName, dtype_name, short_name
from ..tensors.ports import Port
from ..tensors.spec import TensorSpec
from .schema import OpSchema
from .totals import BatchNormTotals


@dataclass(frozen=True)
class ArrayInfo:
    """Shape and dtype of an array, without its memory."""

    shape: tuple[int, ...]
    dtype: str
    """The short name."""


# ---- Options ----


def parse_outputs(value: object, schema: OpSchema) -> bool:
    """Return whether the option ``outputs`` requests all outputs."""
    if isinstance(value, bool) and len(schema.required) != 1:  # its option is another one
        return value
    if isinstance(value, str) and (value == "all" or (value,) == schema.required):
        return value == "all"
    raise ValueError(
        f'outputs must be "all" or "{_listed(schema.required)}", got {value!r}. '
        f"{_listed([p.name for p in schema.outputs if p.optional])} are computed together"
    )


def check_spec(schema: OpSchema, spec: object, stats_dtype: object) -> DTypeName:
    """Return the short name of the dtype of statistics, or raise for an invalid description."""
    if not isinstance(spec, TensorSpec):
        example = "onedsl.TensorSpec((8, 40, 40, 96))"
        got = type(spec).__name__
        raise TypeError(f"spec must be a TensorSpec, got {got}. For example {example}")
    statistics = dtype_name(stats_dtype, "stats_dtype")
    _check_rank(schema, spec.shape)
    _check_dtypes(schema, spec.dtype, statistics, "stats_dtype")
    return statistics


def check_bool(name: str, value: object) -> bool:
    """Return a bool, or raise TypeError, for example if a user passes an array."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return value


# ---- Types and shapes ----


def check_inputs(schema: OpSchema, channel_axis: int | None, inputs: Sequence[object]) -> None:
    """Raise if dtypes or shapes are invalid, or if a required input is absent.

    The inputs are arrays, or `ArrayInfo` if there is no memory, and None for absent ones.
    """
    infos = _infos(schema, inputs)
    absent = [p.name for p, info in zip(schema.inputs, infos, strict=True) if info is None]
    missing = [name for name in schema.all_or_none if name in absent]
    if 0 < len(missing) < len(schema.all_or_none):
        together = f"{_listed(schema.all_or_none)} must be given together"
        raise TypeError(f"{together}, {_listed(missing)} is missing")
    first = first_of_each_kind(schema, infos)
    _, src = first["tensor"]
    _check_rank(schema, src.shape)
    _check_dtypes(schema, src.dtype)
    for port, info in zip(schema.inputs, infos, strict=True):
        if info is None:
            continue
        if (port.name, info) == first.get("statistic"):
            _check_dtypes(schema, src.dtype, info.dtype, port.name)
            _check_statistic_shape(schema, channel_axis, src.shape, port.name, info.shape)
        else:
            _check_like(first, port, port.name, info)


def _infos(schema: OpSchema, inputs: Sequence[object]) -> list[ArrayInfo | None]:
    return [
        None if value is None and port.optional else _info(port.name, value)
        for port, value in zip(schema.inputs, inputs, strict=True)
    ]


def first_of_each_kind(schema: OpSchema, values: Sequence[Any]) -> dict[str, tuple[str, Any]]:
    """Return name and value of the first input of each kind, which the others must match."""
    ports = zip(schema.inputs, values, strict=True)
    given = [(port, value) for port, value in ports if value is not None]
    return {port.kind: (port.name, value) for port, value in reversed(given)}


def _check_like(
    first: dict[str, tuple[str, ArrayInfo]], port: Port, name: str, info: ArrayInfo
) -> None:
    like, expected = first[port.kind]
    if info.dtype != expected.dtype:
        raise TypeError(f"{name} must be {expected.dtype} like {like}, got {info.dtype}")
    if info.shape != expected.shape:
        raise ValueError(f"{name} must have {like}'s shape {expected.shape}, got {info.shape}")


def _check_dtypes(
    schema: OpSchema, data: str, statistic: str | None = None, argument: str = ""
) -> None:
    if data not in schema.types:
        row = _listed(list(schema.types), " or ")
        raise TypeError(f"{schema.inputs[0].name} must be {row}, got {data}")
    if statistic is not None and statistic not in schema.types[data]:
        raise TypeError(
            f"{argument} must be {' or '.join(schema.types[data])} where {schema.inputs[0].name} "
            f"is {data}, got {statistic}"
        )


def _check_rank(schema: OpSchema, shape: tuple[int, ...]) -> None:
    minimum, maximum = schema.ranks
    if not minimum <= len(shape) <= maximum:
        is_low = len(shape) < minimum
        limit, number = ("at least", minimum) if is_low else ("at most", maximum)
        raise ValueError(
            f"{schema.inputs[0].name} must have {limit} {number} "
            f"dimension{'s' * (number > 1)}, got {len(shape)}: shape {shape}"
        )


def _check_statistic_shape(
    schema: OpSchema,
    channel_axis: int | None,
    shape: tuple[int, ...],
    name: str,
    got: tuple[int, ...],
) -> None:
    """Raise ValueError if a statistic does not fit a tensor of this shape."""
    src = schema.inputs[0]
    if channel_axis is not None:
        expected = (shape[channel_axis],)
        if got != expected:
            raise ValueError(
                f"{name} must have shape {expected}, one value per channel of {src.name} with "
                f"shape {shape}, got {got}"
            )
    elif len(got) != len(shape):
        own = shape.index(got[0]) if len(got) == 1 and got[0] in shape else 1
        example = tuple(size if i == own else 1 for i, size in enumerate(shape))
        raise ValueError(
            f"{name} must have {len(shape)} dimensions like {src.name}, for example {example}, "
            f"got {got}"
        )
    else:
        for axis, (size, whole) in enumerate(zip(got, shape, strict=True)):
            if size not in (1, whole):
                raise ValueError(
                    f"{name} must have size 1, or {whole} like {src.name}, on axis {axis}, "
                    f"got {size}: shape {got}"
                )


def _info(name: str, value: object) -> ArrayInfo:
    if isinstance(value, ArrayInfo):
        return value
    array = as_numpy(name, value)
    return ArrayInfo(array.shape, short_name(array.dtype))


# ---- Memory of the outputs ----


def parse_out(schema: OpSchema, all_outputs: bool, out: object) -> tuple[object, ...]:
    """Return the members of ``out``: an array for each requested output, None for the others."""
    ports = schema.outputs
    if not isinstance(out, tuple | list) or len(out) != len(ports):
        names = ", ".join(port.name for port in ports)
        got = f"one of {len(out)}" if isinstance(out, tuple | list) else type(out).__name__
        raise TypeError(f"out must be a tuple ({names}), got {got}")
    for port, value in zip(ports, out, strict=True):
        requested = all_outputs or not port.optional
        if requested and value is None:
            remedy = ""
            if port.optional:
                remedy = f". Or pass {schema.options[1]}"
            raise ValueError(f"out.{port.name} must be an array, got None{remedy}")
        if value is not None and not requested:
            raise ValueError(
                f"out.{port.name} must be None with {schema.options[1]}, got {type(value).__name__}"
            )
    return tuple(out)


def check_out_memory(
    schema: OpSchema,
    inputs: Sequence[Array | None],
    dense: Sequence[Array | None],
    out: Sequence[Array | None],
) -> None:
    """Raise if the outputs cannot be written to the arrays of ``out``.

    They must have the strides of the dense src, and must not overlap the caller's inputs.
    """
    src, dense_src = schema.inputs[0].name, dense[0]
    assert dense_src is not None
    first = first_of_each_kind(schema, _infos(schema, inputs))
    ports = zip(schema.inputs, inputs, strict=True)
    others = {port.name: array for port, array in ports if array is not None}
    for port, array in zip(schema.outputs, out, strict=True):
        if array is None:
            continue
        name = f"out.{port.name}"
        _check_like(first, port, name, _info(name, array))
        if not array.flags.aligned:
            raise ValueError(f"{name} must be aligned to its items, got {array.ctypes.data:#x}")
        if port.kind == "tensor" and not same_layout(array, dense_src):
            raise ValueError(
                f"{name} must have the strides (in bytes) {dense_src.strides} of {src}, got "
                f"{array.strides}. empty_like({src}) returns such an array"
            )
        if port.kind == "statistic" and not is_contiguous(array):
            raise ValueError(f"{name} must be contiguous, got strides {array.strides} in bytes")
        if not array.flags.writeable:
            raise ValueError(f"{name} must be writable, got a read-only array")
        check_overlap(name, array, others, port.in_place)
        others[name] = array


# ---- Results of reduce ----


def check_totals_include(
    schema: OpSchema, totals: BatchNormTotals, inputs: Sequence[Array | None]
) -> None:
    """Raise ValueError if valid inputs cannot be a part of what the totals were computed from."""
    first = first_of_each_kind(schema, _infos(schema, inputs))
    (src_name, src), (_, statistic) = first["tensor"], first["statistic"]
    channels = math.prod(statistic.shape)
    if totals.channels != channels:
        raise ValueError(
            f"{totals._argument} must have {channels} channels for {src_name} with shape "
            f"{src.shape}, got {totals.channels}"
        )
    count = math.prod(src.shape) // channels if channels else 0
    if totals.count < count:
        raise ValueError(
            f"{totals._argument} must include the {count} elements per channel of {src_name}, got "
            f"only {totals.count} elements. Pass the sum of the results of reduce for all parts"
        )


# ---- Lists of names ----


def _listed(names: Sequence[str], word: str = " and ") -> str:
    return word.join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
