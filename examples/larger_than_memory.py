"""Batch norm of a tensor that is larger than memory: both passes go over files, part by part.

The first pass makes the sums of each part, which add up to those of the whole; the second one has
them given, and does for each part what is done for the whole. No more than a part of each tensor
is mapped at a time, so that memory stays bounded whatever the files' size is.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import onedsl

Tensor = npt.NDArray[np.float32]

EPSILON = 1e-5


class TensorFile:
    """A tensor in a file, of which a part of the batch is mapped at a time."""

    def __init__(self, path: Path, shape: tuple[int, ...], part: int) -> None:
        self.shape, self._path, self._part = shape, path, part

    def parts(self, mode: Literal["r", "r+"] = "r") -> Iterator[Tensor]:
        """Map one part after the other; a part is unmapped when nobody holds it any more."""
        row = 4 * math.prod(self.shape[1:])
        for first in range(0, self.shape[0], self._part):
            shape = (min(self._part, self.shape[0] - first), *self.shape[1:])
            yield np.memmap(self._path, np.float32, mode, first * row, shape)

    def create(self) -> TensorFile:
        """Make the file, of zeros."""
        with self._path.open("wb") as file:
            file.truncate(4 * math.prod(self.shape))
        return self

    def fill(self, rng: np.random.Generator) -> TensorFile:
        """Make the file, of random numbers."""
        for part in self.create().parts("r+"):
            part[...] = rng.standard_normal(part.shape, dtype=np.float32)
        return self


def statistics(src: TensorFile) -> tuple[Tensor, Tensor]:
    """Give mean and variance of a whole tensor."""
    op = onedsl.BatchNormForwardTraining(EPSILON)
    moments = sum(op.reduce(part) for part in src.parts())
    assert isinstance(moments, onedsl.BatchNormMoments), "the tensor has parts"
    return moments.mean.astype(np.float32), (moments.m2 / moments.count).astype(np.float32)


def gradient(
    src: TensorFile,
    diff_dst: TensorFile,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor,
    diff_src: TensorFile,
) -> tuple[Tensor, Tensor]:
    """Write diff_src, and give diff_gamma and diff_beta."""
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    pairs = zip(src.parts(), diff_dst.parts(), strict=True)
    sums = sum(op.reduce(x, d, mean, variance) for x, d in pairs)
    assert isinstance(sums, onedsl.BatchNormSums), "the tensors have parts"
    sums_of_all = np.empty_like(mean), np.empty_like(mean)
    parts = zip(src.parts(), diff_dst.parts(), diff_src.parts("r+"), strict=True)
    for x, d, result in parts:
        op.apply(sums, x, d, mean, variance, gamma, out=(result, *sums_of_all))
    return sums_of_all


def peak_bytes() -> int:
    """Memory that this process has had at most, mapped files among it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: Any = None) -> None:
    """Make the files, go over them, and say how much memory that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512, help="in the batch")
    parser.add_argument("--part", type=int, default=16, help="images at a time")
    parser.add_argument("--folder", type=Path, help="where the files go (a temporary one)")
    options = parser.parse_args(arguments)
    shape = (options.images, 56, 56, 64)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:

        def file(name: str) -> TensorFile:
            return TensorFile(Path(folder) / name, shape, options.part)

        rng = np.random.default_rng(0)
        src, diff_dst = file("src").fill(rng), file("diff_dst").fill(rng)
        before, start = peak_bytes(), time.perf_counter()
        mean, variance = statistics(src)
        gamma = np.ones_like(mean)
        _, diff_beta = gradient(src, diff_dst, mean, variance, gamma, file("diff_src").create())
        seconds = time.perf_counter() - start
    mebibyte = 2**20
    print(f"three tensors of {4 * math.prod(shape) / mebibyte:.1f} MiB, {seconds:.2f} seconds")
    print(f"peak memory: {before / mebibyte:.1f} MiB before, {peak_bytes() / mebibyte:.1f} after")
    print(f"diff_beta begins with {diff_beta[:3]}")


if __name__ == "__main__":
    main()
