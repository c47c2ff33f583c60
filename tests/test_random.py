"""Random calls and graphs, in child processes. test_fuzz.py has the fuzzer."""

import re
import signal

import helpers
import pytest
from helpers import PASSIVE, capped

# The best instruction set of this CPU, and those of older CPUs.
CAPS_AND_CALLS = [
    ("DEFAULT", 2000),
    pytest.param("DEFAULT", 10_000, marks=pytest.mark.slow),
    *(
        pytest.param(cap, 6000, marks=pytest.mark.isa_caps)
        for cap in ("AVX512_CORE", "AVX2", "SSE41")
    ),
]


@pytest.mark.parametrize(("cap", "calls"), CAPS_AND_CALLS)
def test_bits_and_accesses_of_kernels(cap, calls):
    """Bits do not depend on threads, addresses or running in place; nothing beyond is accessed."""
    environment = capped(ONEDSL_MAX_CPU_ISA=cap, **PASSIVE)
    child = helpers.run_script("same_bits.py", str(calls), environment=environment, status=None)
    last = child.stdout.splitlines()[-1] if child.stdout else "no run"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        pytest.fail(f"{name}: memory beyond an array was accessed in {last}", pytrace=False)
    assert child.returncode == 0, f"in {last}:\n{child.stderr}"
    assert last == f"{calls} calls have the same bits"


def test_random_graphs():
    child = helpers.run_script("random_graphs.py", "400")
    # Half of the graphs are bf16, which oneDNN does not support without AVX-512.
    fewest_right = 120 if helpers.missing_isa("bf16") is None else 60
    for how in ("written", "repaired"):
        pattern = rf"{how}: (\d+) right, .*, (\d+) refused, (\d+) not judged"
        counts = re.search(pattern, child.stdout)
        assert counts
        assert int(counts[1]) > fewest_right
        assert int(counts[2]) > 100
        assert int(counts[3]) < 20
