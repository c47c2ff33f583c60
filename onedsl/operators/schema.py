"""Operator schemas: port names, types and limits of each operator class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..tensors.dtypes import MAX_RANK, STATS_DTYPES
from ..tensors.ports import Port, signature


@dataclass(frozen=True)
class OpSchema:
    """An operator class: an operation of the C++ core, with the names and limits of one document.

    The core defines the ports and their order. The first input is a tensor.
    """

    operation: str
    result: type[Any]
    """The NamedTuple of the outputs."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    all_or_none: tuple[str, ...]
    """Optional inputs of which all or none must be given."""
    alternatives: tuple[str, ...]
    """Optional inputs of which at most one must be given."""
    options: tuple[str, str]
    """The options that request all outputs and only the required ones, for error messages."""
    types: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: STATS_DTYPES)
    """The dtypes that statistics may have, by the dtype of the tensors."""
    ranks: tuple[int, int] = (2, MAX_RANK)
    """Minimum and maximum number of dimensions of the tensors."""
    ignored: str = ""
    """The input that is ignored unless all outputs are requested."""
    single_output: str = field(init=False)
    """The output that a call can compute without the others, or "" if there is none."""
    choices: Mapping[object, bool] = field(init=False)
    """Whether all outputs are computed, by the values of the option ``outputs``.

    A class without that option passes a bool.
    """

    def __post_init__(self) -> None:
        # Not by cached_property: in Python 3.10 and 3.11 it locks, and a forked child could wait.
        required = [port.name for port in self.outputs if not port.optional]
        single = required[0] if len(required) == 1 else ""
        choices = {"all": True, single: False} if single else {True: True, False: False}
        object.__setattr__(self, "single_output", single)
        object.__setattr__(self, "choices", choices)

    @classmethod
    def of(
        cls,
        operation: str,
        result: type[Any],
        *,
        names: Mapping[str, str] = {},
        required_inputs: tuple[str, ...] = (),
        **limits: Any,
    ) -> OpSchema:
        """Return the schema of an operation of the core.

        `names` maps the core's port names to the class's where they differ. `required_inputs`
        are optional in the core only. The other arguments are fields.
        """
        own = signature(operation)

        def renamed(port: Port) -> Port:
            name = names.get(port.name, port.name)
            in_place = names.get(port.in_place, port.in_place)
            optional = port.optional and name not in required_inputs
            return replace(port, name=name, in_place=in_place, optional=optional)

        outputs = tuple(map(renamed, own.outputs))
        first = next(port.name for port in outputs if not port.optional)
        return cls(
            operation,
            result,
            tuple(map(renamed, own.inputs)),
            outputs,
            tuple(names.get(name, name) for name in own.all_or_none),
            own.alternatives,
            **{"options": ('outputs="all"', f'outputs="{first}"'), **limits},
        )
