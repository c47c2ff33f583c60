"""Runs one operator on many threads while others change the number of OpenMP's threads.

    PYTHONPATH=tests python tests/programs/many_threads.py native 16 10000

Command line: backend, or "graph" for a compiled graph; number of threads; calls of each.
Every call must compute the same bits.
"""

import contextlib
import sys
import threading

import threadpoolctl

import onedsl
from onedsl import testing

backend, threads, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
problem = testing.random_problem((20, 3, 5, 64))
op = onedsl.BatchNormTrainingBackward(1e-5)
graph = op.graph(onedsl.TensorSpec.of(problem.src)).compile()


def bits() -> list[bytes]:
    if backend == "graph":
        return [a.tobytes() for a in graph(**problem._asdict()).values()]
    return [a.tobytes() for a in op(*problem, backend=backend)]


expected = bits()
different, done = [], []
stop = threading.Event()


def work() -> None:
    for _ in range(calls):
        if bits() != expected:
            different.append(1)
    done.append(1)


def change_by_threadpoolctl() -> None:
    while not stop.is_set():
        for count in (1, 2, 3, 4):
            with threadpoolctl.threadpool_limits(count):
                op(*problem, backend="native")


def change_by_torch() -> None:
    with contextlib.suppress(ImportError):
        import torch

        while not stop.is_set():
            for count in (1, 2, 3, 4):
                torch.set_num_threads(count)
                op(*problem, backend="native")


changers = [threading.Thread(target=f) for f in (change_by_threadpoolctl, change_by_torch)]
workers = [threading.Thread(target=work) for _ in range(threads)]
for thread in [*changers, *workers]:
    thread.start()
for thread in workers:
    thread.join()
stop.set()
for thread in changers:
    thread.join()
print(f"{len(done) * calls} calls, {len(different)} with other bits")
sys.exit(len(different) > 0)
