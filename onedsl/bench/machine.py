"""What the machine is, what its memory gives, and whether it is busy with something else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core, capabilities

Array = npt.NDArray[Any]
Triad = tuple[Array, Array, Array]

# CPUs that other programs may take: OpenMP's threads wait for the slowest of them.
TOLERATED_CPUS = 0.25


def machine() -> str:
    """Name versions, instruction sets and threads in one line."""
    found = capabilities()
    return (
        f"onedsl {found.onedsl_version} ({found.native_isa}), oneDNN {found.onednn_version} "
        f"({found.onednn_isa}), {found.num_threads} threads"
    )


def triad_arrays() -> Triad:
    """Make the triad's vectors, far larger than the last cache and aligned."""
    size = max(4 * _core.last_cache_bytes(), 64 << 20)
    out, a, b = (np.ones(size // 4 + 16, np.float32) for _ in range(3))

    def aligned(array: Array) -> Array:
        skip = -array.ctypes.data % 64 // 4
        return array[skip : skip + size // 4]

    return aligned(out), aligned(a), aligned(b)


class Watch:
    """Sees whether other programs take CPUs from the moment it is made."""

    def __init__(self) -> None:
        self._begin, self._others = time.perf_counter(), _cpu_seconds_of_others()

    def disturbed(self, num_threads: int) -> bool:
        """Tell whether they left fewer than the number of threads."""
        elapsed = time.perf_counter() - self._begin
        taken = (_cpu_seconds_of_others() - self._others) / elapsed
        return num_threads + taken > (os.cpu_count() or 1) + TOLERATED_CPUS


def _cpu_seconds_of_others() -> float:
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()
