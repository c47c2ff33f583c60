"""No door has lost a law, and the reasons why doors do not make calls are those in coverage.txt.

A new case changes nothing here. A new door or law is a new entry: ``pytest --write-expected
tests/laws/test_coverage.py`` writes the file.
"""

import math
from pathlib import Path

from cases import laws
from cases.calls import PROBLEMS
from cases.laws import LAWS, calls_under, why_not
from doors import DOORS, base

FILE = Path(__file__).with_name("coverage.txt")


def table():
    """Return the laws that each door's calls are tested for, and why it does not make others."""
    lines = []
    for door in DOORS:
        tested = [law for law in LAWS if calls_under(law, door)]
        reasons = {
            why_not(law, door, call) or door.reason_against(call)
            for law, calls in LAWS.items()
            for call in calls
        }
        lines += [f"{door}: {', '.join(tested)}"]
        lines += [f"    {reason}" for reason in sorted(reasons) if reason]
    return "".join(f"{line}\n" for line in lines)


def test_no_door_has_lost_a_law(request):
    found = table()
    if request.config.getoption("--write-expected"):
        FILE.write_text(found)
    assert found == FILE.read_text(), "pytest --write-expected tests/laws/test_coverage.py"


def test_steps_leave_no_problem_out():
    """A fifth problem would be the only one of every fifth call."""
    steps = {*base.STEPS, *laws.STEPS.values()}
    assert {math.gcd(step, len(PROBLEMS)) for step in steps} == {1}, "change the number of problems"
