"""Batch norm of a tensor that is larger than memory, with both passes over files in parts.

`reduce` computes the sums of each part, which are added; `apply` computes each part's results from
the total. At most one part of each tensor is mapped at a time, so the memory use is bounded.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import onedsl

Tensor = npt.NDArray[np.float32]

EPSILON = 1e-5


class TensorFile:
    """A tensor in a file, mapped in parts along the batch axis."""

    def __init__(self, path: Path, shape: tuple[int, ...], part: int) -> None:
        self.shape, self._path, self._part = shape, path, part

    def parts(self, mode: Literal["r", "r+"] = "r") -> Iterator[Tensor]:
        """Yield each part as a mapped array; it is unmapped with its last reference."""
        row = 4 * math.prod(self.shape[1:])
        for first in range(0, self.shape[0], self._part):
            shape = (min(self._part, self.shape[0] - first), *self.shape[1:])
            yield np.memmap(self._path, np.float32, mode, first * row, shape)

    def create(self) -> TensorFile:
        """Create the file, filled with zeros."""
        with self._path.open("wb") as file:
            file.truncate(4 * math.prod(self.shape))
        return self

    def fill(self, rng: np.random.Generator) -> TensorFile:
        """Create the file, filled with random numbers."""
        for part in self.create().parts("r+"):
            part[...] = rng.standard_normal(part.shape, dtype=np.float32)
        return self


def statistics(src: TensorFile) -> tuple[Tensor, Tensor]:
    """Compute mean and variance of the whole tensor."""
    op = onedsl.BatchNormForwardTraining(EPSILON)
    moments = sum(op.reduce(part) for part in src.parts())
    assert isinstance(moments, onedsl.BatchNormMoments)
    return moments.mean.astype(np.float32), (moments.m2 / moments.count).astype(np.float32)


def gradient(
    src: TensorFile,
    diff_dst: TensorFile,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor,
    diff_src: TensorFile,
) -> tuple[Tensor, Tensor]:
    """Write diff_src to its file, and return diff_gamma and diff_beta."""
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    pairs = zip(src.parts(), diff_dst.parts(), strict=True)
    sums = sum(op.reduce(x, d, mean, variance) for x, d in pairs)
    assert isinstance(sums, onedsl.BatchNormSums)
    totals = np.empty_like(mean), np.empty_like(mean)
    parts = zip(src.parts(), diff_dst.parts(), diff_src.parts("r+"), strict=True)
    for x, d, result in parts:
        op.apply(sums, x, d, mean, variance, gamma, out=(result, *totals))
    return totals


def peak_bytes() -> int:
    """Return the largest memory use of this process so far, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: Any = None) -> None:
    """Create the files, compute the gradients, and print the memory use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512, help="in the batch")
    parser.add_argument("--part", type=int, default=16, help="images at a time")
    parser.add_argument("--folder", type=Path, help="folder of the files (a temporary one)")
    options = parser.parse_args(arguments)
    shape = (options.images, 56, 56, 64)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:

        def file(name: str) -> TensorFile:
            return TensorFile(Path(folder) / name, shape, options.part)

        rng = np.random.default_rng(0)
        src, diff_dst = file("src").fill(rng), file("diff_dst").fill(rng)
        before = peak_bytes()
        mean, variance = statistics(src)
        gamma = np.ones_like(mean)
        _, diff_beta = gradient(src, diff_dst, mean, variance, gamma, file("diff_src").create())
    mebibyte = 2**20
    print(f"three tensors of {4 * math.prod(shape) / mebibyte:.1f} MiB")
    print(f"peak memory: {before / mebibyte:.1f} MiB before, {peak_bytes() / mebibyte:.1f} after")
    print(f"diff_beta begins with {diff_beta[:3]}")


if __name__ == "__main__":
    main()
