"""Exits while daemon threads make calls. Command line: backend."""

import sys
import threading
import time

import numpy as np

import onedsl

backend = sys.argv[1]
op = onedsl.BatchNormTrainingBackward(1e-5)
src = np.ones((64, 32), np.float32)
statistics = np.ones(32, np.float32)
calls = [0] * 4


def work(index: int) -> None:
    while True:
        op(src, src, statistics, statistics, statistics, backend=backend)
        calls[index] += 1


for i in range(len(calls)):
    threading.Thread(target=work, args=(i,), daemon=True).start()
while min(calls) < 3:
    time.sleep(0.001)
print("ends")
