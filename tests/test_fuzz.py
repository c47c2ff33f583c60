"""The fuzzer runs without violations, and detects the violations it is for."""

import re

import helpers
import ml_dtypes
import numpy as np
import pytest
from fuzz import arrays, case, judge

import onedsl
from onedsl import testing

UNITS = dict(zip(helpers.NUMPY.values(), (0, 2.0**-8, 2.0**-11), strict=True))
"""The relative error of rounding to the dtype of a result. That of f32 is one of many."""


def test_a_short_run():
    """Valid and invalid calls of every class; .ci/run makes more. Calls that crash do not count."""
    child = helpers.run_python(str(helpers.TESTS / "fuzz"), "--calls", "1000")
    assert child.stdout.startswith("1000 calls from seed 0 in ")
    assert "wrong" not in child.stdout
    for outcome in ("direct", "in passes", "in parts", "rejected"):
        assert int(re.search(rf"(\d+) {outcome}", child.stdout)[1]) > 50
    assert child.stdout.endswith("violations: 0\n")


@pytest.fixture
def valid_call():
    """A valid call of writable NumPy arrays that are not empty, with three results."""
    for seed in range(1000):
        call = case.random_case(np.random.default_rng(seed))
        inputs = [value for value in call.inputs if value is not None]
        if call.mutations or call.backend != "auto" or len(call.requested) != 3:
            continue
        if all(isinstance(v, np.ndarray) and v.flags.writeable for v in inputs):
            result = judge.run(call)
            if all(isinstance(a, np.ndarray) and a.size for a in result):
                return call
    raise AssertionError("no such call among a thousand")


def dtypes_of(call):
    """Return the dtypes of a call's outputs."""
    schema = call.target.schema
    ports = zip(schema.inputs, call.inputs, strict=True)
    of_kind = {
        port.kind: arrays.to_numpy(value).dtype for port, value in ports if value is not None
    }
    return [of_kind[port.kind] for port in schema.outputs]


def calls_of_every_kind(target):
    """Yield random valid calls of an operator, at least one for each dtype and activation."""
    rows = target.schema.types.items()
    missing = {(helpers.NUMPY[dtype], helpers.NUMPY[stats]) for dtype, row in rows for stats in row}
    missing |= {*target.attributes.get("activation", ())}
    for seed in range(5000):
        call = case.random_case(np.random.default_rng(seed))
        if call.mutations or not arrays.to_numpy(call.inputs[0]).size:
            continue
        missing -= {tuple(dtypes_of(call)[:2]), call.attributes.get("activation")}
        yield call
        if not missing:
            return
    raise AssertionError(f"no call for {missing}")


@helpers.backends
@pytest.mark.parametrize("target", case.TARGETS, ids=lambda target: target.cls.__name__)
def test_the_tolerances_are_the_documented_ones(monkeypatch, target, backend):
    """Half of them is accepted in all elements, and 1.5 times one is rejected in one element.

    No kernel runs: the results are rounded sums of those of the reference and of errors.
    """
    monkeypatch.setattr(case, "TARGETS", [target])
    rng = np.random.default_rng(0)
    for call in calls_of_every_kind(target):
        call.options["backend"], call.mode = backend, "direct"
        exact, dtypes, errors = judge.reference_of(call), dtypes_of(call), []
        ports, factor = call.target.schema.outputs, judge.factor_of(call, exact)
        for port, dtype, terms in zip(ports, dtypes, exact.terms, strict=True):
            tolerance = 6e-7 if port.kind == "tensor" else 1e-6
            error = tolerance * (terms.magnitude + terms.slack) + terms.slack
            if backend == "onednn":
                count = exact[0].size // exact[1].size
                error += UNITS[dtype] * terms.magnitude
                error += testing.onednn_sum_error(count) * terms.sums
            errors.append(factor * error)
        infos = [ml_dtypes.finfo(dtype) for dtype in dtypes]
        largest = [(np.abs(a) + 2 * e).max() for a, e in zip(exact, errors, strict=True)]
        if any(value > info.max / 2 for value, info in zip(largest, infos, strict=True)):
            continue  # the sums would overflow
        right = [(a + e / 2).astype(d) for a, e, d in zip(exact, errors, dtypes, strict=True)]
        judge.check_result(call, right, exact)
        for i, (value, error, dtype, info) in enumerate(
            zip(exact, errors, dtypes, infos, strict=True)
        ):
            at = tuple(int(rng.integers(size)) for size in value.shape)
            # Twice more for the rounding of the result, which is also rounded itself.
            rounding = factor * UNITS[dtype] * (abs(value[at]) + exact.terms[i].slack[at])
            wrong = 1.5 * error[at] + 3 * rounding + 4 * factor * float(info.smallest_subnormal)
            for other in value[at] + wrong, value[at] - wrong, np.nan:
                result = list(right)
                result[i] = right[i].copy()
                result[i][at] = other
                with pytest.raises(judge.Violation, match=f"{exact._fields[i]} must be within"):
                    judge.check_result(call, result, exact)


def test_a_wrong_call_is_detected(monkeypatch, valid_call):
    """A missing element, a write to an input, and an unjustified error."""
    monkeypatch.setattr(judge, "random_case", lambda rng: valid_call)
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
        (skip_an_element, "must be within"),
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
