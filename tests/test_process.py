"""What a process goes through: its end, forks, threads, interrupts, refusals, very many calls."""

from __future__ import annotations

import helpers
import pytest

PROGRAMS = helpers.TESTS / "programs"
both = pytest.mark.parametrize("backend", ["native", "onednn"])


@both
def test_daemon_threads_do_not_abort_the_end(backend):
    """Regression: Python ends such threads by unwinding them, and met a noexcept destructor."""
    for _ in range(8):
        child = helpers.run_script(PROGRAMS / "exit_with_daemon_threads.py", backend)
        assert (child.returncode, child.stdout, child.stderr) == (0, "ends\n", "")


@both
def test_forks_among_threads_do_not_hang(backend):
    """Regression: oneDNN's own mutexes stayed locked in the child, in 1 of 150 forks."""
    child = helpers.run_script(PROGRAMS / "fork_among_threads.py", backend, "150")
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout == "150 forks, 0 hangs\n"


@pytest.mark.parametrize("shapes", ["1", "1000"])
def test_refusals_do_not_leak(shapes):
    """Regression: oneDNN leaks some 6 KiB whenever it refuses, so it is asked once."""
    child = helpers.run_script(
        PROGRAMS / "rejected_calls.py", "2000", shapes, environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 1 << 20


@pytest.mark.usefixtures("passive_waiting")
def test_bits_of_random_problems():
    """Whatever the number of threads, the place in memory, and in place or not."""
    child = helpers.run_script("same_bits.py", "150", timeout=300)
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout == "150 problems, 0 with other bits\n"


@pytest.fixture
def passive_waiting(monkeypatch):
    """With more threads than cores, waiting ones are not to keep the others from work."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")


@both
@pytest.mark.usefixtures("passive_waiting")
def test_many_threads_on_one_plan(backend):
    child = helpers.run_script("one_plan_many_threads.py", backend, "16", "60", timeout=300)
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout == "960 calls, 0 with other bits\n"


@both
def test_interrupts_in_the_middle_of_calls(backend):
    child = helpers.run_script("interrupted.py", backend, "100")
    assert child.returncode == 0, child.stderr
    assert child.stdout == "100 interrupts\n"


@pytest.mark.usefixtures("passive_waiting")
def test_calls_do_not_grow_the_process():
    child = helpers.run_script("flat_memory.py", "30000")
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 1 << 20
