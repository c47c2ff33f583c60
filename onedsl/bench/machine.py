"""What the machine is, and whether it is busy with something else."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from .. import capabilities

# CPUs that other programs may take: OpenMP's threads wait for the slowest of them.
TOLERATED_CPUS = 0.25


def machine() -> str:
    """Name versions, instruction sets and threads in one line."""
    found = capabilities()
    return (
        f"onedsl {found.onedsl_version} ({found.native_isa}), oneDNN {found.onednn_version} "
        f"({found.onednn_isa}), {found.num_threads} threads"
    )


def cpu(field: str) -> str:
    """Give what the system says of the first CPU, as its model name or flags; empty if nothing."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(rf"^{field}\s*: (.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


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
