"""Options, the member arrays of ``out``, and the exceptions for calls that the C++ core rejects."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import _core
from ..tensors import messages
from ..tensors.arrays import Array, as_numpy
from ..tensors.dtypes import short_name
from ..tensors.ports import Port
from ..tensors.spec import DataFormat, TensorSpec
from .schema import OpSchema
from .totals import BatchNormTotals

_logger = logging.getLogger("onedsl")


@dataclass(frozen=True)
class ArrayInfo:
    """Shape and dtype of an array, without its memory."""

    shape: tuple[int, ...]
    dtype: str
    """The short name."""


# ---- Options ----


def parse_outputs(value: object, schema: OpSchema) -> bool:
    """Return whether the option ``outputs`` requests all outputs."""
    try:
        return schema.choices[value]
    except (KeyError, TypeError):
        raise ValueError(
            f'outputs must be "all" or "{schema.single_output}", got {value!r}. '
            f"{_listed([p.name for p in schema.outputs if p.optional])} are computed together"
        ) from None


def check_bool(name: str, value: object) -> bool:
    """Return a bool, or raise TypeError, for example if a user passes an array."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return value


def check_spec_type(spec: object) -> TensorSpec:
    """Return the spec, or raise TypeError."""
    if not isinstance(spec, TensorSpec):
        example = "onedsl.TensorSpec((8, 40, 40, 96))"
        got = type(spec).__name__
        raise TypeError(f"spec must be a TensorSpec, got {got}. For example {example}")
    return spec


# ---- Rejected calls ----


class RejectedCall:
    """A rejected call: its arrays, and the exception. The method of a reason has its name."""

    _texts: ClassVar[Mapping[str, str]] = {
        "absent": "must be given",
        "activation": 'must be None unless activation is "relu", or "leaky_relu" with a positive '
        "negative_slope: other derivatives do not follow from it",
        "memory": "must have memory for all of its elements",
        "read_only": messages.READ_ONLY,
    }

    def __init__(
        self,
        schema: OpSchema,
        data_format: DataFormat | None,
        rejection: _core.Rejection,
        inputs: Sequence[Any],
        out: object = None,
        totals: BatchNormTotals | None = None,
    ) -> None:
        """Collect the arrays. Inputs may be `ArrayInfo`, and None if absent.

        Without a data format, the statistics have src's rank. An `out` that is no tuple is not
        validated yet: the rejection is of an input.
        """
        self._schema, self._data_format, self._totals = schema, data_format, totals
        self.rejection, self._src = rejection, schema.inputs[0].name
        self._inputs = {
            port.name: value
            for port, value in zip(schema.inputs, inputs, strict=False)
            if value is not None or not port.optional
        }
        outputs = zip(schema.outputs, out if isinstance(out, tuple) else (), strict=False)
        self._arrays = self._inputs | {f"out.{port.name}": value for port, value in outputs}
        self._kinds = {port.name: port.kind for port in schema.inputs}
        self._kinds |= {f"out.{port.name}": port.kind for port in schema.outputs}

    def error(self, argument: str = "") -> Exception:
        """Return the exception. `argument` replaces the name of the port."""
        reason = self.rejection.reason
        if reason == "all_or_none":
            argument = _listed(self._schema.all_or_none)
        if reason == "one_of":
            argument = _listed(self._schema.alternatives, " or ")
        if reason.startswith("totals") and self._totals is not None:
            argument = self._totals._argument
        port = self.rejection.port
        describe = getattr(self, f"_{reason}", None)
        # The others are repaired, unless another thread changes an array meanwhile.
        text = self._texts.get(reason, "must not change during the call")
        name = argument or port or "out"
        return messages.error(reason, f"{name} {describe(port) if describe else text}")

    def _array(self, name: str) -> Array:
        """Return a NumPy view of an array."""
        return as_numpy(name, self._arrays[name], is_output=name.startswith("out."))

    def _info(self, name: str) -> ArrayInfo:
        """Return shape and dtype of an array."""
        value = self._arrays[name]
        if isinstance(value, ArrayInfo):
            return value
        array = self._array(name)
        return ArrayInfo(array.shape, short_name(array.dtype))

    def _like(self, name: str) -> tuple[str, ArrayInfo]:
        """Return name, shape and dtype of the first array of the kind."""
        first = next(n for n in self._inputs if self._kinds[n] == self._kinds[name])
        return first, self._info(first)

    def _all_or_none(self, name: str) -> str:
        return f"must be given together, {name} is missing"

    def _alternatives(self, name: str) -> str:
        return f"must be None if {self.rejection.other} is given, which it replaces"

    def _one_of(self, name: str) -> str:
        return f"must be given with {self._schema.options[0]}"

    def _rank(self, name: str) -> str:
        shape, (minimum, maximum) = self._info(name).shape, self._schema.ranks
        is_low = len(shape) < minimum
        limit, number = ("at least", minimum) if is_low else ("at most", maximum)
        plural = "s" * (number > 1)
        return f"must have {limit} {number} dimension{plural}, got {len(shape)}: shape {shape}"

    def _type(self, name: str) -> str:
        types = _listed(list(self._schema.types), " or ")
        return f"must be {types}, got {self._info(name).dtype}"

    def _size(self, name: str) -> str:
        limit, shape = _core.MAX_TENSOR_BYTES, self._info(name).shape
        return f"must have at most {limit} bytes, where a size of 0 counts as 1, got shape {shape}"

    def _statistics_type(self, name: str) -> str:
        data = self._info(self._src).dtype
        types = " or ".join(self._schema.types[data])
        return f"must be {types} where {self._src} is {data}, got {self._info(name).dtype}"

    def _statistics_shape(self, name: str) -> str:
        src, shape, got = self._src, self._info(self._src).shape, self._info(name).shape
        if self._data_format is not None:
            expected = self._data_format.channels_of(shape)
            per_channel = f"one value per channel of {src} with shape {shape}"
            return f"must have shape {expected}, {per_channel}, got {got}"
        if len(got) != len(shape):
            own = shape.index(got[0]) if len(got) == 1 and got[0] in shape else 1
            example = tuple(size if i == own else 1 for i, size in enumerate(shape))
            return f"must have {len(shape)} dimensions like {src}, for example {example}, got {got}"
        pairs = enumerate(zip(got, shape, strict=True))
        axis, (size, whole) = next((i, pair) for i, pair in pairs if pair[0] not in (1, pair[1]))
        return f"must have size 1, or {whole} like {src}, on axis {axis}, got {size}: shape {got}"

    def _like_type(self, name: str) -> str:
        like, expected = self._like(name)
        return messages.dtype(expected.dtype, like, self._info(name).dtype)

    def _like_shape(self, name: str) -> str:
        like, expected = self._like(name)
        return messages.shape(expected.shape, like, self._info(name).shape)

    def _not_aligned(self, name: str) -> str:
        return messages.aligned(self._array(name))

    def _layout(self, name: str) -> str:
        src, array = self._src, self._array(name)
        if self._kinds[name] == "channel vector":
            return f"must be contiguous, got strides {array.strides} in bytes"
        expected = f"the strides (in bytes) {self._array(src).strides} of {src}"
        steps = [step for step, n in zip(array.strides, array.shape, strict=True) if n > 1]
        if any(step % array.itemsize for step in steps):
            expected = f"strides (in bytes) that are multiples of {array.itemsize}"
        return f"must have {expected}, got {array.strides}. empty_like({src}) returns such an array"

    def _overlap(self, name: str) -> str:
        if self.rejection.other == name:
            return "must not overlap itself"
        in_place = next((p.in_place for p in self._schema.outputs if name == f"out.{p.name}"), "")
        return messages.separate(self.rejection.other, in_place)

    def _totals_channels(self, name: str) -> str:
        assert self._totals is not None
        shape = self._info(name).shape
        channels = math.prod(self._info("mean").shape)
        got = self._totals.channels
        return f"must have {channels} channels for {name} with shape {shape}, got {got}"

    def _totals_count(self, name: str) -> str:
        assert self._totals is not None
        assert self._data_format is not None
        shape = self._info(name).shape
        number = math.prod(shape[axis] for axis in self._data_format.summed_axes(len(shape)))
        return (
            f"must include the {number} elements per channel of {name}, got only "
            f"{self._totals.count} elements. Pass the sum of the results of reduce for all parts"
        )


# ---- Memory of the outputs ----


def parse_out(schema: OpSchema, all_outputs: bool, out: object) -> tuple[object, ...]:
    """Return ``out`` as NumPy arrays: one for each requested output, None for the others."""
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
    return tuple(
        None if value is None else as_numpy(f"out.{port.name}", value, is_output=True)
        for port, value in zip(ports, out, strict=True)
    )


# ---- Copies ----


def dense_copies(
    names: Sequence[str], ports: Sequence[Port], inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the inputs, and dense copies of those named: of tensors in src's memory layout."""
    copied = list(inputs)
    for index, port in enumerate(ports):
        if port.name not in names:
            continue
        array = as_numpy(port.name, inputs[index])
        _logger.info("%s copied: shape %s, strides %s", port.name, array.shape, array.strides)
        is_tensor = port.kind == "tensor"
        like = as_numpy(ports[0].name, copied[0]) if is_tensor else array
        copied[index] = np.empty_like(like, order="K" if is_tensor else "C")
        copied[index][...] = array
    return tuple(copied)


# ---- Lists of names ----


def _listed(names: Sequence[str], word: str = " and ") -> str:
    return word.join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
