"""Random graphs as written and repaired are refused, right, or warned of."""

from __future__ import annotations

import re

import helpers


def test_random_graphs():
    child = helpers.run_python(
        str(helpers.PROGRAMS / "random_graphs.py"),
        "400",
        environment={"PYTHONPATH": str(helpers.TESTS)},
    )
    assert child.returncode == 0, child.stdout + child.stderr
    for how in ("written", "repaired"):
        counts = re.search(
            rf"{how}: (\d+) right, .*, (\d+) refused, (\d+) not judged, 0 failed", child.stdout
        )
        assert counts
        assert int(counts[1]) > 150
        assert int(counts[2]) > 100
        assert int(counts[3]) < 20
