"""Calls what oneDNN refuses on a lesser CPU, and falls back, in a loop; prints the bytes gained.

Command line: number of calls.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

import onedsl


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


op = onedsl.BatchNormTrainingBackward(1e-5)
src = np.ones((64, 32), ml_dtypes.bfloat16)
statistics = np.ones(32, np.float32)


def call() -> None:
    try:
        op(src, src, statistics, statistics, backend="onednn")
    except onedsl.UnsupportedError:
        op(src, src, statistics, statistics, backend="native")
    else:
        sys.exit("this must be refused")


for _ in range(200):
    call()
before = resident()
for _ in range(int(sys.argv[1])):
    call()
print(resident() - before)
