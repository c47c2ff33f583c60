"""Checks the memory of large results: kept, used again, bounded, and returned to the system.

Command line: the name of a check.
"""

import contextlib
import os
import re
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


def offered():
    """Return the bytes that the system may take."""
    lines = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"LazyFree:\s+(\d+) kB", lines)[1]) * 1024


def fork():
    """Fork, which returns all kept memory."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert wait(child, 60) == 0


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


def wrapped():
    """Programs that enable onedsl for each step take no memory from the system again."""
    sources = [source(7) for _ in range(8)]

    def step():
        assert onedsl.torch.enabled()
        return [result(src) for src in sources]

    onedsl.torch.disable()
    for steps in (2, 10):
        before = page_faults()
        for _ in range(steps):
            with onedsl.torch.enable():
                step()
            onedsl.torch.enable()
            step()
            onedsl.torch.disable()
    assert page_faults() - before < 200  # 36,000 if the memory is returned


def disabled():
    """The system may take kept memory, which is returned where PyTorch allocates instead."""
    src = source(20)
    before = resident()
    [result(src) for _ in range(5)]
    assert resident() - before > 90 * MB
    fork()
    assert resident() - before < 10 * MB, "a fork returns the memory"
    [result(src) for _ in range(5)]
    freed_after = result(src)
    assert offered() == 0
    onedsl.torch.disable()
    assert offered() >= 80 * MB
    del freed_after
    assert offered() >= 100 * MB
    assert resident() - before > 90 * MB
    held = [result(src) for _ in range(6)]
    assert resident() - before < 130 * MB, "PyTorch's results replace the kept memory"
    del held
    onedsl.torch.enable()
    result(src)
    assert offered() < 40 * MB, "results are kept again"


def training():
    """Steps keep no memory beside the blocks that a fork returns: no result of either library."""
    layer = torch.nn.BatchNorm1d(16)

    def steps(count):
        for dtype in (torch.float32, torch.float64) * count:  # onedsl's results, and PyTorch's
            src = source(6).to(dtype).requires_grad_()
            layer.to(dtype)(src).square().sum().backward()
        fork()
        return resident()

    before = steps(10)
    assert steps(30) - before < 80 * MB  # 180 if each step keeps one result


def evaluation():
    """PyTorch's evaluation needs no memory beside that of a training step."""
    src, running = source(8), (torch.zeros(16), torch.ones(16))
    before = resident()
    [result(src) for _ in range(20)]
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    held = [torch.native_batch_norm(src, None, ones, *running, False, 0.1, 1e-5)]
    assert resident() - before > 130 * MB, "not more than PyTorch takes"
    for _ in range(19):
        held += [torch.native_batch_norm(src, None, ones, *running, False, 0.1, 1e-5)]
    assert peak() - before < 210 * MB  # 320 with all kept memory
    del held


def little_memory():
    """Kept blocks are returned to the system if it has no other memory."""
    small, large = source(6), source(20)
    [result(small) for _ in range(8)]
    limit = address_space() - 20 * MB
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    result(large)


@contextlib.contextmanager
def no_memory(spare=MB):
    """Limit the memory of the process to a little more than it has."""
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + spare, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def fails(function, *arguments):
    """Return whether a call raises the error that functions look for to reduce the batch size."""
    try:
        function(*arguments)
    except RuntimeError as error:
        if "DefaultCPUAllocator: can't allocate memory" in str(error):
            return True
        raise
    return False


def errors():
    """The errors of all passes are PyTorch's, and the next call works."""
    pair = torch.nn.Sequential(torch.nn.BatchNorm2d(16), torch.nn.ReLU())
    compiled = torch.compile(pair, backend="onedsl")
    for layer in torch.nn.BatchNorm2d(16), onedsl.torch.BatchNormReLU2d(16), compiled:
        src = source(256).reshape(-1, 16, 64, 64).requires_grad_()
        diff = torch.ones_like(src)
        for _ in range(2):
            torch.autograd.grad(layer(src), src, diff)
        fork()
        with no_memory():
            assert fails(layer, src)
        dst = layer(src)
        with no_memory():
            assert fails(torch.autograd.grad, dst, src, diff)
        del dst
        torch.autograd.grad(layer(src), src, diff)


def search():
    """A search for a batch size that fits ends with one that trains."""
    # No convolution: without memory, oneDNN's raises another error in PyTorch.
    model = torch.nn.Sequential(*(torch.nn.BatchNorm2d(16), torch.nn.GELU()) * 6)

    def train(batch):
        for _ in range(4):
            model(torch.ones(batch, 16, 64, 64)).sum().backward()

    train(2)
    batch = 256
    with no_memory(250 * MB):
        while fails(train, batch):
            batch = batch * 3 // 4
    assert 20 < batch < 256


def refused():
    """A result for which the system has no memory does not raise the bound."""
    huge, sources = source(300), [source(megabytes) for megabytes in (4, 7, 12)]
    before = resident()
    with no_memory(200 * MB):
        assert fails(result, huge)
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
