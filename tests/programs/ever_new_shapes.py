"""Runs calls of ever new shapes on oneDNN, on threads and in a forked child.

Command line: number of calls. Prints the growth in bytes of the process after the first half, and
of the child.
"""

import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from processes import resident

import onedsl

CALLS = int(sys.argv[1])
op = onedsl.BatchNormTrainingBackward(1e-5)
memory = np.ones((4 * CALLS, 16), np.float32)
statistics = np.ones(16, np.float32)
rows = itertools.count(1)


def call(_: object) -> None:
    src = memory[: next(rows)]
    got = op(src, src, statistics, statistics, statistics, backend="onednn")
    assert got.diff_beta[0] == len(src)


def growth_in_calls() -> int:
    before = resident()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(call, range(CALLS)))
    return resident() - before


growth_in_calls()
print(growth_in_calls(), flush=True)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
print(growth_in_calls(), flush=True)
os._exit(0)
