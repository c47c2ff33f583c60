"""Process exit, forks, threads, interrupts, rejected calls, and very many calls."""

from __future__ import annotations

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
    child = helpers.run_script("free_in_finalization.py", timeout=30)
    assert (child.stdout, child.stderr) == ("finalizing: True\nfreed\n", "")


@backends
@default_and_slow(30, 150)
def test_forks_while_threads_run(backend, times):
    """Regression: oneDNN's own mutexes stayed locked in the child, in 1 of 150 forks."""
    child = helpers.run_script("fork_among_threads.py", backend, str(times))
    assert child.stdout == f"{times} forks, 0 hangs\n"


@pytest.mark.parametrize("shapes", ["1", "1000"])
def test_rejected_calls_do_not_leak(shapes):
    """Regression: oneDNN leaks about 6 KiB whenever it rejects an op."""
    child = helpers.run_script(
        "rejected_calls.py", "1000", shapes, environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}
    )
    assert int(child.stdout) < 1 << 20


def test_calls_in_little_memory():
    environment = {"OMP_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "1"}
    child = helpers.run_script("calls_in_little_memory.py", environment=environment)
    assert child.stdout == "MemoryError\n" * 2


@pytest.fixture
def passive_waiting(monkeypatch):
    """Let waiting threads sleep: these tests use more threads than cores."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")


@pytest.mark.usefixtures("passive_waiting")
@default_and_slow(100, 1000)
def test_bits_of_random_problems(times):
    """They do not depend on the number of threads, addresses, or running in place."""
    child = helpers.run_script("same_bits.py", str(times), timeout=300)
    assert child.stdout == f"{times} problems, 0 with other bits\n"


@pytest.mark.parametrize("backend", ["native", "onednn", "graph"])
@pytest.mark.usefixtures("passive_waiting")
@default_and_slow(10, 60)
def test_many_threads(backend, times):
    child = helpers.run_script("many_threads.py", backend, "16", str(times), timeout=300)
    assert child.stdout == f"{16 * times} calls, 0 with other bits\n"


def test_graphs_of_ever_new_shapes_are_kept_in_bounded_memory():
    """OneDNN holds some 90 KiB for each graph: 90 MB if all were kept."""
    child = helpers.run_script(
        "ever_new_shapes.py", "1000", environment={"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    )
    assert all(int(growth) < 30 << 20 for growth in child.stdout.split()), child.stdout


@backends
@default_and_slow(30, 100)
def test_keyboard_interrupts_during_calls(backend, times):
    child = helpers.run_script("interrupted.py", backend, str(times))
    assert child.stdout == f"{times} interrupts\n"


@pytest.mark.usefixtures("passive_waiting")
@default_and_slow(5000, 30000)
def test_calls_do_not_grow_the_process(times):
    child = helpers.run_script("flat_memory.py", str(times))
    assert int(child.stdout) < 1 << 20
