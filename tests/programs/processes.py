"""Shared by the programs: the memory of this process, and waiting for a child."""

import os
import re
import signal
import time
from pathlib import Path


def _bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


def resident() -> int:
    """Return the bytes of memory in use."""
    return _bytes("VmRSS")


def peak() -> int:
    """Return the most memory that was in use; unlike getrusage, not that of the parent process."""
    return _bytes("VmHWM")


def address_space() -> int:
    """Return the bytes of addresses in use."""
    return _bytes("VmSize")


def wait(child: int, seconds: float) -> int | None:
    """Return the exit status of a child. Return None for a child that hangs, and kill it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
