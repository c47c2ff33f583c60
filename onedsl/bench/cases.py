"""Benchmark cases: batch-norm layers of common networks, and the operations timed on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from .. import (
    BatchNormActForwardTraining,
    BatchNormActTrainingBackward,
    BatchNormForwardTraining,
    BatchNormTrainingBackward,
)
from ..tensors.dtypes import DTYPES

FORMATS = ("NXC", "NCX")
MIN_BYTES = 1 << 20
"""Size of src below which the overhead of a call dominates: the floor has no meaning there."""

Shape = tuple[int, ...]

# Shapes of the networks' layers in training, with the channels last.
_WORKLOADS = {
    "small": "1x4x4x8",
    "resnet50": "32x112x112x64 32x56x56x64 32x56x56x256 32x28x28x128 32x28x28x512 32x14x14x1024 "
    "32x7x7x512 32x7x7x2048",
    "mobilenetv2": "32x112x112x32 32x56x56x24 32x56x56x144 32x28x28x192 32x14x14x576 32x7x7x960",
    "transformer": "4096x512 16384x768 32x128x768 16x512x1024",
    "images": "32x224x224x3",
}
WORKLOADS: dict[str, tuple[Shape, ...]] = {
    name: tuple(tuple(map(int, shape.split("x"))) for shape in shapes.split())
    for name, shapes in _WORKLOADS.items()
}


class TimedOperator(NamedTuple):
    """An operator and the tensors that it reads and writes."""

    operator: Callable[..., Any]
    inputs: tuple[str, ...]  # arguments of src's shape
    written: int = 1  # number of results of src's shape
    options: Mapping[str, bool] = {}  # further arguments of a call


_RELU_FORWARD = partial(BatchNormActForwardTraining, activation="relu")
_RELU_BACKWARD = partial(BatchNormActTrainingBackward, activation="relu")
_GRADIENT = ("src", "diff_dst")  # the tensors that both passes, `reduce` and `apply`, read

OPERATIONS = {
    "backward": TimedOperator(BatchNormTrainingBackward, _GRADIENT),
    "forward": TimedOperator(BatchNormForwardTraining, ("src",)),
    "relu-forward": TimedOperator(_RELU_FORWARD, ("src",)),
    "relu-backward": TimedOperator(_RELU_BACKWARD, _GRADIENT),
    "add-relu-forward": TimedOperator(_RELU_FORWARD, ("src", "residual")),
    "add-relu-backward": TimedOperator(
        _RELU_BACKWARD, (*_GRADIENT, "dst"), 2, {"diff_residual": True}
    ),
}


@dataclass(frozen=True)
class Case:
    """An operation on one layer in one dtype and data format."""

    workload: str
    """Name of the network or of the shape."""
    shape: Shape
    """N, the spatial sizes and C, in either data format."""
    dtype: str
    data_format: str
    operation: str = "backward"
    stats_dtype: str = "f32"

    def __post_init__(self) -> None:
        known = {"dtype": DTYPES, "data_format": FORMATS, "operation": OPERATIONS}
        for name, values in (known | {"stats_dtype": DTYPES}).items():
            if (value := getattr(self, name)) not in values:
                raise ValueError(f"{name} must be one of {', '.join(values)}, got {value!r}")

    @property
    def tensor_shape(self) -> Shape:
        """Shape of src in the data format."""
        number, *spatial, channels = self.shape
        return self.shape if self.data_format == "NXC" else (number, channels, *spatial)

    @property
    def tensor_bytes(self) -> int:
        """Size of a tensor of src's shape."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def floor_tensors(self) -> int:
        """Minimum number of tensors that the algorithm moves between memory and the CPU.

        In NCX, a group of channels stays in cache between the `reduce` and the `apply` pass. In
        NXC, each row holds all channels, so tensors that both passes access count twice.
        """
        operation = OPERATIONS[self.operation]
        in_cache = self.data_format == "NCX" and len(self.shape) > 2
        again = 0 if in_cache else len({*_GRADIENT} & {*operation.inputs})
        return len(operation.inputs) + operation.written + again

    def floor_in_triads(self, non_temporal: bool) -> float:
        """Return the minimum time of the algorithm, in units of the time of a triad.

        Both use one kind of stores. The triad reads two tensors of src's size and writes one. An
        ordinary store first reads the cache line, so a written tensor counts twice.
        """
        written = OPERATIONS[self.operation].written
        return self.floor_tensors / 3 if non_temporal else (self.floor_tensors + written) / 4

    @property
    def layer(self) -> str:
        """The shape as text, such as ``32x56x56x64``."""
        return "x".join(map(str, self.shape))

    def __str__(self) -> str:
        return f"{self.operation} {self.layer} {self.dtype} {self.data_format}"


def layers(
    workloads: Mapping[str, Sequence[Shape]],
    dtypes: Sequence[str],
    formats: Sequence[str],
    operations: Sequence[str] = ("backward",),
) -> Iterator[list[Case]]:
    """Yield the cases of each operation, layer and dtype: one case for each data format.

    Tensors of rank 2 are the same in both formats, so they have a case for the first format only.
    """
    named = [(name, shape) for name, shapes in workloads.items() for shape in shapes]
    for operation, (workload, shape), dtype in itertools.product(operations, named, dtypes):
        chosen = formats if len(shape) > 2 else formats[:1]
        yield [Case(workload, shape, dtype, name, operation) for name in chosen]
