"""What a process goes through while threads are inside of onedsl: its end, forks, refusals."""

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


def test_refusals_do_not_leak():
    """Regression: oneDNN leaks some 6 KiB whenever it refuses, so it is asked once."""
    child = helpers.run_script(
        PROGRAMS / "refused_calls.py", "2000", environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 1 << 20
