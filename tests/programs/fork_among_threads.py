"""Forks while threads compute or change settings. Each child must do the same, and exit.

Command line: what the threads do, "native" or a key of WORK; number of forks.
"""

import itertools
import os
import sys
import threading
import time

import numpy as np
from processes import wait

import onedsl

kind, forks = sys.argv[1], int(sys.argv[2])
op = onedsl.BatchNormTrainingBackward(1e-5)
numbers = itertools.count(1)
calls = [0, 0]
stop = threading.Event()


def compute(rows: int) -> None:
    src = np.ones((rows, 16), np.float32)
    statistics = np.ones(16, np.float32)
    gradients = op(src, src, statistics, statistics, statistics)
    assert gradients.diff_beta[0] == rows


def log(rows: int) -> None:
    with onedsl.verbose():
        pass


def switch(rows: int) -> None:
    with onedsl.torch.enable():
        onedsl.torch.disable()


def train(rows: int) -> None:
    layer = torch.nn.BatchNorm1d(4)
    with onedsl.torch.report(layer) as report:
        layer(torch.ones(rows % 50 + 2, 4, requires_grad=True)).square().sum().backward()
    assert report.calls()["(model)", "gradient"]["onedsl eager"] == 1


WORK = {"verbose": log, "enable": switch, "report": train}
call = WORK.get(kind, compute)
if kind in ("enable", "report"):
    import torch

    import onedsl.torch

    torch.set_num_threads(1)  # PyTorch's own threads do not survive a fork
    onedsl.torch.enable()


def work(index: int) -> None:
    while not stop.is_set():
        call(next(numbers) % 5000 + 1)
        calls[index] += 1


# The first call of PyTorch 2.15 imports modules. Python's child of a fork during another thread's
# import waits for that import for ever.
call(1)
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
