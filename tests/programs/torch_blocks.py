"""Checks the memory of large results: kept, used again, bounded, and returned to the system.

Command line: the name of a check.
"""

import os
import resource
import sys
import threading
from pathlib import Path

import torch
from processes import address_space, peak, resident, wait

import onedsl.torch

MB = 1 << 20
ones = torch.ones(16)


def source(megabytes, value=1):
    return torch.full((megabytes * 1024, 16, 16), float(value))


def result(src):
    return torch.native_batch_norm(src, None, ones, None, None, True, 0.1, 1e-5)[0]


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def used_again():
    """Results of a step are in the memory of those of the step before, whatever their order."""
    sources = [source(megabytes) for megabytes in (5, 6, 7, 12)]
    first, second = ({t.data_ptr() for t in list(map(result, sources * 6))} for _ in range(2))
    assert len(first) == 24
    assert first == second
    assert all(address % (2 * MB) == 0 for address in first)
    before = page_faults()
    for _ in range(20):
        results = [result(src) for src in sources * 6]
        while results:
            results.pop(len(results) // 2)
        sources.reverse()
    assert page_faults() - before < 2000  # 3,800 for a new result of 15 MB
    larger, smaller = result(source(17)), result(source(16))
    closest = smaller.data_ptr()
    del larger, smaller
    assert result(source(16)).data_ptr() == closest


def bounded():
    """Of other sizes, too, little memory is kept beside what was in use at once, for a while."""
    sources = [source(megabytes) for megabytes in (4, 9, 17, 30)]
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident()
    for src, count in zip(sources, (60, 26, 14, 8), strict=True):
        [result(src) for _ in range(count)]
    assert 230 * MB < peak() - before < 285 * MB
    small = source(1)
    for calls, least, most in (1050, 200, 285), (1050, 0, 40):  # 32 MB in any case
        for _ in range(calls):
            result(small)
        assert least * MB < resident() - before < most * MB


def few_at_a_time():
    """A step with few results at a time, of many sizes, takes no memory from the system again."""
    sources = [source(megabytes) for megabytes in (1, 2, 3, 4, 5, 6)]
    for steps in (2, 20):
        before = page_faults()
        for _ in range(steps):
            for src in sources:
                result(src)
    assert page_faults() - before < 200  # 15,000 if an eighth is kept beside what is in use


def disabled():
    src = source(20)
    before = resident()
    [result(src) for _ in range(5)]
    assert resident() - before > 90 * MB
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert wait(child, 60) == 0
    assert resident() - before < 10 * MB, "a fork returns the memory, too"
    [result(src) for _ in range(5)]
    freed_after = result(src)
    onedsl.torch.disable()
    del freed_after
    assert resident() - before < 10 * MB


def little_memory():
    """Kept blocks are returned to the system if it has no other memory."""
    small, large = source(6), source(20)
    [result(small) for _ in range(8)]
    limit = address_space() - 20 * MB
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    result(large)


def refused():
    """A result for which the system has no memory does not raise the bound."""
    huge, sources = source(300), [source(megabytes) for megabytes in (4, 7, 12)]
    before = resident()
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + 200 * MB, resource.RLIM_INFINITY))
    try:
        result(huge)
    except RuntimeError:
        pass
    else:
        raise AssertionError
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for src, count in zip(sources, (12, 7, 4), strict=True):  # 48 MB each
        [result(src) for _ in range(count)]
    assert resident() - before < 100 * MB  # 48 in use at once, and 32


def threads():
    """Results of several threads do not overlap, freed on any thread and while forking."""
    stop = threading.Event()
    shared = []

    def work(number):
        src = source(4, number)
        while not stop.is_set():
            kept = [result(src).fill_(number) for _ in range(3)]
            assert all(bool((t == number).all()) for t in kept)
            shared.append(kept.pop())  # often freed by another thread
            del shared[:-4]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    failures = []
    threading.excepthook = failures.append
    for worker in workers:
        worker.start()
    src = source(4)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            kept = [result(src) for _ in range(4)]
            os._exit(len({t.data_ptr() for t in kept}) != 4)
        assert wait(child, 60) == 0
    stop.set()
    for worker in workers:
        worker.join()
    assert not failures, failures


def failing():
    """A result that PyTorch fails to create is freed once, whether PyTorch frees it or not."""
    src = source(5)
    first = result(src).data_ptr()
    for when in "before", "after":
        os.environ["FAILS"] = when
        for _ in range(5):
            try:
                result(src)
            except RuntimeError:
                continue
            raise AssertionError
        del os.environ["FAILS"]
        results = [result(src) for _ in range(3)]
        assert first in {t.data_ptr() for t in results}
        assert len({t.data_ptr() for t in results}) == 3
        del results


def process_exit():
    """Results are freed until the process ends."""
    sys.kept = [result(source(4)) for _ in range(5)]
    sys.cycle = [sys.kept]
    sys.cycle.append(sys.cycle)


torch.set_num_threads(1)  # more would only wait for the other programs of the machine
onedsl.torch.enable()
globals()[sys.argv[1]]()
print("done")
