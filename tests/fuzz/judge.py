"""A call is run and judged."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import helpers
import numpy as np
import threadpoolctl

import onedsl
from fuzz import arrays
from fuzz.arrays import Rng, chance, choose
from fuzz.case import Case, draw, is_dense
from fuzz.targets import PIVOT, Expected
from onedsl import _core

NARROW = {"f32": 2.0**-22, "bf16": 2.0**-8, "f16": 2.0**-10}
"""Error allowed to a tensor's items, by its type, relative to the item."""

SUMS = 1e-6
"""Error allowed to sums, relative to the magnitude of their terms, before they are rounded."""

OPENMP = threadpoolctl.ThreadpoolController().select(user_api="openmp").lib_controllers
THREADS = [1, 2, 3, 4, 7, 16]

REFUSALS = (TypeError, ValueError, onedsl.OneDNNError)
NO_WORDS = ["incompatible constructor", "incompatible function", "please report", "unchecked"]


class WrongError(AssertionError):
    """What a call did and must not do."""


def run(case: Case, threads: int = 0) -> Any:
    """Make the call."""
    for library in OPENMP:
        library.set_num_threads(threads or 2)
    op = case.target.kind(**case.attributes)
    if case.way == "direct":
        return op(*case.inputs, **case.options, out=case.out)
    if case.way == "in passes":
        options = {name: value for name, value in case.options.items() if name != "backend"}
        totals = op.reduce(*case.inputs[: case.target.summed])
        return op.apply(totals, *case.inputs, **options, out=case.out)
    ports = list(zip(case.target.schema.inputs, case.inputs, strict=True))
    statistic = next((v for p, v in ports if p.kind == "statistic" and v is not None), None)
    statistic = np.zeros(1, "f4") if statistic is None else arrays.numpy_of(statistic)
    if case.target.broadcast:
        compiled = op.compile(case.spec, statistic.shape, **case.options)
    else:
        # gamma is said for beta too.
        given = {p.name: v is not None for p, v in ports if p.optional and p.name != "beta"}
        compiled = op.compile(case.spec, stats_dtype=statistic.dtype, **{**given, **case.options})
    return compiled(*case.inputs, out=case.out)


def check(seed: int) -> str:
    """Draw, run and judge one call. Gives a word for what came of it."""
    rng = np.random.default_rng(seed)
    case = draw(rng)
    before = [_bytes_of(value) for value in case.inputs]
    wanted = expected(case)
    refusal = result = None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", onedsl.GammaIgnoredWarning)
        try:
            result = run(case)
        except REFUSALS as error:
            refusal = error
        except RecursionError as error:
            raise WrongError(f"{error!r}: {case}") from error
        except Exception as error:
            if not _is_the_objects_own(error):
                raise WrongError(f"{error!r} came out: {case}") from error
            refusal = error
        if refusal is not None:
            return _judge_refusal(case, refusal, before)
        _judge_inputs(case, before)
        if case.walls is not None:
            case.walls.check_walls()
        judge_result(case, result, wanted)
        if case.backend != "onednn" and not case.in_place and not case.spoiled and chance(rng, 4):
            _judge_bits(rng, case, result)
    return case.way


def _is_the_objects_own(error: Exception) -> bool:
    """Tell whether something that is no array raised this of itself, as a mask or a record does."""
    return isinstance(error, AttributeError | IndexError) and "onedsl" not in str(error)


def _bytes_of(value: Any) -> bytes | None:
    try:
        return arrays.numpy_of(value).tobytes()
    except Exception:
        return None


def _judge_inputs(case: Case, before: list[bytes | None]) -> None:
    outputs = case.target.schema.outputs
    over = {port.over for port in outputs} if case.in_place or "out" in case.spoiled else set()
    for port, value, was in zip(case.target.schema.inputs, case.inputs, before, strict=True):
        if was is not None and port.name not in over and _bytes_of(value) != was:
            raise WrongError(f"{port.name} was written to: {case}")


def _judge_refusal(case: Case, refusal: Exception, before: list[bytes | None]) -> str:
    words = str(refusal)
    if isinstance(refusal, onedsl.UnsupportedError):
        if case.backend != "onednn":
            raise WrongError(f"unsupported, by {case.backend}: {words}: {case}")
        return "unsupported"
    if not case.spoiled and not _is_not_in_the_statistics_order(case, words):
        raise WrongError(f"refused: {words!r}: {case}")
    if not words or any(word in words for word in NO_WORDS):
        raise WrongError(f"refused in no words: {words!r}: {case}")
    if case.walls is not None:
        case.walls.check_untouched()
    if any(
        was is not None and _bytes_of(v) != was for v, was in zip(case.inputs, before, strict=True)
    ):
        raise WrongError(f"written to before the refusal {words!r}: {case}")
    return "refused"


def _is_not_in_the_statistics_order(case: Case, words: str) -> bool:
    """Tell whether src must be copied, since its kept axes lie in memory in another order.

    Then a compiled operator has no plan for it, and outputs lie as the copy does.
    """
    return case.target.broadcast and (
        "in their own order" in words or "must lie in memory" in words
    )


def expected(case: Case) -> list[Expected] | None:
    """Compute the outputs in float64; None where the inputs do not go together."""
    ports = case.target.schema.inputs
    try:
        raw = [None if v is None else arrays.numpy_of(v) for v in case.inputs]
        shapes = {
            kind: {
                v.shape for p, v in zip(ports, raw, strict=True) if v is not None and p.kind == kind
            }
            for kind in ("tensor", "statistic")
        }
        (whole,), (kept,) = shapes.values()
        if not case.target.broadcast:
            beside = [1] * len(whole)
            axis = case.channel_axis
            beside[axis] = whole[axis]
            if kept != (whole[axis],):
                return None
            kept = tuple(beside)
        if len(kept) != len(whole) or any(
            n not in (1, m) for n, m in zip(kept, whole, strict=True)
        ):
            return None
        axes = tuple(a for a, n in enumerate(kept) if n == 1)
        everything = len(case.wanted) == len(case.target.schema.outputs)
        ignored = "" if everything else case.target.schema.ignored
        names, _ = _core.ports(case.target.schema.operation)
        values = dict(case.attributes)
        for port, name, value in zip(ports, names, raw, strict=True):
            values[name] = None
            if value is not None and port.name != ignored:
                shape = whole if port.kind == "tensor" else kept
                values[name] = value.astype(np.float64).reshape(shape)
        with np.errstate(all="ignore"):
            return case.target.formula(values, axes)
    except Exception:
        return None


def judge_result(case: Case, result: Any, wanted: list[Expected] | None) -> None:
    if wanted is None:
        raise WrongError(f"taken, and nobody knows what for: {case}")
    if "values" in case.spoiled:
        return  # what comes of inf and NaN is judged by the bits alone
    if case.backend == "onednn" and _has_negative_variance(case):
        return  # what f32 leaves of variance + epsilon there is little
    src = arrays.numpy_of(case.inputs[0])
    statistics = next(
        want.value.size
        for port, want in zip(case.target.schema.outputs, wanted, strict=True)
        if port.kind == "statistic"
    )
    per_statistic = src.size // max(1, statistics)
    for port, got, want in zip(case.target.schema.outputs, result, wanted, strict=True):
        if got is None:
            if port.name in case.wanted:
                raise WrongError(f"{port.name} is None: {case}")
            continue
        array = arrays.numpy_of(got)
        _compare(case, port.name, array, want, per_statistic)


def _has_negative_variance(case: Case) -> bool:
    ports = zip(case.target.schema.inputs, case.inputs, strict=True)
    return any(p.name == "variance" and (arrays.numpy_of(v) < 0).any() for p, v in ports)


def _compare(case: Case, name: str, got: np.ndarray, want: Expected, per_statistic: int) -> None:
    dtype = next(n for n, d in helpers.NUMPY.items() if d == got.dtype)
    value, magnitude, slack = (
        np.broadcast_to(a, np.shape(want.value)).reshape(got.shape) for a in want
    )
    sums = SUMS if case.backend != "onednn" else SUMS + per_statistic * 2.0**-24
    info = np.finfo(np.float32) if dtype != "f16" else np.finfo(np.float16)
    # oneDNN rounds between two ops.
    rounded = np.abs(value) + slack + (magnitude if case.backend == "onednn" else 0)
    allowed = NARROW[dtype] * rounded + (sums + 2.0**-21) * magnitude
    allowed += slack + float(info.smallest_subnormal)
    if case.backend == "onednn" and name.endswith("variance"):
        # The square of what its f32 sum leaves of the mean: of equal values too.
        allowed += (sums / PIVOT) ** 2 * magnitude
    fits = np.abs(value) + allowed < float(info.max)
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(np.float64) - value)
    bad = fits & ~(off <= allowed)
    if bad.any():
        at = tuple(int(i[0]) for i in np.nonzero(bad))
        raise WrongError(
            f"{name}{list(at)} is {got[at]}, not {value[at]} (allowed {allowed[at]:.3g}): {case}"
        )


def _judge_bits(rng: Rng, case: Case, result: Any) -> None:
    """Run again on other threads, on memory elsewhere, in place: the bits must be the same."""
    bits = [_bytes_of(member) for member in result if member is not None]
    again = dataclasses.replace(case, out=None, walls=None, way="direct")
    again.inputs = [
        arrays.shifted(rng, v)
        if isinstance(v, np.ndarray) and is_dense(v) and v.flags.aligned
        else v
        for v in case.inputs
    ]
    threads = int(choose(rng, THREADS))
    got = [_bytes_of(member) for member in run(again, threads) if member is not None]
    if got != bits:
        raise WrongError(f"other bits on {threads} threads: {case}")
