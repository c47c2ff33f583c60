"""Valid calls that all doors can make: operators x dtypes x formats x activations x problems."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_type_hints

import helpers
import numpy as np
from fuzz.targets import TARGETS, Target
from helpers import EPSILON

import onedsl
from cases.activations import ACTIVATIONS, Activation
from cases.faults import FAULTS
from onedsl import testing
from onedsl.tensors.ports import Port, signature

MOMENTUM = 0.75

Array = np.ndarray[Any, Any]


def _in_another_order(array: Array) -> Array:
    return helpers.in_order(array, tuple(reversed(range(array.ndim))))


def _with_gaps(array: Array) -> Array:
    return np.repeat(array, 2, -1)[..., ::2]


def _at_another_address(array: Array) -> Array:
    shifted = np.empty(array.size + 3, array.dtype)[3:].reshape(array.shape)
    shifted[...] = array
    return shifted


class Problem(NamedTuple):
    """The sizes of the axes, and the memory layout of the tensors."""

    batch: int
    channels: int
    spatial: tuple[int, ...] = ()
    in_layout: Callable[[Array], Array] = np.array


# Channels, or the elements between them, fill vectors of each instruction set, with a remainder.
PROBLEMS = {
    "rank 2": Problem(9, 37),
    "rank 4": Problem(6, 13, (4, 5)),
    "rank 5 in another order": Problem(5, 21, (2, 3, 2), _in_another_order),
    "rank 3 with gaps": Problem(6, 19, (17,), _with_gaps),
}

# About 32 elements per channel. Each has another remainder of the channels in a vector.
RANKS = {
    "rank 2, 33 rows": Problem(33, 17),
    "rank 2, 1 row": Problem(1, 7, (33,)),
    "rank 3": Problem(2, 8, (33,)),
    "rank 4, 16 channels": Problem(2, 16, (7, 5)),
    "rank 5": Problem(2, 3, (3, 2, 5)),
    "rank 6": Problem(2, 64, (3, 1, 2, 5)),
    "rank 7": Problem(2, 5, (2, 2, 1, 3, 2)),
    "rank 8": Problem(2, 24, (2, 1, 2, 3, 1, 2)),
}

EMPTY = {
    "no rows": Problem(0, 3),
    "no rows of 5": Problem(0, 3, (5,)),
    "no columns": Problem(2, 3, (0,)),
    "no columns of 4x5": Problem(2, 3, (0, 4, 5)),
    "no channels": Problem(4, 0),
    "nothing": Problem(0, 0, (0, 0)),
}

# Each pass has work for several threads.
LARGE = {"large": Problem(12, 24, (40, 41))}

MEMORIES = {
    "rank 4 at another address": Problem(6, 13, (4, 5), _at_another_address),
    "rank 4 with gaps": Problem(6, 13, (4, 5), _with_gaps),
    "rank 4 read-only": Problem(6, 13, (4, 5), helpers.read_only),
}
"""The same numbers as "rank 4", elsewhere."""

SIZES = {**PROBLEMS, **RANKS, **EMPTY, **LARGE, **MEMORIES}

OMITTED: dict[str, frozenset[str]] = {
    "all": frozenset({"dst"}),
    "no residual": frozenset({"dst", "residual"}),
    "no parameters": frozenset({"dst", "residual", "gamma", "beta"}),
    "residual alone": frozenset({"dst", "gamma", "beta"}),
    "dst": frozenset({"residual"}),
    "dst alone": frozenset({"residual", "gamma", "beta"}),
}
"""The inputs that a call omits."""


@dataclass(frozen=True)
class Call:
    """A call of an operator, which is valid unless it has a fault."""

    target: Target
    dtype: str
    stats: str
    activation: Activation | None
    data_format: str
    problem: str
    given: str
    requested: str = ""
    """"all" or "fewer" outputs, or those of a call without such an option."""
    out: str = ""
    """"given" for arrays that the call writes to, "in place" if inputs are among them."""
    fault: str = ""
    """What is invalid, a key of FAULTS."""

    def __str__(self) -> str:
        options = *(self.given, self.requested, self.out, self.fault), self.problem
        name = f"{self.target.cls.__name__}({self.attributes})"
        return ", ".join(filter(None, [name, self.dtype, self.stats, *options]))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the operator."""
        attributes: dict[str, Any] = {"epsilon": EPSILON}
        attributes |= {} if self.target.broadcast else {"data_format": self.data_format}
        attributes |= {"momentum": MOMENTUM} if self.is_forward else {}
        attributes |= self.activation.attributes if self.activation else {}
        return attributes | (FAULTS[self.fault].attributes if self.fault else {})

    @property
    def options(self) -> dict[str, Any]:
        """The option that requests outputs."""
        requested = (self.fault and FAULTS[self.fault].requested) or self.requested
        if not requested:
            return {}
        name, *values = self.target.option or ("", None, None)
        return {name: values[requested == "fewer"]}

    def omits(self, port: str) -> bool:
        """Return whether the call omits an input, by oneDNN's name."""
        return port in OMITTED[self.given]

    @property
    def is_forward(self) -> bool:
        """Whether the operator is a forward pass."""
        return "momentum" in self.target.attributes

    @property
    def core_inputs(self) -> tuple[Port, ...]:
        """The ports of the inputs, with oneDNN's names."""
        return signature(self.target.schema.operation).inputs

    @property
    def values(self) -> dict[str, Any]:
        """The inputs by oneDNN's names, statistics as vectors, None for omitted ones."""
        values = dict(_values_of(replace(self, requested="", out="", fault="")))
        return FAULTS[self.fault].change(self, values) if self.fault else values

    @property
    def inputs(self) -> list[Any]:
        """The inputs, in the order of the operator's arguments."""
        return _inputs_of(self, self.values)

    @property
    def operator(self) -> Any:
        """The operator."""
        return self.target.cls(**self.attributes)

    @property
    def expected(self) -> Any:
        """The results by the reference."""
        has_ignored = self.requested == "fewer" and self.target.schema.ignored
        return _reference_of(replace(self, requested="fewer" if has_ignored else "", out=""))

    @property
    def expected_of_batch(self) -> Any:
        """The gradients by the reference, with src's mean and variance in float64."""
        return gradients_of_batch(self, self.values)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the reference's results."""
        return _fields_of(self.target.reference)

    @property
    def has_optional_outputs(self) -> bool:
        """Whether the call requests the optional outputs, too."""
        if self.requested:
            return self.requested == "all"
        return not (self.target.schema.alternatives and self.omits("residual"))

    @property
    def results(self) -> set[str]:
        """The names of the requested results in the reference."""
        ports = zip(self.fields, self.target.schema.outputs, strict=True)
        return {name for name, port in ports if self.has_optional_outputs or not port.optional}

    def in_shape(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return results whose statistics are vectors in the shapes of the operator's results."""
        shape = (-1,) if self.target.broadcast is False else self.inputs[2].shape
        return {name: a.reshape(shape) if a.ndim == 1 else a for name, a in results.items()}

    def named(self, result: Any) -> dict[str, Any]:
        """Return the arrays of an operator's result by their names in the reference."""
        pairs = zip(self.fields, result, strict=True)
        return {name: array for name, array in pairs if array is not None}


def bytes_of(values: dict[str, Any]) -> dict[str, bytes]:
    """Return the bytes of arrays."""
    return {name: a.tobytes() for name, a in values.items() if isinstance(a, np.ndarray)}


def gradients_of_batch(call: Call, values: dict[str, Any]) -> Any:
    """Return the gradients by the reference. Batch statistics are those of src, in float64."""
    if call.target.broadcast:
        return call.target.reference(*_inputs_of(call, values), **call.attributes)
    src = values["src"].astype(np.float64)
    axes = onedsl.DataFormat(call.data_format).summed_axes(src.ndim)
    statistics = {"mean": src.mean(axes), "variance": src.var(axes)} if src.size else {}
    return call.target.reference(*_inputs_of(call, values | statistics), **call.attributes)


@functools.cache
def _fields_of(reference: Callable[..., Any]) -> tuple[str, ...]:
    fields: tuple[str, ...] = get_type_hints(reference)["return"]._fields
    return fields


@functools.lru_cache(maxsize=64)
def _random_values(problem: str, dtype: str, stats: str, data_format: str) -> dict[str, Any]:
    """Return dense inputs of gradients, the same for all operators."""
    batch, channels, spatial, _ = SIZES[problem]
    shape = helpers.shape_of(data_format, batch, channels, spatial)
    random = testing.random_problem(shape, dtype, stats, data_format=data_format)
    values: dict[str, Any] = helpers.values_of(random)
    values["residual"] = np.roll(random.diff_dst, 1, 0)
    if random.src.size:  # of the right sign for a ReLU or a LeakyReLU
        options = {"epsilon": EPSILON, "data_format": data_format}
        linear = testing.batch_norm(random.src, random.gamma, values["beta"], **options)
        values["dst"] = np.maximum(linear, 0).astype(random.src.dtype)
    return values


@functools.lru_cache(maxsize=64)
def _values_of(call: Call) -> dict[str, Any]:
    values = dict(_random_values(call.problem, call.dtype, call.stats, call.data_format))
    in_layout = SIZES[call.problem].in_layout
    if call.is_forward:  # running statistics
        values |= {"mean": values["mean"] / 2, "variance": values["variance"] * 2}
    if not values["src"].size:  # only running statistics show, unchanged
        for name in ("mean", "variance", "gamma", "beta"):
            is_running = call.is_forward and name in ("mean", "variance")
            values[name] = np.full_like(values[name], 3 if is_running else np.nan)
    omitted = OMITTED[call.given] & {port.name for port in call.core_inputs if port.optional}
    return {
        port.name: None
        if port.name in omitted
        else in_layout(values[port.name])
        if port.kind == "tensor"
        else values[port.name]
        for port in call.core_inputs
    }


def _inputs_of(call: Call, values: dict[str, Any]) -> list[Any]:
    if not call.target.broadcast:
        return list(values.values())
    axis = onedsl.DataFormat(call.data_format).channel_axis
    rank = len(SIZES[call.problem].spatial) + 2
    shape = [-1 if i == axis % rank else 1 for i in range(rank)]
    ports = zip(call.core_inputs, values.values(), strict=True)
    return [
        array.reshape(shape) if port.kind == "channel vector" and array is not None else array
        for port, array in ports
    ]


@functools.lru_cache(maxsize=64)
def _reference_of(call: Call) -> Any:
    ports, ignored = zip(call.target.schema.inputs, call.inputs, strict=True), ""
    if call.requested == "fewer":
        ignored = call.target.schema.ignored
    inputs = [None if port.name == ignored else array for port, array in ports]
    return call.target.reference(*inputs, **call.attributes)


def _follows_from_dst(activation: Activation | None) -> bool:
    return activation is not None and activation.follows_from_dst


def _given(target: Target, activation: Activation | None) -> list[str]:
    """Return the keys of OMITTED with which the calls of an operator differ."""
    optional = frozenset(port.name for port in target.schema.inputs if port.optional)
    found = {optional & OMITTED[given]: given for given in reversed(OMITTED)}
    return [
        given
        for omitted, given in reversed(found.items())
        if "dst" not in optional - omitted or _follows_from_dst(activation)
    ]


def calls_of(activations: Iterable[Activation], problems: Iterable[str]) -> list[Call]:
    """Return the calls of all operators, the activation alone for those that have one."""
    return [
        Call(target, dtype, stats, activation, data_format, problem, given)
        for target in TARGETS
        for dtype, row in target.schema.types.items()
        for stats in row
        for activation in (activations if "activation" in target.attributes else [None])
        for data_format in helpers.FORMATS
        for problem in problems
        for given in _given(target, activation)
    ]


CALLS = calls_of(ACTIVATIONS, PROBLEMS)
