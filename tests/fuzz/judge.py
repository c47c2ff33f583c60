"""Makes a random call and checks its result or its error."""

import warnings
from typing import Any

import numpy as np
import threadpoolctl

import onedsl
from fuzz import arrays
from fuzz.case import Case, random_case
from onedsl import testing

OPENMP = threadpoolctl.ThreadpoolController().select(user_api="openmp")
THREADS = [1, 2, 3, 4, 7, 16]

REJECTIONS = (TypeError, ValueError, onedsl.OneDNNError)
INTERNAL_MESSAGES = (
    *("incompatible constructor", "incompatible function"),  # pybind11's
    *("onedsl._core", "unchecked"),
)


class Violation(AssertionError):  # noqa: N818
    """A wrong result, or a wrong error of an invalid call."""


def run(case: Case, threads: int = 2) -> Any:
    """Make the call on a number of OpenMP threads and return its result, in one of the modes."""
    with OPENMP.limit(limits=threads):
        return _run(case)


def _run(case: Case) -> Any:
    op = case.target.cls(**case.attributes)
    if case.mode == "direct":
        return op(*case.inputs, **case.options, out=case.out)
    options = {name: value for name, value in case.options.items() if name != "backend"}
    if case.mode == "in parts":
        return _run_in_parts(op, case, options)
    sums = op.reduce(*case.inputs[: case.target.reduce_inputs])
    return op.apply(sums, *case.inputs, **options, out=case.out)


def _run_in_parts(op: Any, case: Case, options: dict[str, Any]) -> Any:
    """Reduce and apply each part of a batch. Return the results, joined."""
    schema = case.target.schema
    values = [
        arrays.to_numpy(value) if port.kind == "tensor" else value
        for port, value in zip(schema.inputs, case.inputs, strict=True)
    ]
    parts = [
        [v[where] if p.kind == "tensor" else v for p, v in zip(schema.inputs, values, strict=True)]
        for where in case.parts
    ]
    sums = [op.reduce(*part[: case.target.reduce_inputs]) for part in parts]
    in_order = sum(sums)
    size = max(np.abs(each.to_vector()).max() for each in sums)
    while len(sums) > 1:  # add in another order
        sums.append(sums.pop(0) + sums.pop(0))
    if not np.allclose(sums[0].to_vector(), in_order.to_vector(), 1e-13, 1e-13 * size):
        raise Violation(f"sums depend on the order of their addition: {case}")
    src = values[0]
    if src.size and sums[0].count * sums[0].channels != src.size:
        raise Violation(f"the sums have {sums[0].count} elements: {case}")
    results = [op.apply(sums[0], *part, **options) for part in parts]
    joined = list(results[0])
    for i, port in enumerate(schema.outputs):
        if port.name in case.requested and port.kind == "tensor":
            joined[i] = np.empty_like(src)
            for where, result in zip(case.parts, results, strict=True):
                joined[i][where] = result[i]
        elif len({_bytes_of(result[i]) for result in results}) > 1:
            raise Violation(f"{port.name} differs from part to part: {case}")
    return schema.result(*joined)


def check(seed: int) -> str:
    """Make the random call that a seed determines, and check its result or its error.

    Return the mode of a call that succeeded, and ``"rejected"`` or ``"unsupported"`` for an error.
    Raise Violation if the result or the error is wrong.
    """
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    before = [_bytes_of(value) for value in case.inputs]
    expected = reference_of(case)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", onedsl.GammaIgnoredWarning)
        try:
            result = run(case)
        except Exception as error:
            if not isinstance(error, REJECTIONS):
                raise Violation(f"{error!r} was raised: {case}") from error
            return _check_error(case, error, before)
        _check_inputs(case, before)
        if case.guard is not None:
            case.guard.check_walls()
        check_result(case, result, expected)
    return case.mode


def _bytes_of(value: Any) -> bytes | None:
    """Return the bytes of an array, or None for other objects."""
    try:
        return arrays.to_numpy(value).tobytes()
    except Exception:
        return None


def _check_inputs(case: Case, before: list[bytes | None]) -> None:
    """Raise if the call changed an input that is not also an output.

    `before` contains the bytes of the inputs before the call.
    """
    outputs = case.target.schema.outputs
    written = (
        {port.in_place for port in outputs} if case.in_place or "out" in case.mutations else set()
    )
    for port, value, old in zip(case.target.schema.inputs, case.inputs, before, strict=True):
        if old is not None and port.name not in written and _bytes_of(value) != old:
            raise Violation(f"{port.name} was written to: {case}")


def _check_error(case: Case, error: Exception, before: list[bytes | None]) -> str:
    """Return the kind of an error: ``"rejected"`` or ``"unsupported"``.

    Raise Violation if the call is valid, if the message is not meant for users, or if the call
    wrote to memory before it raised the error.
    """
    message = str(error)
    if isinstance(error, onedsl.UnsupportedError):
        if case.backend != "onednn":
            raise Violation(f"{case.backend} must support this call: {message}: {case}")
        return "unsupported"
    if not case.mutations:
        raise Violation(f"a valid call was rejected: {message!r}: {case}")
    if not message or any(text in message for text in INTERNAL_MESSAGES):
        raise Violation(f"rejected with an internal message: {message!r}: {case}")
    if case.guard is not None:
        case.guard.check_untouched()
    for value, old in zip(case.inputs, before, strict=True):
        if old is not None and _bytes_of(value) != old:
            raise Violation(f"written to before the error {message!r}: {case}")
    return "rejected"


def reference_of(case: Case) -> Any:
    """Return the outputs by `onedsl.testing`, or None if a mutation made the inputs invalid."""
    schema = case.target.schema
    try:
        inputs = [None if value is None else arrays.to_numpy(value) for value in case.inputs]
        if len(case.requested) < len(schema.outputs):
            for i, port in enumerate(schema.inputs):
                if port.name == schema.ignored and inputs[i] is not None:
                    inputs[i] = np.ones(inputs[i].shape)
        with np.errstate(all="ignore"):
            return case.target.reference(*inputs, **case.attributes)
    except Exception:
        if case.mutations:
            return None
        raise


def check_result(case: Case, result: Any, expected: Any) -> None:
    """Raise Violation if a result differs from that of the reference. None stands for an error."""
    if expected is None:
        raise Violation(f"an invalid call was accepted: {case}")
    if "values" in case.mutations or not _is_defined(case, expected):
        return
    for port, array in zip(case.target.schema.outputs, result, strict=True):
        if array is None and port.name in case.requested:
            raise Violation(f"{port.name} is None: {case}")
    got = [None if array is None else arrays.to_numpy(array) for array in result]
    backend = "onednn" if case.runs_onednn else "auto"
    try:
        testing.assert_close(
            tuple(got), expected, backend=backend, factor=factor_of(case, expected)
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise Violation(f"{error}: {case}") from error


def factor_of(case: Case, expected: Any) -> float:
    """Return a factor of the tolerances: errors of oneDNN's sums where src has few values."""
    count = expected[0].size // max(expected[1].size, 1)
    if not (case.runs_onednn and count):
        return 1.0
    return float(max(1.0, count * 2.0**-24 / testing.onednn_sum_error(count)))


def _is_defined(case: Case, expected: Any) -> bool:
    """Return whether the reference defines the result.

    It does not for NaN and infinities, which some f16 tensors have, and for the square root of a
    negative number, in the sum of a negative variance and epsilon. oneDNN computes the sum in f32.
    """
    inputs = [None if value is None else arrays.to_numpy(value) for value in case.inputs]
    ports = zip(case.target.schema.inputs, inputs, strict=True)
    with np.errstate(invalid="ignore"):  # NaN in bf16
        is_negative = any(p.name == "variance" and (array < 0).any() for p, array in ports)
    if all(np.isfinite(array).all() for array in expected):
        return not (is_negative and case.runs_onednn)
    is_special = any(a is not None and not np.isfinite(a).all() for a in inputs)
    return not (is_special or is_negative)
