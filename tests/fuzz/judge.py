"""Makes a random call and checks its result or its error."""

import warnings
from typing import Any, NamedTuple

import helpers
import numpy as np
import threadpoolctl

import onedsl
from fuzz import arrays
from fuzz.case import Case, random_case
from fuzz.targets import PIVOT
from onedsl import _core

ITEM_TOLERANCES = {"f32": 2.0**-22, "bf16": 2.0**-8, "f16": 2.0**-10}
"""For each output dtype, the allowed rounding error of an item, relative to the item."""

SUM_TOLERANCE = 1e-6
"""Allowed error of a sum before rounding, relative to the sum of its terms' absolute values."""

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
    expected = compute_expected(case)
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


class Expected(NamedTuple):
    """An output in float64, with what its tolerance is computed from: see targets.py."""

    value: np.ndarray
    magnitude: np.ndarray
    slack: np.ndarray | float


def compute_expected(case: Case) -> list[Expected] | None:
    """Compute the outputs in float64. Return None if the inputs are invalid, after a mutation."""
    ports = case.target.schema.inputs
    try:
        inputs = [None if v is None else arrays.to_numpy(v) for v in case.inputs]
        shapes: dict[str, set[tuple[int, ...]]] = {"tensor": set(), "statistic": set()}
        for port, array in zip(ports, inputs, strict=True):
            if array is not None:
                shapes[port.kind].add(array.shape)
        (shape,), (stats_shape,) = shapes.values()
        if not case.target.broadcast:
            axis = case.channel_axis % len(shape)
            if stats_shape != (shape[axis],):
                return None
            stats_shape = tuple(n if i == axis else 1 for i, n in enumerate(shape))
        if any(n not in (1, m) for n, m in zip(stats_shape, shape, strict=True)):
            return None
        axes = tuple(axis for axis, n in enumerate(stats_shape) if n == 1)
        kept = {"tensor": shape, "statistic": stats_shape}
        schema = case.target.schema
        names = [name for name, *_ in _core.signatures()[schema.operation][0]]
        with np.errstate(all="ignore"):
            wide = [
                None if array is None else array.astype(np.float64).reshape(kept[port.kind])
                for port, array in zip(ports, used_inputs(case), strict=True)
            ]
            values = case.attributes | dict(zip(names, wide, strict=True))
            exact = [
                output.reshape(kept[port.kind])
                for port, output in zip(schema.outputs, reference_of(case), strict=True)
            ]
            bounds = case.target.bounds(values, axes, exact)
            return [Expected(e, *bound) for e, bound in zip(exact, bounds, strict=True)]
    except Exception:
        if case.mutations:
            return None
        raise


def used_inputs(case: Case) -> list[Any]:
    """Return the inputs, with None instead of one that the operator ignores in this call."""
    schema = case.target.schema
    ignored = "" if len(case.requested) == len(schema.outputs) else schema.ignored
    return [
        None if value is None or port.name == ignored else arrays.to_numpy(value)
        for port, value in zip(schema.inputs, case.inputs, strict=True)
    ]


def reference_of(case: Case) -> Any:
    """Return the outputs by `onedsl.testing`."""
    return case.target.reference(*used_inputs(case), **case.attributes)


def check_result(case: Case, result: Any, expected: list[Expected] | None) -> None:
    """Raise Violation if a result differs from the expected outputs. None stands for an error."""
    if expected is None:
        raise Violation(f"an invalid call was accepted: {case}")
    if "values" in case.mutations:
        return  # the references do not define the effect of inf and NaN
    if case.backend == "onednn" and _has_negative_variance(case):
        return  # variance + epsilon cancels in f32
    outputs = case.target.schema.outputs
    src = arrays.to_numpy(case.inputs[0])
    channels = next(
        e.value.size for p, e in zip(outputs, expected, strict=True) if p.kind == "statistic"
    )
    per_channel = src.size // max(1, channels)
    for port, array, values in zip(outputs, result, expected, strict=True):
        if array is not None:
            _compare(case, port.name, arrays.to_numpy(array), values, per_channel)
        elif port.name in case.requested:
            raise Violation(f"{port.name} is None: {case}")


def _has_negative_variance(case: Case) -> bool:
    ports = zip(case.target.schema.inputs, case.inputs, strict=True)
    return any(p.name == "variance" and (arrays.to_numpy(v) < 0).any() for p, v in ports)


def _compare(case: Case, name: str, got: np.ndarray, expected: Expected, per_channel: int) -> None:
    """Compare an output elementwise, with tolerances computed from the terms of its sums."""
    dtype = next(n for n, d in helpers.NUMPY.items() if d == got.dtype)
    value, magnitude, slack = (
        np.broadcast_to(a, np.shape(expected.value)).reshape(got.shape) for a in expected
    )
    onednn = case.backend == "onednn"
    info = np.finfo(np.float16 if dtype == "f16" else np.float32)
    # oneDNN adds in f32, and rounds every intermediate result.
    sums = SUM_TOLERANCE + per_channel * 2.0**-24 * onednn
    allowed = ITEM_TOLERANCES[dtype] * (np.abs(value) + slack + magnitude * onednn)
    allowed += (sums + 2.0**-21) * magnitude + slack + float(info.smallest_subnormal)
    if onednn and name.endswith("variance"):
        allowed += (sums / PIVOT) ** 2 * magnitude  # the square of the mean's error
    representable = np.abs(value) + allowed < float(info.max)
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - value)
    wrong = np.argwhere(representable & ~(error <= allowed))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise Violation(
            f"{name}{list(at)} is {got[at]}, not {value[at]} (allowed {allowed[at]:.3g}): {case}"
        )
