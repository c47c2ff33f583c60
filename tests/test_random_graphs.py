"""Random graphs as written and repaired are refused, right, or warned of."""

from __future__ import annotations

import re

import helpers


def test_random_graphs():
    child = helpers.run_script("random_graphs.py", "400")
    # Half of the graphs are bf16, which oneDNN refuses without AVX-512.
    fewest_right = 150 if helpers.missing_isa("bf16") is None else 75
    for how in ("written", "repaired"):
        pattern = rf"{how}: (\d+) right, .*, (\d+) refused, (\d+) not judged"
        counts = re.search(pattern, child.stdout)
        assert counts
        assert int(counts[1]) > fewest_right
        assert int(counts[2]) > 100
        assert int(counts[3]) < 20
