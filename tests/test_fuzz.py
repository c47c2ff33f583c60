"""The fuzzer runs without violations, and detects the violations it is for."""

import re

import helpers
import numpy as np
import pytest
from fuzz import arrays, case, judge

import onedsl


def test_a_short_run():
    """Valid and invalid calls of every class; .ci/run makes more. Calls that crash do not count."""
    child = helpers.run_python(str(helpers.TESTS / "fuzz"), "--calls", "4000")
    assert child.stdout.startswith("4000 calls from seed 0 in ")
    assert "wrong" not in child.stdout
    for outcome in ("direct", "in passes", "in parts", "rejected"):
        assert int(re.search(rf"(\d+) {outcome}", child.stdout)[1]) > 150
    assert child.stdout.endswith("violations: 0\n")


@pytest.fixture
def valid_call():
    """A valid call of writable NumPy arrays, and its three results that are not empty."""
    for seed in range(1000):
        call = case.random_case(np.random.default_rng(seed))
        inputs = [value for value in call.inputs if value is not None]
        if call.mutations or call.backend != "native" or len(call.requested) != 3:
            continue
        if all(isinstance(v, np.ndarray) and v.flags.writeable for v in inputs):
            result = judge.run(call)
            if all(isinstance(a, np.ndarray) and a.size for a in result):
                return call, [a.copy() for a in result]
    raise AssertionError("no such call among a thousand")


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("change", [lambda a: a + 0.01 * abs(a).max() + 1, lambda a: a * np.nan])
def test_a_wrong_result_is_detected(valid_call, which, change):
    call, result = valid_call
    expected = judge.compute_expected(call)
    judge.check_result(call, result, expected)
    wrong = list(result)
    wrong[which] = change(result[which]).astype(result[which].dtype)
    with pytest.raises(judge.Violation):
        judge.check_result(call, wrong, expected)


def test_a_wrong_call_is_detected(monkeypatch, valid_call):
    """A missing element, a write to an input, and an unjustified error."""
    call, _ = valid_call
    monkeypatch.setattr(judge, "random_case", lambda rng: call)
    run = judge.run

    def skip_an_element(case, threads=2):
        result = run(case, threads)
        result[0].flat[-1] = 0
        return result

    def write_to_an_input(case, threads=2):
        case.inputs[2][...] = 5
        return run(case, threads)

    def reject(case, threads=2):
        raise ValueError("incompatible function arguments")

    for wrong, message in (
        (skip_an_element, "is 0.0, not"),
        (write_to_an_input, "was written to"),
        (reject, "a valid call was rejected"),
    ):
        monkeypatch.setattr(judge, "run", wrong)
        with pytest.raises(judge.Violation, match=message):
            judge.check(0)


def test_every_array_type_is_an_input_and_an_output():
    """Valid outputs are writable; invalid ones are of all types."""
    valid_outputs, mutated_outputs, inputs = set(), set(), set()
    for seed in range(2000):
        call = case.random_case(np.random.default_rng(seed))
        inputs.update(map(type, call.inputs))
        if isinstance(call.out, tuple):
            found = mutated_outputs if "out" in call.mutations else valid_outputs
            found.update(map(type, call.out))
    array = np.zeros(1, np.float32)
    types, writable = (
        {type(convert(array)) for convert in converters}
        for converters in (arrays.ARRAY_TYPES, arrays.WRITABLE_TYPES)
    )
    assert types <= inputs
    assert types <= mutated_outputs
    assert writable <= valid_outputs


def test_every_class_is_a_target():
    operators = {
        value
        for value in vars(onedsl).values()
        if isinstance(value, type) and issubclass(value, onedsl.operators.base.Operator)
    }
    assert operators == {target.cls for target in case.TARGETS}
