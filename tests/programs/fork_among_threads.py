"""Forks while threads compile and run changing shapes. Each child must compute and exit.

Command line: backend, number of forks.
"""

import itertools
import os
import sys
import threading
import time

import numpy as np
from processes import wait

import onedsl

backend, forks = sys.argv[1], int(sys.argv[2])
op = onedsl.BatchNormTrainingBackward(1e-5)
numbers = itertools.count(1)
calls = [0, 0]
stop = threading.Event()


def call(rows: int) -> None:
    src = np.ones((rows, 16), np.float32)
    statistics = np.ones(16, np.float32)
    gradients = op(src, src, statistics, statistics, statistics, backend=backend)
    assert gradients.diff_beta[0] == rows


def work(index: int) -> None:
    while not stop.is_set():
        call(next(numbers) % 5000 + 1)
        calls[index] += 1


threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
for thread in threads:
    thread.start()
hangs = 0
for i in range(forks):
    seen = list(calls)
    child = os.fork()
    if child == 0:
        call(6000 + i % 50)
        os._exit(0)
    status = wait(child, 30)
    hangs += status is None
    if status:
        sys.exit(f"a child ended with status {status}")
    while any(now == before for now, before in zip(calls, seen, strict=True)):
        time.sleep(0.0005)  # let the threads of the parent run
stop.set()
for thread in threads:
    thread.join()
print(f"{forks} forks, {hangs} hangs")
sys.exit(hangs > 0)
