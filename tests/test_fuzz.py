"""The fuzzer: it runs, and it finds what there is to be found."""

from __future__ import annotations

import queue
import sys

import helpers
import numpy as np
import pytest
from fuzz import case, judge
from fuzz.corpus import FAULTS
from fuzz.workers import Worker

import onedsl


def test_a_run():
    """Corpus and all; .ci/run makes more calls."""
    child = helpers.run_python(str(helpers.TESTS / "fuzz"), "--calls", "400", timeout=300)
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout.startswith("400 calls from seed 0 in ")
    assert f"{len(FAULTS)} corpus" in child.stdout
    assert child.stdout.endswith("found: 0\n")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_past_faults(fault):
    fault()


def worker_of(program, *ranges):
    """Run a worker whose children are this program, which has its range of seeds in argv."""
    given = queue.SimpleQueue()
    for item in ranges:
        given.put(item)
    worker = Worker(given, [sys.executable, "-c", f"import os, sys, time\n{program}"], 2)
    worker.run()
    return worker


def test_death_is_told_with_its_seed_and_the_rest_is_run():
    program = """
first, count = map(int, sys.argv[1:])
for seed in range(first, first + count):
    print("at", seed, flush=True)
    if seed == 12:
        os.abort()
    print("did", "that", flush=True)
"""
    worker = worker_of(program, (10, 5), (20, 2))
    assert worker.words == {"that": 6}
    (found,) = worker.found
    assert found.startswith("12: death with -6")


def test_a_hang_is_ended_and_told():
    program = """
first, count = map(int, sys.argv[1:])
print("at", first, flush=True)
time.sleep(60 if first == 3 else 0)
print("did", "that", flush=True)
"""
    worker = worker_of(program, (3, 1), (4, 1))
    assert worker.words == {"that": 1}
    assert worker.found == ["3: a hang\n"]


def right_call():
    """Draw the first call that nothing is wrong with, whose results have elements."""
    for seed in range(1000):
        drawn = case.draw(np.random.default_rng(seed))
        if not drawn.spoiled and drawn.backend == "native" and len(drawn.wanted) == 3:
            result = judge.run(drawn)
            if all(isinstance(a, np.ndarray) and a.size for a in result):
                return drawn, result
    raise AssertionError("no such call in a thousand")


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("change", [lambda a: a + 0.01 * abs(a).max() + 1, lambda a: a * np.nan])
def test_a_wrong_result_is_found(which, change):
    drawn, result = right_call()
    wanted = judge.expected(drawn)
    judge.judge_result(drawn, result, wanted)
    wrong = list(result)
    wrong[which] = change(result[which]).astype(result[which].dtype)
    with pytest.raises(judge.WrongError):
        judge.judge_result(drawn, wrong, wanted)


def test_a_call_that_goes_wrong_is_found(monkeypatch):
    """A kernel that forgets an element, an abuse of out and a refusal in strange words."""
    drawn, _ = right_call()
    monkeypatch.setattr(judge, "draw", lambda rng: drawn)

    def forgetful(case, threads=0):
        result = run(case)
        result[0].reshape(-1, order="K")[-1] = 0
        return result

    run = judge.run
    monkeypatch.setattr(judge, "run", forgetful)
    with pytest.raises(judge.WrongError):
        judge.check(0)

    def writes_over(case, threads=0):
        case.inputs[2][...] = 5
        return run(case)

    monkeypatch.setattr(judge, "run", writes_over)
    with pytest.raises(judge.WrongError, match="was written to"):
        judge.check(0)

    def refuses(case, threads=0):
        raise ValueError("incompatible function arguments")

    monkeypatch.setattr(judge, "run", refuses)
    with pytest.raises(judge.WrongError, match="refused"):
        judge.check(0)


def test_every_class_is_fuzzed():
    operators = {
        value
        for value in vars(onedsl).values()
        if isinstance(value, type) and issubclass(value, onedsl.operators._operator.Operator)
    }
    assert operators == {target.kind for target in case.TARGETS}
