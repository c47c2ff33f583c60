"""What is peculiar to one operator class, as data: its ports' names, its types, its limits."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from .. import _core
from ..tensors.dtypes import CORE


@dataclass(frozen=True)
class Port:
    """An input or an output of an operator class: one row of its table of names."""

    name: str
    kind: Literal["tensor", "statistic"]
    """A tensor has the first input's shape, dtype and order in memory. Statistics have one shape
    and one dtype."""
    optional: bool = False
    """Whether None may be passed for this input."""
    over: str = ""
    """The input that this output may be written over, exactly."""
    document: str = ""
    """What the class's document calls it, where that is not its name."""

    @property
    def label(self) -> str:
        """The name as messages have it."""
        return f"{self.name} ({self.document})" if self.document else self.name


@dataclass(frozen=True)
class OpSchema:
    """One operator class over an operation of the core.

    The ports are in the order in which the operation has them. The first input is a tensor.
    """

    operation: _core.Operation
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    result: type[Any]
    """The NamedTuple of the outputs."""
    statistics: _core.Statistics
    types: Mapping[str, tuple[str, ...]]
    """The types that statistics may have, by the type of the tensors."""
    ranks: tuple[int, int]
    """Least and most dimensions of the tensors."""
    always: tuple[str, ...] = ()
    """The outputs of every call, where the others come only if asked for; empty if all come."""
    ask: tuple[str, str] = ("", "")
    """How a caller asks for all outputs, and how for `always`: words for messages."""
    ignored: str = ""
    """The input that the document has ignored where only `always` is asked for."""
    together: tuple[str, ...] = ()
    """Optional inputs that come all or none."""

    def reduction(self, inputs: int) -> OpSchema:
        """Give what takes the first so many inputs, and has no outputs."""
        return replace(self, inputs=self.inputs[:inputs], outputs=(), together=())

    @functools.cached_property
    def ignored_position(self) -> int:
        """Where calls pass `ignored`."""
        return [port.name for port in self.inputs].index(self.ignored)

    def core_operator(
        self,
        epsilon: float,
        statistics_shape: _core.StatisticsShape,
        numbers: Mapping[str, float] = {},
        *,
        variance_kind: _core.VarianceKind = _core.VarianceKind.variance,
        allow_requires_grad: bool = False,
    ) -> _core.Operator:
        """Make the core's operator, which has the schema's limits and none of its names."""
        return _core.Operator(
            self.operation,
            epsilon=epsilon,
            statistics=self.statistics,
            statistics_shape=statistics_shape,
            types=[(CORE[data], CORE[s]) for data, row in self.types.items() for s in row],
            ranks=self.ranks,
            variance_kind=variance_kind,
            allow_requires_grad=allow_requires_grad,
            **numbers,
        )


def channel_axis(statistics_shape: _core.StatisticsShape) -> int | None:
    """Index of the one axis that statistics keep; None where their own shape says which."""
    shapes = _core.StatisticsShape
    return {shapes.channel_last: -1, shapes.channel_second: 1}.get(statistics_shape)
