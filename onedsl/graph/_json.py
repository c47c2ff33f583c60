"""Parsing of oneDNN's JSON format for graphs.

Error messages contain the path of the invalid value, such as ``graph[0].inputs[2].shape``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ..runtime.text import printable
from ._parts import UNKNOWN_SIZE, Attribute, GraphOp, LogicalTensor

_ROOT = "the document"


class JsonValue:
    """A value in a JSON document, and its path. The methods raise ValueError if it is invalid."""

    def __init__(self, value: Any, path: str = _ROOT) -> None:
        self.value, self.path = value, path

    @classmethod
    def parse(cls, text: str) -> JsonValue:
        """Parse a JSON document."""
        if not isinstance(text, str | bytes | bytearray):
            raise TypeError(f"text must be a string, got {type(text).__name__}")
        try:
            return cls(json.loads(text))
        except ValueError as error:
            raise ValueError(f"graph must be valid JSON: {error}") from None

    def error(self, requirement: str) -> ValueError:
        """Return the exception for this value, which does not meet the requirement."""
        text = printable(json.dumps(self.value))
        shown = text if len(text) < 60 else f"{text[:60]}..."
        return ValueError(f"{self.path} must be {requirement}, got {shown}")

    def as_type(self, kind: type | tuple[type, ...], requirement: str) -> Any:
        """Return the value if it has one of the types. A bool is not accepted as a number."""
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.error(requirement)
        texts = self.value if isinstance(self.value, str | dict) else ""
        if any("\ud800" <= c <= "\udfff" for text in texts for c in text):
            raise self.error("free of surrogates, which UTF-8 cannot express")
        return self.value

    def at(self, key: str | int) -> JsonValue:
        """Return a member of an object or an element of a list."""
        if isinstance(key, int):
            return JsonValue(self.value[key], f"{self.path}[{key}]")
        members = self.as_type(dict, "an object")
        path = key if self.path == _ROOT else f"{self.path}.{printable(key)}"
        if key not in members:
            raise ValueError(f"{path} is missing")
        return JsonValue(members[key], path)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Return a member of an object, which must be a string or an integer.

        If the member is missing, return the default, or raise ValueError if it is None.
        """
        members = self.as_type(dict, "an object")
        if default is not None and key not in members:
            return default
        return self.at(key).as_type(kind, {str: "a string", int: "an integer"}[kind])

    def items(self, what: str) -> Iterator[JsonValue]:
        """Yield the elements of a list. `what` is their name in an error message."""
        for i in range(len(self.as_type(list, f"a list of {what}"))):
            yield self.at(i)

    def number(self) -> float:
        """Return a number as a float."""
        try:
            return float(self.as_type((int, float), "a number"))
        except OverflowError:
            raise self.error("a number in the range of float32") from None

    def integers(self) -> tuple[int, ...]:
        """Return a list of integers as a tuple."""
        return tuple(item.as_type(int, "an integer") for item in self.items("integers"))


def parse_op(op: JsonValue) -> GraphOp:
    """Convert a JSON object to an op."""
    attrs = op.at("attrs")
    return GraphOp(
        op.get("id", int),
        op.get("name", str, ""),
        op.get("kind", str),
        {name: _parse_attribute(attrs.at(name)) for name in attrs.as_type(dict, "an object")},
        tuple(_parse_tensor(tensor) for tensor in op.at("inputs").items("tensors")),
        tuple(_parse_tensor(tensor) for tensor in op.at("outputs").items("tensors")),
    )


def _parse_bool(value: JsonValue) -> bool:
    if value.value not in (0, 1):  # oneDNN writes 0 and 1
        raise value.error("true or false")
    return bool(value.value)


_PARSERS: dict[str, Callable[[JsonValue], Attribute]] = {
    "string": lambda value: str(value.as_type(str, "a string")),
    "bool": _parse_bool,
    "s64": lambda value: int(value.as_type(int, "an integer")),
    "s64[]": JsonValue.integers,
    "f32": JsonValue.number,
    "f32[]": lambda value: tuple(item.number() for item in value.items("numbers")),
}
"""The function that parses the value of each type of attributes."""


def _parse_attribute(attribute: JsonValue) -> Attribute:
    kind = attribute.get("type", str)
    if kind not in _PARSERS:
        raise attribute.at("type").error(f"one of {', '.join(_PARSERS)}")
    return _PARSERS[kind](attribute.at("value"))


def _parse_tensor(tensor: JsonValue) -> LogicalTensor:
    shape = tensor.at("shape").integers()
    strides = tensor.at("stride").integers()
    return LogicalTensor(
        tensor.get("id", int),
        tensor.get("dtype", str),
        None if UNKNOWN_SIZE in shape else shape,
        None if UNKNOWN_SIZE in strides else strides,
        tensor.get("layout_type", str, "strided"),
        tensor.get("property_type", str, "undef"),
    )
