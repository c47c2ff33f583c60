"""Checks `onedsl.keep_memory` in a process of its own. Command line: the name of a check.

Each prints the result of the call, and some whether 20 steps have page faults. A step allocates and
frees arrays of 8 and 24 MB, for which NumPy uses huge pages.
"""

import os
import resource
import sys
import threading

import numpy as np
from processes import resident

import onedsl

MB = 1 << 20


def step():
    arrays = [np.ones(megabytes * MB // 8) for megabytes in (8, 24, 8, 3, 3)]
    return [array * 2 for array in arrays]


def faults(steps=20):
    """Return the page faults of steps after the first two: the least of three measurements.

    The kernel adds some when it moves pages.
    """
    step(), step()
    counts = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(steps):
            step()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts)


def as_it_is():
    print(faults() > 1000)


def kept():
    print(onedsl.keep_memory(), faults() < 100)


def threads():
    print(onedsl.keep_memory())
    counts = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: counts.append(faults()))
        thread.start()
        thread.join()
    print(max(counts) < 100)


def forked():
    print(onedsl.keep_memory(), flush=True)
    if (child := os.fork()) == 0:
        print(faults() < 100, flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def returned():
    print(onedsl.keep_memory())
    step()
    before = resident()
    print(onedsl.keep_memory(False), before - resident() > 60 * MB, faults() > 1000)


def large():
    """Arrays of more than 32 MB go back to the system, also beside small ones that are kept."""
    print(onedsl.keep_memory())
    before, kept = resident(), []
    for _ in range(20):
        array = np.ones(40 * MB // 8)
        kept.append(array[:50].copy())
        del array
    print(resident() - before < 20 * MB)


def logged():
    with onedsl.verbose():
        print(onedsl.keep_memory())


globals()[sys.argv[1]]()
