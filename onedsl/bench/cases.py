"""Benchmark cases: batch-norm layers of common networks, and the operations timed on them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import (
    BatchNormForwardTraining,
    BatchNormReLUForwardTraining,
    BatchNormReLUTrainingBackward,
    BatchNormTrainingBackward,
)
from ..operators._schema import OpSchema, Port
from ..tensors.dtypes import DTYPES

FORMATS = ("NXC", "NCX")

# Shapes (N, C, *spatial) of the networks' layers in training.
WORKLOADS: dict[str, tuple[tuple[int, ...], ...]] = {
    "small": ((1, 8, 4, 4),),
    "ResNet-50": (
        (32, 64, 112, 112),
        (32, 64, 56, 56),
        (32, 256, 56, 56),
        (32, 128, 28, 28),
        (32, 512, 28, 28),
        (32, 1024, 14, 14),
        (32, 512, 7, 7),
        (32, 2048, 7, 7),
    ),
    "MobileNetV2": (
        (32, 32, 112, 112),
        (32, 24, 56, 56),
        (32, 144, 56, 56),
        (32, 192, 28, 28),
        (32, 576, 14, 14),
        (32, 960, 7, 7),
    ),
    "transformer": ((4096, 512), (16384, 768), (32, 768, 128), (16, 1024, 512)),
    "images": ((32, 3, 224, 224),),
}


@dataclass(frozen=True)
class Operation:
    """An operator, its optional arguments, and the large tensors that it reads and writes.

    Attributes
    ----------
    operator : type
    both_passes : tuple of str
        Large tensors that both the `reduce` pass and the `apply` pass access.
    options : tuple of str
        Optional arguments of the operator's ``compile`` that are set.
    only_pytorch : tuple of str
        Large tensors that only PyTorch's separate kernels read.
    layers : int
        Number of calls in a chain. Each call reads the result of the previous one.
    """

    operator: type[Any]
    both_passes: tuple[str, ...]
    options: tuple[str, ...] = ()
    only_pytorch: tuple[str, ...] = ()
    layers: int = 1

    @property
    def _input_ports(self) -> list[Port]:
        schema: OpSchema = self.operator._schema
        return [
            port
            for port in schema.inputs
            if port.kind == "statistic" or not port.optional or port.name in self.options
        ]

    @property
    def _output_ports(self) -> list[Port]:
        first, *others = self.operator._schema.outputs
        residual = "residual" in self.options
        return [first, *(port for port in others if port.kind == "statistic" or residual)]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of a call."""
        return tuple(port.name for port in self._input_ports)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs of a call."""
        return tuple(port.name for port in self._output_ports)

    @property
    def large(self) -> tuple[str, ...]:
        """Names of the inputs and outputs of src's shape."""
        ports = (*self._input_ports, *self._output_ports)
        return tuple(port.name for port in ports if port.kind == "tensor")

    @property
    def large_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of src's shape."""
        return tuple(name for name in self.outputs if name in self.large)


_BACKWARD = Operation(BatchNormTrainingBackward, both_passes=("src", "diff_dst"))

OPERATIONS = {
    "backward": _BACKWARD,
    "chain": dataclasses.replace(_BACKWARD, layers=4),
    "forward": Operation(BatchNormForwardTraining, both_passes=("src",)),
    "relu-forward": Operation(BatchNormReLUForwardTraining, both_passes=("src",)),
    "relu-backward": Operation(
        BatchNormReLUTrainingBackward, both_passes=("src", "diff_dst"), only_pytorch=("dst",)
    ),
    "add-relu-forward": Operation(
        BatchNormReLUForwardTraining, both_passes=("src",), options=("residual",)
    ),
    "add-relu-backward": Operation(
        BatchNormReLUTrainingBackward,
        both_passes=("src", "diff_residual"),
        options=("dst", "residual"),
    ),
}


@dataclass(frozen=True)
class Case:
    """An operation on one layer in one dtype and data format.

    Attributes
    ----------
    workload : str
        Name of the network or of the shape.
    shape : tuple of int
        N, C and the spatial sizes, in either data format.
    dtype, data_format, operation : str
    """

    workload: str
    shape: tuple[int, ...]
    dtype: str
    data_format: str
    operation: str = "backward"

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of src in the data format."""
        number, channels, *spatial = self.shape
        return (number, *spatial, channels) if self.data_format == "NXC" else self.shape

    @property
    def tensor_bytes(self) -> int:
        """Size of a tensor of src's shape."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Size of all large tensors, each counted once."""
        operation = OPERATIONS[self.operation]
        return operation.layers * len(operation.large) * self.tensor_bytes

    @property
    def floor_bytes(self) -> int:
        """Minimum number of bytes that the algorithm moves between memory and the CPU.

        In NCX, a group of channels stays in cache between the `reduce` and the `apply` pass. In
        NXC, each row holds all channels, so tensors that both passes access count twice.
        """
        operation = OPERATIONS[self.operation]
        in_cache = self.data_format == "NCX" and len(self.shape) > 2
        second = 0 if in_cache else operation.layers * len(operation.both_passes)
        return self.bytes + second * self.tensor_bytes

    def floor_in_triads(self, non_temporal: bool) -> float:
        """Return the minimum time of the algorithm, in units of the time of a triad.

        The triad reads two tensors of src's size and writes one, with the same kind of stores. An
        ordinary store first reads the cache line, so a written tensor counts twice.
        """
        operation = OPERATIONS[self.operation]
        tensors = self.floor_bytes / self.tensor_bytes
        if non_temporal:
            return tensors / 3
        return (tensors + operation.layers * len(operation.large_outputs)) / 4

    @property
    def layer(self) -> str:
        """The shape as text, such as ``32x64x56x56``."""
        return "x".join(map(str, self.shape))

    def __str__(self) -> str:
        return f"{self.operation} {self.layer} {self.dtype} {self.data_format}"


def cases(
    workloads: Mapping[str, Sequence[tuple[int, ...]]],
    dtypes: Sequence[str],
    formats: Sequence[str],
    operations: Sequence[str] = ("backward",),
) -> Iterator[Case]:
    """Yield the cases of workloads such as `WORKLOADS`.

    Tensors of rank 2 are the same in both formats, so they have a case for the first format only.
    """
    for operation, workload in itertools.product(operations, workloads):
        for shape, dtype in itertools.product(workloads[workload], dtypes):
            for data_format in formats if len(shape) > 2 else formats[:1]:
                yield Case(workload, shape, dtype, data_format, operation)
