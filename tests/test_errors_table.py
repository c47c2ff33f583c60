"""The table of errors: what it claims holds on small tensors too, and it would say so if not."""

from __future__ import annotations

import importlib.util
from fractions import Fraction

import helpers
import numpy as np
import pytest

PROGRAM = helpers.ROOT / "examples" / "studies" / "errors.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("errors_study", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_default_is_nowhere_the_worst():
    child = helpers.run_python(str(PROGRAM), "--elements", "2000", "--many", "20000")
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stderr == ""
    lines = child.stdout.splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {14}
    header, _, *rows = ([cell.strip() for cell in row] for row in rows)
    assert header[3:] == [
        *("rounded", "native", "onednn", "torch") * 2,
        *("native", "onednn", "torch"),
    ]
    inputs = list(dict.fromkeys(row[0] for row in rows))
    assert len(rows) == 8 * 3 * 2
    for words in ("ordinary", "mean 1,000,000", "cancel", "subnormal", "inf or NaN"):
        assert any(words in name for name in inputs)
    for row in rows:
        if row[0] == "ordinary":
            assert float(row[11]) <= 2, row
    assert lines[-1] == "onedsl's default is nowhere the worst."


def test_a_worse_default_is_said(study):
    good, bad = study.Errors(1e-7, 1e-7, 1.0), study.Errors(3e-7, 1e-7, 3.0)
    best = study.Errors(5e-8, 5e-8, 0.5)

    def complaints(name, default, others):
        found = {"native": default, "onednn": others}
        return list(study.Row(name, "f32", "NXC", best, found).complaints())

    assert complaints("ordinary", good, bad) == []
    assert complaints("other", bad, good) == [
        "other, f32, NXC: the default is the worst in diff_src",
        "other, f32, NXC: the default is the worst in ulps",
    ]
    assert complaints("ordinary", bad, bad) == ["ordinary, f32, NXC: a sum is 3.0 units off"]
    assert complaints("other", bad, bad) == []


def test_the_judge_is_exact(study):
    """Its sums are those of rational numbers, where float64 itself has lost every digit."""
    src = np.array([1e6, 1e6 + 1, 1e6, 1e6 + 1], np.float32).reshape(4, 1, 1, 1)
    diff_dst = np.array([1e30, 1, -1e30, 1], np.float32).reshape(src.shape)
    mean, variance = np.array([1e6], np.float32), np.array([3], np.float32)
    problem = study.Problem(src, diff_dst, mean, variance, np.ones(1, np.float32), 1.0)
    _, diff_gamma, diff_beta = study.exact_gradients(problem)
    pairs = [
        (Fraction(float(d)), Fraction(float(s)))
        for d, s in zip(diff_dst.flat, src.flat, strict=True)
    ]
    assert diff_beta[0] == float(sum(d for d, _ in pairs)) == 2
    wanted = sum(d * (s - Fraction(float(mean[0]))) for d, s in pairs) / 2
    assert diff_gamma[0] == float(wanted) == 1
    assert float(diff_dst.astype(np.float64).sum()) != 2


def test_a_lost_nan_is_an_error_without_bound(study):
    got, want = np.array([1.0, 2.0]), np.array([1.0, np.nan])
    assert study.relative_l2(got, want) == np.inf
    assert study.relative_l2(want, want) == 0
    assert study.relative_l2(want, got) == np.inf
