"""What is timed: onedsl's operators, and the large tensors that each must move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import (
    BatchNormForwardTraining,
    BatchNormReLUForwardTraining,
    BatchNormReLUTrainingBackward,
    BatchNormTrainingBackward,
)

VECTORS = ("mean", "variance", "gamma", "beta")
FORWARD = ("dst", "running_mean", "running_variance", "batch_mean", "batch_variance")
BACKWARD = ("diff_src", "diff_gamma", "diff_beta")


@dataclass(frozen=True)
class Operation:
    """An operator, and the names of its large tensors."""

    operator: type[Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """The last are left out where they are not asked for."""
    summed: tuple[str, ...]
    """Inputs that are read to be summed, and then again: the sums must be there first."""
    large: tuple[str, ...]
    """All inputs and outputs of src's shape."""
    options: tuple[str, ...] = ()
    """Of the operator's ``compile``."""
    needed_by_others: tuple[str, ...] = ()
    """Large tensors that PyTorch's separate kernels read beside these."""
    layers: int = 1
    """So many calls in a chain: each reads what the one before wrote."""

    def tensors_moved(self, *, summed_from_cache: bool) -> int:
        """Count the large tensors that one layer moves.

        Where a group of channels fits the last cache, what was summed is found there when it is
        read again.
        """
        return len(self.large) + (0 if summed_from_cache else len(self.summed))


OPERATIONS = {
    "backward": Operation(
        BatchNormTrainingBackward,
        ("src", "diff_dst", "mean", "variance", "gamma"),
        BACKWARD,
        summed=("src", "diff_dst"),
        large=("src", "diff_dst", "diff_src"),
    ),
    "chain": Operation(
        BatchNormTrainingBackward,
        ("src", "diff_dst", "mean", "variance", "gamma"),
        BACKWARD,
        summed=("src", "diff_dst"),
        large=("src", "diff_dst", "diff_src"),
        layers=4,
    ),
    "forward": Operation(
        BatchNormForwardTraining,
        ("src", *VECTORS),
        FORWARD,
        summed=("src",),
        large=("src", "dst"),
    ),
    "relu-forward": Operation(
        BatchNormReLUForwardTraining,
        ("src", *VECTORS),
        FORWARD,
        summed=("src",),
        large=("src", "dst"),
    ),
    "relu-backward": Operation(
        BatchNormReLUTrainingBackward,
        ("src", "diff_dst", *VECTORS),
        BACKWARD,
        summed=("src", "diff_dst"),
        large=("src", "diff_dst", "diff_src"),
        needed_by_others=("dst",),
    ),
    "add-relu-forward": Operation(
        BatchNormReLUForwardTraining,
        ("src", *VECTORS, "residual"),
        FORWARD,
        summed=("src",),
        large=("src", "residual", "dst"),
        options=("residual",),
    ),
    "add-relu-backward": Operation(
        BatchNormReLUTrainingBackward,
        ("src", "diff_dst", *VECTORS, "dst"),
        (*BACKWARD, "diff_residual"),
        summed=("src", "diff_dst", "dst"),
        large=("src", "diff_dst", "dst", "diff_src", "diff_residual"),
        options=("dst", "residual"),
    ),
}
