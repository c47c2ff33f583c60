"""Kernels access no memory beyond an array."""

from __future__ import annotations

import signal

import helpers
import pytest
from helpers import capped

# The best instruction set of this CPU, and those of older CPUs.
CAPS = [
    ("DEFAULT", 2000),
    *(
        pytest.param(cap, 10_000, marks=pytest.mark.isa_caps)
        for cap in ("DEFAULT", "AVX512_CORE", "AVX2", "SSE41")
    ),
]


@pytest.mark.parametrize(("cap", "calls"), CAPS)
def test_no_access_beyond_an_array(cap, calls):
    environment = capped(ONEDSL_MAX_CPU_ISA=cap, OMP_WAIT_POLICY="passive")
    child = helpers.run_script(
        "guard_pages.py", str(calls), environment=environment, timeout=600, status=None
    )
    last = child.stdout.splitlines()[-1] if child.stdout else "no run"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        pytest.fail(f"{name}: memory beyond an array was accessed in {last}", pytrace=False)
    assert child.returncode == 0, f"in {last}:\n{child.stderr}"
    assert last == "done"
