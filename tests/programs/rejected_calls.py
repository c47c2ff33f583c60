"""Runs calls that oneDNN rejects, and falls back, in a loop; prints the growth in bytes.

Command line: number of calls, number of different shapes.
"""

import sys

import ml_dtypes
import numpy as np
from processes import resident

import onedsl

op = onedsl.BatchNormTrainingBackward(1e-5)
calls, shapes = map(int, sys.argv[1:])
memory = np.ones((shapes, 32), ml_dtypes.bfloat16)
statistics = np.ones(32, np.float32)


def call(i: int) -> None:
    src = memory[: i % shapes + 1]
    try:
        op(src, src, statistics, statistics, backend="onednn")
    except onedsl.OneDNNError:
        op(src, src, statistics, statistics, backend="native")
    else:
        sys.exit("this must be rejected")


for i in range(max(200, shapes)):
    call(i)
before = resident()
for i in range(calls):
    call(i)
print(resident() - before)
