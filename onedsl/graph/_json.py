"""oneDNN's JSON of graphs, read with words for what is wrong and where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ._parts import UNKNOWN_SIZE, Attribute, GraphOp, LogicalTensor

_ATTRIBUTE_TYPES = ("string", "bool", "s64", "s64[]", "f32", "f32[]")


class Place:
    """A value of a JSON document, and the way to it."""

    def __init__(self, value: Any, path: str) -> None:
        self.value, self.path = value, path

    def refuse(self, wanted: str) -> ValueError:
        text = json.dumps(self.value)
        shown = text if len(text) < 60 else f"{text[:60]}..."
        return ValueError(f"{self.path} is {shown}, and must be {wanted}")

    def as_a(self, kind: type | tuple[type, ...], wanted: str) -> Any:
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.refuse(wanted)
        return self.value

    def at(self, key: str | int) -> Place:
        if isinstance(key, int):
            return Place(self.value[key], f"{self.path}[{key}]")
        members = self.as_a(dict, "an object")
        path = key if self.path == "the document" else f"{self.path}.{key}"
        if key not in members:
            raise ValueError(f"{path} is missing")
        return Place(members[key], path)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        members = self.as_a(dict, "an object")
        if default is not None and key not in members:
            return default
        return self.at(key).as_a(kind, {str: "a string", int: "a whole number"}[kind])

    def items_of(self, key: str, what: str) -> Iterator[Place]:
        place = self.at(key)
        for i in range(len(place.as_a(list, f"a list of {what}"))):
            yield place.at(i)

    def number(self) -> float:
        try:
            return float(self.as_a((int, float), "a number"))
        except OverflowError:
            raise self.refuse("a number that float32 has") from None

    def integers(self) -> tuple[int, ...]:
        values = self.as_a(list, "a list of whole numbers")
        return tuple(self.at(i).as_a(int, "a whole number") for i in range(len(values)))


def read_op(place: Place) -> GraphOp:
    attrs = place.at("attrs")
    return GraphOp(
        place.get("id", int),
        place.get("name", str, ""),
        place.get("kind", str),
        {name: _read_attribute(attrs.at(name)) for name in attrs.as_a(dict, "an object")},
        tuple(_read_tensor(tensor) for tensor in place.items_of("inputs", "tensors")),
        tuple(_read_tensor(tensor) for tensor in place.items_of("outputs", "tensors")),
    )


def _read_attribute(place: Place) -> Attribute:
    kind = place.get("type", str)
    if kind not in _ATTRIBUTE_TYPES:
        raise place.at("type").refuse(f"one of {', '.join(_ATTRIBUTE_TYPES)}")
    value = place.at("value")
    if kind == "string":
        return str(value.as_a(str, "a string"))
    if kind == "bool":
        # oneDNN's own writer has 1 and 0.
        if value.value not in (0, 1):
            raise value.refuse("true or false")
        return bool(value.value)
    if kind == "s64":
        return int(value.as_a(int, "a whole number"))
    if kind == "s64[]":
        return value.integers()
    if kind == "f32":
        return value.number()
    count = len(value.as_a(list, "a list of numbers"))
    return tuple(value.at(i).number() for i in range(count))


def _read_tensor(place: Place) -> LogicalTensor:
    shape = place.at("shape").integers()
    strides = place.at("stride").integers()
    known = UNKNOWN_SIZE not in shape
    if known and any(size < 0 for size in shape):
        raise place.at("shape").refuse("sizes of 0 and more")
    steps_known = UNKNOWN_SIZE not in strides
    if known and steps_known and len(strides) != len(shape):
        raise place.at("stride").refuse(f"as many numbers as shape has: {len(shape)}")
    return LogicalTensor(
        place.get("id", int),
        place.get("dtype", str),
        shape if known else None,
        strides if steps_known else None,
        place.get("layout_type", str, "strided"),
        place.get("property_type", str, "undef"),
    )
