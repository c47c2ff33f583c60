"""Which calls the laws test, and what each door does not support, and why.

A change of tests/laws/coverage.txt is a change of the tests. ``pytest --write-expected
tests/laws/test_coverage.py`` writes it.
"""

from collections import Counter
from pathlib import Path

from cases.laws import LAWS, calls_under, why_not
from doors import DOORS

FILE = Path(__file__).with_name("coverage.txt")


def table():
    """Return the number of calls by law and door, and of unsupported calls by door and reason."""
    lines = ["Calls that a law tests", f"{'':14}" + "".join(f"{law:>13}" for law in LAWS)]
    for door in DOORS:
        numbers = [len(calls_under(law, door)) or "-" for law in LAWS]
        lines.append(f"{door!s:14}" + "".join(f"{number:>13}" for number in numbers))
    for door in DOORS:
        reasons = Counter(
            why_not(law, door, call) or door.reason_against(call)
            for law, calls in LAWS.items()
            for call in calls
        )
        lines += ["", f"Calls that {door} does not make, of {reasons.total()}"]
        lines += [f"{reasons[reason]:6}  {reason}" for reason in sorted(reasons) if reason]
    return "".join(f"{line}\n" for line in lines)


def test_the_table_of_what_is_tested(request):
    found = table()
    if request.config.getoption("--write-expected"):
        FILE.write_text(found)
    print(found)
    assert found == FILE.read_text()
