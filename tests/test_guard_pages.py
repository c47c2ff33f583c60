"""Kernels access no memory beyond an array. Each case is a process (programs/guard_pages.py)."""

from __future__ import annotations

import signal

import helpers
import pytest
from helpers import capped

WORK = [
    *((dtype, stats, form) for dtype, stats in helpers.TYPES for form in helpers.FORMATS),
    ("f32", "frozen", ""),
    ("f16", "frozen", ""),
]


# The best instruction set of this CPU, and those of older CPUs.
CAPS = [
    "AVX512_CORE",
    *(pytest.param(cap, marks=pytest.mark.isa_caps) for cap in ("AVX2", "SSE41")),
]


@pytest.mark.parametrize("work", WORK, ids=lambda work: "-".join(filter(None, work)))
@pytest.mark.parametrize("cap", CAPS)
def test_no_access_beyond_an_array(cap, work):
    environment = capped(ONEDSL_MAX_CPU_ISA=cap, OMP_WAIT_POLICY="passive")
    child = helpers.run_script("guard_pages.py", *work, environment=environment)
    last = child.stdout.splitlines()[-1] if child.stdout else "no run"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        pytest.fail(f"{name}: memory beyond an array was accessed in {last}", pytrace=False)
    assert child.returncode == 0, f"in {last}:\n{child.stderr}"
    assert last == "done"
