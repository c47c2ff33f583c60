"""What is timed: the batch-norm layers of common networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..tensors.dtypes import DTYPES
from ..testing import Problem
from .operations import OPERATIONS

FORMATS = ("NXC", "NCX")

NEW = " new"
"""At the end of a contender's name: the call allocates its results."""

# (N, C, *spatial), as the layers of these networks have them when they are trained.
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
class Case:
    """One layer in one type and format."""

    workload: str
    shape: tuple[int, ...]
    """(N, C, *spatial), whatever the format."""
    dtype: str
    data_format: str
    operation: str = "backward"

    @property
    def tensor_bytes(self) -> int:
        """Of one tensor of src's shape."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Of all large tensors, each once: of the backward pass src, diff_dst and diff_src."""
        operation = OPERATIONS[self.operation]
        moved = operation.tensors_moved(summed_from_cache=True)
        return operation.layers * moved * self.tensor_bytes

    @property
    def floor_bytes(self) -> int:
        """What the algorithm must move: in NXC, what is summed is read twice.

        In NCX a group of channels is summed and written while it is in the cache. Every row of NXC
        has all channels in it, so that the sums are there when all has been read.
        """
        operation = OPERATIONS[self.operation]
        in_planes = self.data_format == "NCX" and len(self.shape) > 2
        moved = operation.tensors_moved(summed_from_cache=in_planes)
        return operation.layers * moved * self.tensor_bytes

    @property
    def layer(self) -> str:
        """The shape in words."""
        return "x".join(map(str, self.shape))

    def __str__(self) -> str:
        """Name the case in one line."""
        return f"{self.operation} {self.layer} {self.dtype} {self.data_format}"


def cases(
    workloads: Mapping[str, Sequence[tuple[int, ...]]],
    dtypes: Sequence[str],
    formats: Sequence[str],
    operations: Sequence[str] = ("backward",),
) -> Iterator[Case]:
    """List the cases of some workloads, such as `WORKLOADS` has.

    A tensor of rank 2 is the same in both formats, and comes once.
    """
    for operation, workload in itertools.product(operations, workloads):
        for shape, dtype in itertools.product(workloads[workload], dtypes):
            for data_format in formats if len(shape) > 2 else formats[:1]:
                yield Case(workload, shape, dtype, data_format, operation)


def random_problem(case: Case) -> Problem:
    """Make a case's inputs, for timing alone: the statistics are not those of src."""
    number, channels, *spatial = case.shape
    shape = (number, *spatial, channels) if case.data_format == "NXC" else case.shape
    rng = np.random.default_rng(0)
    src = rng.standard_normal(shape, dtype=np.float32).astype(DTYPES[case.dtype])
    mean, variance, gamma = rng.uniform(0.5, 1.5, (3, channels)).astype(np.float32)
    return Problem(src, src[::-1].copy(), mean, variance, gamma)
