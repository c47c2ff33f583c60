"""Process exit, forks, threads, interrupts, and very many calls."""

import helpers
import pytest
from helpers import backends


def default_and_slow(default: int, slow: int):
    """Run a test with few repetitions by default, and with many as a slow test."""
    return pytest.mark.parametrize("times", [default, pytest.param(slow, marks=pytest.mark.slow)])


@backends
@default_and_slow(2, 8)
def test_process_exit_with_daemon_threads(backend, times):
    """Regression: Python unwinds such threads, which met a noexcept destructor."""
    for _ in range(times):
        child = helpers.run_script("exit_with_daemon_threads.py", backend)
        assert (child.stdout, child.stderr) == ("ends\n", "")


def test_exported_array_is_freed_during_finalization():
    """Regression: the deleter acquired the GIL, which ends or blocks the thread."""
    child = helpers.run_script("free_in_finalization.py")
    assert (child.stdout, child.stderr) == ("finalizing: True\nfreed\n", "")


@pytest.mark.parametrize("kind", ["native", "verbose", "torch enable", "torch report"])
@default_and_slow(10, 150)
def test_forks_while_threads_run(kind, times):
    """Regression: mutexes stayed locked in the child."""
    *needs, kind = kind.split()
    for module in needs:
        pytest.importorskip(module)
    child = helpers.run_script("fork_among_threads.py", kind, str(times))
    assert child.stdout == f"{times} forks, 0 hangs\n"


def test_calls_in_little_memory():
    environment = {"OMP_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "1"}
    child = helpers.run_script("calls_in_little_memory.py", environment=environment)
    assert child.stdout == "MemoryError\n" * 2


@pytest.mark.parametrize("backend", ["native", "onednn", "graph"])
@default_and_slow(5, 60)
def test_many_threads(backend, times):
    arguments = backend, "16", str(times)
    child = helpers.run_script("many_threads.py", *arguments, environment=helpers.PASSIVE)
    assert child.stdout == f"{16 * times} calls, 0 with other bits\n"


@backends
@default_and_slow(30, 100)
def test_keyboard_interrupts_during_calls(backend, times):
    child = helpers.run_script("interrupted.py", backend, str(times))
    assert child.stdout == f"{times} interrupts\n"


# oneDNN holds some 90 KiB for each graph.
FEW_KEPT = {"DNNL_GRAPH_COMPILED_PARTITION_CACHE_CAPACITY": "8"}  # by oneDNN itself
FEW_KEPT |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8", "OMP_NUM_THREADS": "1"}
FEW_KEPT |= {"MALLOC_ARENA_MAX": "1"}
GROWTH = [
    ("new 100", 5 << 20, FEW_KEPT),
    ("all 2000", 1 << 20, helpers.PASSIVE),
    pytest.param("all 30000", 1 << 20, helpers.PASSIVE, marks=pytest.mark.slow),
    pytest.param("forked 300", 15 << 20, FEW_KEPT, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("arguments", "limit", "environment"), GROWTH)
def test_calls_do_not_grow_the_process(arguments, limit, environment):
    child = helpers.run_script("memory_growth.py", *arguments.split(), environment=environment)
    growths = list(map(int, child.stdout.split()))
    assert len(growths) == (2 if "forked" in arguments else 1)
    assert max(growths) < limit, growths
