"""Forks as threads end that have called oneDNN. Each child must call it, and exit.

Command line: number of forks.
"""

import os
import sys
import threading
import time

import numpy as np
from processes import wait

import onedsl

op = onedsl.BatchNormTrainingBackward(1e-5)
forks = int(sys.argv[1])


def compute(sizes: range) -> None:
    ones = np.ones(16, np.float32)
    for rows in sizes:
        src = np.ones((rows, 16), np.float32)
        assert op(src, src, ones, ones, ones, backend="onednn").diff_beta[0] == rows


hangs = 0
for i in range(forks):
    threads = [threading.Thread(target=compute, args=(range(1, 251),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # returns before a thread destroys oneDNN's objects of it
    time.sleep(i % 10 * 50e-6)
    child = os.fork()
    if child == 0:
        compute(range(251, 252))
        os._exit(0)
    status = wait(child, 20)
    hangs += status is None
    if status:
        sys.exit(f"a child ended with status {status}")
print(f"{forks} forks, {hangs} hangs")
sys.exit(hangs > 0)
