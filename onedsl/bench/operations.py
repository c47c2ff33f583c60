"""What is timed: onedsl's operators, and the large tensors that each must move."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .. import (
    BatchNormForwardTraining,
    BatchNormReLUForwardTraining,
    BatchNormReLUTrainingBackward,
    BatchNormTrainingBackward,
)
from ..operators._schema import OpSchema, Port


@dataclass(frozen=True)
class Operation:
    """An operator, and which of its large tensors a call has."""

    operator: type[Any]
    summed: tuple[str, ...]
    """Inputs that are read to be summed, and then again: the sums must be there first."""
    options: tuple[str, ...] = ()
    """Of the operator's ``compile``: optional tensors that are given, and ``"residual"``."""
    needed_by_others: tuple[str, ...] = ()
    """Large tensors that PyTorch's separate kernels read beside these."""
    layers: int = 1
    """So many calls in a chain: each reads what the one before wrote."""

    @property
    def _schema(self) -> OpSchema:
        schema: OpSchema = self.operator._schema
        return schema

    @property
    def _given(self) -> list[Port]:
        return [
            port
            for port in self._schema.inputs
            if port.kind == "statistic" or not port.optional or port.name in self.options
        ]

    @property
    def _computed(self) -> list[Port]:
        first, *others = self._schema.outputs
        asked = "residual" in self.options
        return [first, *(port for port in others if port.kind == "statistic" or asked)]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what is given."""
        return tuple(port.name for port in self._given)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what is computed. The operator's last are left out if not asked for."""
        return tuple(port.name for port in self._computed)

    @property
    def large(self) -> tuple[str, ...]:
        """The names of all inputs and outputs of src's shape."""
        ports = (*self._given, *self._computed)
        return tuple(port.name for port in ports if port.kind == "tensor")

    def tensors_moved(self, *, summed_from_cache: bool) -> int:
        """Count the large tensors that one layer moves.

        Where a group of channels fits the last cache, what was summed is found there when it is
        read again.
        """
        return len(self.large) + (0 if summed_from_cache else len(self.summed))


_BACKWARD = Operation(BatchNormTrainingBackward, summed=("src", "diff_dst"))

OPERATIONS = {
    "backward": _BACKWARD,
    "chain": dataclasses.replace(_BACKWARD, layers=4),
    "forward": Operation(BatchNormForwardTraining, summed=("src",)),
    "relu-forward": Operation(BatchNormReLUForwardTraining, summed=("src",)),
    "relu-backward": Operation(
        BatchNormReLUTrainingBackward, summed=("src", "diff_dst"), needed_by_others=("dst",)
    ),
    "add-relu-forward": Operation(
        BatchNormReLUForwardTraining, summed=("src",), options=("residual",)
    ),
    "add-relu-backward": Operation(
        BatchNormReLUTrainingBackward,
        summed=("src", "diff_dst", "dst"),
        options=("dst", "residual"),
    ),
}
