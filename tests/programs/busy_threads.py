"""Prints the share of the threads' time that calls use, by the CPU time of each thread.

    OMP_NUM_THREADS=12 OMP_WAIT_POLICY=passive python tests/programs/busy_threads.py dense|strided

Each line has a call's mean CPU time of a thread over that of the busiest one. Any number of cores
shows it: threads that wait use no CPU time.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

import onedsl
from onedsl import _core

threads = _core.max_threads()
# Large, because the thread that calls also wakes the others.
DENSE = {
    "NXC": [(32, 56, 56, 256), (16, 112, 112, 64), (32, 56, 56, 144), (32, 28, 28, 512)],
    "NCX": [(32, 256, 56, 56), (16, 64, 112, 112), (32, 144, 56, 56), (32, 24, 112, 112)],
}
STRIDED = [((32, 64, 28, 28), "bf16"), ((32, 96, 56, 56), "f32"), ((32, 128, 56, 56), "f32")]


def cpu_times() -> dict[str, int]:
    """Return the nanoseconds that each thread of the process has run."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks}


def share(shape: tuple[int, ...], data_format: str, dtype: str, strided: bool) -> float:
    """Return the share of a gradient, with diff_dst a slice of channels if strided."""
    op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
    src = np.ones(shape, ml_dtypes.bfloat16 if dtype == "bf16" else np.float32)
    diff_dst = src
    if strided:
        diff_dst = np.ones((shape[0], 2 * shape[1], *shape[2:]), src.dtype)[:, : shape[1]]
    ones = np.ones(shape[-1] if data_format == "NXC" else shape[1], np.float32)
    out = op(src, diff_dst, ones, ones)
    shares = []
    for _ in range(3):  # a virtual CPU's stolen time may count as a thread's
        before = cpu_times()
        for _ in range(6):
            op(src, diff_dst, ones, ones, out=out)
        now = cpu_times()
        times = [now[task] - before[task] for task in before]
        shares.append(sum(times) / max(times) / threads)
    return max(shares)


if sys.argv[1] == "strided":
    shares = {call: share(call[0], "NCX", call[1], True) for call in STRIDED}
else:
    shares = {(s, f): share(s, f, "f32", False) for f, shapes in DENSE.items() for s in shapes}
for call, value in shares.items():
    print(f"{value:.2f}", *call)
