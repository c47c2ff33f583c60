"""examples/errors.py: its claims also hold for small tensors, and it detects violations."""

from __future__ import annotations

import importlib.util
from fractions import Fraction

import helpers
import numpy as np
import pytest

from onedsl import testing

PROGRAM = helpers.ROOT / "examples" / "errors.py"


@pytest.fixture(scope="module")
def errors():
    spec = importlib.util.spec_from_file_location("errors_example", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_onedsl_is_never_the_least_accurate():
    child = helpers.run_python("-W", "error", str(PROGRAM), "--elements", "2000")
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stderr == ""
    lines = child.stdout.splitlines()
    header, _, *rows = ([c.strip() for c in li.split("|")[1:-1]] for li in lines if li[:1] == "|")
    names = ["onedsl", "oneDNN"] + ["PyTorch"] * bool(importlib.util.find_spec("torch"))
    assert header[1:] == names * 2
    assert {len(row) for row in rows} == {len(header)}
    assert len(rows) == 4 * 2
    for word in ("ordinary", "mean 1,000,000", "cancel", "subnormal"):
        assert any(word in row[0] for row in rows)
    assert all(float(row[1 + len(names)]) <= 2 for row in rows if row[0].startswith("ordinary"))
    assert lines[-1] == "onedsl is never the least accurate."


def test_violations_are_reported(errors):
    good, bad = errors.Errors(1e-7, 1.0), errors.Errors(3e-7, 3.0)

    def violations(name, ours, others):
        found = {"onedsl": ours, "oneDNN": others}
        return list(errors.violations(f"{name}, f32, NXC", found))

    assert violations("ordinary", good, bad) == []
    assert violations("other", bad, good) == [
        "other, f32, NXC: onedsl has the largest error of diff_src",
        "other, f32, NXC: onedsl has the largest error of ulps",
    ]
    assert violations("ordinary", bad, bad) == [
        "ordinary, f32, NXC: a sum is off by 3.0 units in the last place"
    ]
    assert violations("other", bad, bad) == []


def test_the_reference_is_exact(errors):
    """Compare with rational numbers, on sums for which float64 loses every digit."""
    src = np.array([1e6, 1e6 + 1, 1e6, 1e6 + 1], np.float32).reshape(4, 1, 1, 1)
    diff_dst = np.array([1e30, 1, -1e30, 1], np.float32).reshape(src.shape)
    mean, variance = np.array([1e6], np.float32), np.array([4 - 1e-5])
    problem = testing.Problem(src, diff_dst, mean, variance, np.ones(1, np.float32))
    _, diff_gamma, diff_beta = errors.exact_gradients(problem)
    pairs = [
        (Fraction(float(d)), Fraction(float(s)))
        for d, s in zip(diff_dst.flat, src.flat, strict=True)
    ]
    assert diff_beta[0] == float(sum(d for d, _ in pairs)) == 2
    expected = sum(d * (s - Fraction(float(mean[0]))) for d, s in pairs) / 2
    assert diff_gamma[0] == float(expected) == 1
    assert float(diff_dst.astype(np.float64).sum()) != 2
