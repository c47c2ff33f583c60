"""The ports of the core's operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from .. import _core


@dataclass(frozen=True)
class Port:
    """An input or an output of an operation."""

    name: str
    kind: Literal["tensor", "channel vector"] = "tensor"
    """Tensors have shape, dtype and strides of the first input, channel vectors those of mean."""
    optional: bool = False
    """Whether a call may omit this input, or does not always compute this output."""
    in_place: str = ""
    """The input whose memory this output may use."""


class Signature(NamedTuple):
    """The ports of an operation, in the order in which calls pass them."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    all_or_none: tuple[str, ...] = ()
    """Optional inputs that a call passes together or not at all."""
    alternatives: tuple[str, ...] = ()
    """Optional inputs of which a call passes one at most."""
    name: str = ""
    """oneDNN's name of the op or ops."""


def signature(operation: str) -> Signature:
    """Return the ports of an operation, which the core declares."""
    inputs, outputs, *others = _core.signatures()[operation]
    ports = (tuple(Port(*port) for port in side) for side in (inputs, outputs))
    return Signature(*ports, *others)  # type: ignore[arg-type]
