"""Words for what is wrong with an argument: the functions here raise, or give what they parsed.

The core looks at every argument itself and refuses, without a word, what it cannot take as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..tensors.arrays import Array, as_numpy, is_contiguous, overlap, same_layout, same_memory
from ..tensors.dtypes import dtype_name
from ..tensors.spec import TensorSpec
from ._schema import OpSchema, Port, channel_axis
from ._sums import Totals


@dataclass(frozen=True)
class ArrayInfo:
    """All that there is to be said of an array without its memory."""

    shape: tuple[int, ...]
    dtype: str
    """The short name."""


# ---- Options ----


def outputs(value: object, schema: OpSchema) -> bool:
    """Return whether the argument ``outputs`` requests all outputs."""
    if isinstance(value, str):
        if value == "all":
            return True
        if (value,) == schema.always:
            return False
    rest = _only_if_asked_for(schema)
    raise ValueError(
        f'outputs must be "all" or "{_listed(schema.always)}", not {value!r}: {_listed(rest)} '
        f"come {_together(rest)}"
    )


def spec(value: object) -> TensorSpec:
    """Take a TensorSpec, which is no array and no shape."""
    if not isinstance(value, TensorSpec):
        raise TypeError(f"spec must be a TensorSpec, not {type(value).__name__}")
    return value


def given(name: str, value: object) -> bool:
    """Take the word for whether calls will pass an input, and not the input itself."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


# ---- Types and shapes ----


def arguments(
    schema: OpSchema, statistics_shape: _core.StatisticsShape, tensors: Sequence[object]
) -> None:
    """Refuse inputs whose types and shapes are not right together.

    They are arrays, or `ArrayInfo` where there is no memory, and None where absent.
    """
    described = [
        None if value is None and port.optional else _described(port.label, value)
        for port, value in zip(schema.inputs, tensors, strict=True)
    ]
    _refuse_torn(schema, described)
    models = _Models.of(schema, described)
    _, src = models.tensor
    rank(schema, src.shape)
    tensor_type(schema, src.dtype)
    for port, array in zip(schema.inputs, described, strict=True):
        if array is None:
            continue
        if (port.label, array) == models.statistic:
            types(schema, src.dtype, array.dtype, port.label)
            statistic_shape(schema, statistics_shape, src.shape, port.label, array.shape)
        else:
            models.check(port, port.label, array)


def _refuse_torn(schema: OpSchema, described: Sequence[ArrayInfo | None]) -> None:
    """Refuse some of the inputs that come all or none."""
    ports = zip(schema.inputs, described, strict=True)
    given = [p.name for p, array in ports if array is not None and p.name in schema.together]
    if 0 < len(given) < len(schema.together):
        missing = [name for name in schema.together if name not in given]
        raise TypeError(
            f"{_listed(schema.together)} come {_together(schema.together)}: "
            f"{_listed(missing)} is missing"
        )


@dataclass(frozen=True)
class _Models:
    """What the others must be like: the first tensor and the first statistic, with their names."""

    tensor: tuple[str, ArrayInfo]
    statistic: tuple[str, ArrayInfo] | None = None

    @classmethod
    def of(cls, schema: OpSchema, described: Sequence[ArrayInfo | None]) -> _Models:
        first: dict[str, tuple[str, ArrayInfo]] = {}
        for port, array in zip(schema.inputs, described, strict=True):
            if array is not None:
                first.setdefault(port.kind, (port.label, array))
        return cls(**first)

    def check(self, port: Port, name: str, array: ArrayInfo) -> None:
        model, wanted = getattr(self, port.kind)
        if array.dtype != wanted.dtype:
            raise TypeError(f"{name} must be {wanted.dtype} as {model} is, not {array.dtype}")
        if array.shape == wanted.shape:
            return
        if port.kind == "tensor":
            raise ValueError(f"{name} must have {model}'s shape {wanted.shape}, not {array.shape}")
        src_name, src = self.tensor
        raise ValueError(
            f"{name} must have shape {wanted.shape}, one value a channel of {src_name} with shape "
            f"{src.shape}; it has shape {array.shape}"
        )


def tensor_type(schema: OpSchema, data: str) -> None:
    """Refuse a type that tensors do not have."""
    if data not in schema.types:
        wanted = " or ".join(schema.types)
        raise TypeError(f"{schema.inputs[0].label} must be {wanted}, not {data}")


def types(schema: OpSchema, data: str, statistic: str, argument: str) -> None:
    """Refuse a pair of types that is not a row of the type table."""
    tensor_type(schema, data)
    src = schema.inputs[0]
    if statistic not in schema.types[data]:
        raise TypeError(
            f"{argument} must be {' or '.join(schema.types[data])} where {src.name} is {data}, "
            f"not {statistic}"
        )


def rank(schema: OpSchema, shape: tuple[int, ...]) -> None:
    """Refuse a tensor with too few dimensions, or too many."""
    label = schema.inputs[0].label
    least, most = schema.ranks
    if len(shape) < least:
        wanted = "batch and channels at least; it" if least > 1 else "it"
        raise ValueError(
            f"{label} must have {least} dimension{'s' * (least > 1)} or more, "
            f"{wanted} has shape {shape}"
        )
    if len(shape) > most:
        raise ValueError(f"{label} must have {most} dimensions at most, not {len(shape)}")


def statistic_shape(
    schema: OpSchema,
    statistics_shape: _core.StatisticsShape,
    shape: tuple[int, ...],
    name: str,
    got: tuple[int, ...],
) -> None:
    """Refuse a statistic that does not fit a tensor of this shape."""
    src = schema.inputs[0]
    axis = channel_axis(statistics_shape)
    if axis is not None:
        wanted = (shape[axis],)
        if got != wanted:
            raise ValueError(
                f"{name} must have shape {wanted}, one value a channel of {src.label} with shape "
                f"{shape}; it has shape {got}"
            )
    elif len(got) != len(shape) or any(
        size not in (1, whole) for size, whole in zip(got, shape, strict=True)
    ):
        raise ValueError(
            f"{name} must have as many dimensions as {src.name} with shape {shape}, each of its "
            f"size or 1; it has shape {got}"
        )


def _described(name: str, value: object) -> ArrayInfo:
    if isinstance(value, ArrayInfo):
        return value
    array = as_numpy(name, value)
    return ArrayInfo(array.shape, dtype_name(array.dtype))


# ---- Memory to write to ----


def members(schema: OpSchema, all_outputs: bool, out: object) -> tuple[object, ...]:
    """Take what is given as ``out``: an array for each output that is wanted."""
    ports = schema.outputs
    if not isinstance(out, tuple | list) or len(out) != len(ports):
        names = ", ".join(port.name for port in ports)
        got = f"one of {len(out)}" if isinstance(out, tuple | list) else type(out).__name__
        raise TypeError(f"out must be a tuple ({names}), not {got}")
    rest = _only_if_asked_for(schema)
    for port, value in zip(ports, out, strict=True):
        if value is None and port.name not in rest:
            raise ValueError(f"out.{port.name} must be an array, not None")
    given = [port.name for port, value in zip(ports, out, strict=True) if value is not None]
    given_rest = [name for name in rest if name in given]
    listed, dotted = _listed(rest), _listed([f"out.{name}" for name in rest])
    if given_rest and given_rest != rest:
        raise ValueError(
            f"out must have {listed} {_together(rest)}: the op has either {len(ports)} outputs or "
            f"{'one' if len(schema.always) == 1 else len(schema.always)}"
        )
    if rest and not given_rest and all_outputs:
        missing = "are None; give arrays" if len(rest) > 1 else "is None; give an array"
        raise ValueError(f"{dotted} {missing}, or ask for {schema.ask[1]}")
    if given_rest and not all_outputs:
        raise ValueError(
            f"{dotted} would not be written with {schema.ask[1]}; give None for "
            f"{'both' if len(rest) == 2 else 'it' if len(rest) == 1 else 'all'}"
        )
    return tuple(out)


def buffers(
    schema: OpSchema,
    arrays: Sequence[Array | None],
    dense: Sequence[Array | None],
    out: Sequence[Array | None],
) -> None:
    """Refuse memory that the outputs cannot be written to.

    It must not overlap the caller's own arrays, nor lie otherwise than the dense src.
    """
    src, dense_src = schema.inputs[0].name, dense[0]
    assert dense_src is not None
    models = _Models.of(schema, _all_described(schema, arrays))
    inputs = zip(schema.inputs, arrays, strict=True)
    taken = {port.name: array for port, array in inputs if array is not None}
    for port, array in zip(schema.outputs, out, strict=True):
        if array is None:
            continue
        name = f"out.{port.label}"
        models.check(port, name, _described(name, array))
        if port.kind == "tensor" and not same_layout(array, dense_src):
            raise ValueError(
                f"{name} must lie in memory as {src} does, with strides {dense_src.strides}; it "
                f"has {array.strides}. np.empty_like({src}) makes such an array"
            )
        if port.kind == "statistic" and not is_contiguous(array):
            raise ValueError(
                f"{name} must be contiguous and aligned; its strides are {array.strides}"
            )
        if not array.flags.writeable:
            raise ValueError(f"{name} is read-only; pass an array that can be written to")
        _overlap(port, name, array, taken)
        taken[name] = array


def _overlap(port: Port, name: str, array: Array, taken: dict[str, Array]) -> None:
    cure = "give it memory of its own"
    if port.over:
        cure = f"it may be exactly {port.over}, or share no memory with any argument"
        if same_memory(array, taken[port.over]):
            taken = {other: memory for other, memory in taken.items() if other != port.over}
    for other, memory in taken.items():
        if how := overlap(array, memory):
            raise ValueError(f"{name} {how} {other}; {cure}")


# ---- Sums of parts ----


def totals(kind: type[Totals], value: object) -> Totals:
    """Take what reduce gives."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{kind._word} must be {kind.__name__}, as reduce gives, not {type(value).__name__}"
        )
    return value


def not_totals_of(schema: OpSchema, given: Totals, arrays: Sequence[Array | None]) -> None:
    """Refuse totals that have no part like these inputs, which are right together."""
    models = _Models.of(schema, _all_described(schema, arrays))
    assert models.statistic is not None
    (src_name, src), (_, statistic) = models.tensor, models.statistic
    channels = math.prod(statistic.shape)
    if given.channels != channels:
        raise ValueError(
            f"{given._word} must be of {channels} channels, as {src_name} with shape {src.shape} "
            f"has, not of {given.channels}"
        )
    count = math.prod(src.shape) // channels if channels else 0
    if given.count < count:
        raise ValueError(
            f"{given._word} must be those of all parts, added up, {src_name} among them; they are "
            f"of {given.count} elements a channel, and {src_name} has {count}"
        )


def _all_described(schema: OpSchema, arrays: Sequence[Array | None]) -> list[ArrayInfo | None]:
    return [
        None if array is None else _described(port.label, array)
        for port, array in zip(schema.inputs, arrays, strict=True)
    ]


# ---- Lists of names ----


def _only_if_asked_for(schema: OpSchema) -> list[str]:
    if not schema.always:
        return []
    return [port.name for port in schema.outputs if port.name not in schema.always]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _together(names: Sequence[Any]) -> str:
    return "both or neither" if len(names) == 2 else "all or none"
