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
    is_contiguous,
    may_overlap,
    same_layout,
    same_memory,
)
from ..tensors.dtypes import short_name
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


def check_spec(value: object) -> TensorSpec:
    """Return a TensorSpec, or raise TypeError."""
    if not isinstance(value, TensorSpec):
        example = "onedsl.TensorSpec((8, 40, 40, 96))"
        got = type(value).__name__
        raise TypeError(f"spec must be a TensorSpec, got {got}. For example {example}")
    return value


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
    _check_all_or_none(schema, infos)
    first = first_of_each_kind(schema, infos)
    _, src = first["tensor"]
    check_rank(schema, src.shape)
    check_dtypes(schema, src.dtype)
    for port, info in zip(schema.inputs, infos, strict=True):
        if info is None:
            continue
        if (port.name, info) == first.get("statistic"):
            check_dtypes(schema, src.dtype, info.dtype, port.name)
            check_statistic_shape(schema, channel_axis, src.shape, port.name, info.shape)
        else:
            _check_like(first, port, port.name, info)


def _check_all_or_none(schema: OpSchema, infos: Sequence[ArrayInfo | None]) -> None:
    names = schema.all_or_none
    ports = zip(schema.inputs, infos, strict=True)
    missing = [p.name for p, info in ports if info is None and p.name in names]
    if 0 < len(missing) < len(names):
        raise TypeError(f"{_listed(names)} must be given together, {_listed(missing)} is missing")


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


def check_dtypes(
    schema: OpSchema, data: str, statistic: str | None = None, argument: str = ""
) -> None:
    """Raise TypeError if the dtypes of tensors and statistics are not in the type table."""
    if data not in schema.types:
        row = _listed(list(schema.types), " or ")
        raise TypeError(f"{schema.inputs[0].name} must be {row}, got {data}")
    if statistic is not None and statistic not in schema.types[data]:
        raise TypeError(
            f"{argument} must be {' or '.join(schema.types[data])} where {schema.inputs[0].name} "
            f"is {data}, got {statistic}"
        )


def check_rank(schema: OpSchema, shape: tuple[int, ...]) -> None:
    """Raise ValueError if a tensor has too few or too many dimensions."""
    minimum, maximum = schema.ranks
    if not minimum <= len(shape) <= maximum:
        is_low = len(shape) < minimum
        limit, number = ("at least", minimum) if is_low else ("at most", maximum)
        raise ValueError(
            f"{schema.inputs[0].name} must have {limit} {number} "
            f"dimension{'s' * (number > 1)}, got {len(shape)}: shape {shape}"
        )


def check_statistic_shape(
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
        _check_overlap(port, name, array, others)
        others[name] = array


def _check_overlap(port: Port, name: str, array: Array, others: dict[str, Array]) -> None:
    in_place = bool(port.in_place) and same_memory(array, others[port.in_place])
    for other, memory in others.items():
        if may_overlap(array, memory) and not (in_place and other == port.in_place):
            remedy = f". It may be {port.in_place} itself" if port.in_place else ""
            raise ValueError(f"{name} must not overlap {other}{remedy}")


# ---- Results of reduce ----


def check_totals(kind: type[BatchNormTotals], value: object) -> BatchNormTotals:
    """Return an object of the class that ``reduce`` returns, or raise TypeError."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{kind._argument} must be {kind.__name__} from reduce, got {type(value).__name__}"
        )
    return value


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
