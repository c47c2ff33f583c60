"""The calls for which each law must hold, in all doors that can make them."""

import functools
from dataclasses import replace
from itertools import groupby, product
from typing import Any

import pytest
from doors import DOORS
from doors.base import Door

from cases.activations import ACTIVATIONS
from cases.calls import CALLS, EMPTY, LARGE, MEMORIES, RANKS, Call, calls_of
from cases.faults import FAULTS

RELUS = [row for row in ACTIVATIONS if row.name == "relu"]
GRADIENTS = "BatchNormTrainingBackward", "BatchNormActTrainingBackward"
F32 = "f32", "f32"
SLOPE = [row for row in ACTIVATIONS if row.name == "leaky_relu" and row.follows_from_dst][-1:]


def group(call: Call) -> tuple[str, ...]:
    """Return what the calls of one test have in common."""
    return call.target.cls.__name__, call.dtype, call.stats


GROUPS = [*dict.fromkeys(map(group, CALLS))]


def _by_operator(calls: list[Call]) -> list[Call]:
    """Return the calls in the order of GROUPS."""
    return sorted(calls, key=lambda call: GROUPS.index(group(call)))


def _with_options(calls: list[Call]) -> list[Call]:
    """Return each call with all outputs and with fewer, which are written to given arrays."""
    return [
        replace(call, requested=requested, out="given")
        for call in calls
        for requested in (("all", "fewer") if call.target.option else ("",))
        if requested != "all"
        or not call.target.schema.alternatives
        or not (call.omits("residual") and call.omits("dst"))
    ]


def _with_faults(calls: list[Call]) -> list[Call]:
    """Return each call with each fault that it can have."""
    return [
        replace(valid, fault=name)
        for call in calls
        for name, fault in FAULTS.items()
        for valid in [replace(call, out="given" if name.startswith("out") else "")]
        if fault.applies(valid)
    ]


def _one_of_each_fault(calls: list[Call]) -> list[Call]:
    """Return the first call with each fault of each class."""
    found: dict[tuple[type, str], Call] = {}
    for call in calls:
        found.setdefault((call.target.cls, call.fault), call)
    return [*found.values()]


INVALID = _with_faults(
    [call for call in calls_of(SLOPE, ["rank 4"]) if call.given in ("all", "dst")]
)

STEPS = {"layouts": 3, "in place": 5, "records": 7, "changes": 11}
"""Steps through CALLS, as those of `doors.base.STEPS`."""

LAWS: dict[str, list[Call]] = {
    "values": _by_operator(
        CALLS + [call for call in calls_of(SLOPE, {**LARGE, **RANKS}) if call.given == "all"]
    ),
    "combinations": _with_options(calls_of(RELUS, RANKS)),
    "empty": _by_operator(calls_of(RELUS[:1], EMPTY) + _with_options(calls_of(RELUS[:1], EMPTY))),
    "layouts": CALLS[:: STEPS["layouts"]],
    "bits": CALLS,
    "threads": [call for call in calls_of(SLOPE, LARGE) if call.given in ("all", "no parameters")],
    "memory": calls_of(SLOPE, MEMORIES),
    "in place": [replace(call, out="in place") for call in CALLS[:: STEPS["in place"]]],
    "rejects": INVALID,
    "words": _one_of_each_fault(
        [call for call in INVALID if group(call)[0] in GRADIENTS and group(call)[1:] == F32]
    ),
    "records": CALLS[:: STEPS["records"]],
    "changes": [call for call in CALLS[:: STEPS["changes"]] if not call.is_forward],
    "derivatives": [
        call
        for call in calls_of(ACTIVATIONS, ["rank 4"])
        if call.dtype == "f32" and not call.is_forward
    ],
}


def why_not(law: str, door: Door, call: Call) -> str:
    """Return why a law does not apply to the calls of a door, or an empty string."""
    if law == "bits" and call.target.cls.__name__ not in door.same_bits:
        return "Its results are not compared with those of NumPy's arrays."
    if law == "bits" and door.is_row_major and call.problem.endswith("in another order"):
        return "The library copies such arrays to row-major memory."
    if law == "words" and not door.has_words:
        return "Its words are those of NumPy's arrays, or PyTorch's own."
    if law == "changes" and not door.between_passes(call):
        return "A call is one pass."
    if law == "derivatives":
        return door.undifferentiable(call)
    return door.threads if law == "threads" else ""


@functools.cache
def calls_under(law: str, door: Door) -> list[Call]:
    """Return the calls of a door that a law tests."""
    calls = [
        call for call in LAWS[law] if not why_not(law, door, call) and not door.reason_against(call)
    ]
    return calls if law == "words" else door.sample(calls)


def law(*names: str) -> Any:
    """Parametrize a test over the doors, and the calls of each operator and dtype.

    A test with several names has the calls of each.
    """
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for name, door in product(names, DOORS):
        for key, calls in groupby(calls_under(name, door), group):
            here = [call for call in calls if door.runs_here(call)]
            named = (name, *key) if len(names) > 1 else key
            groups.setdefault(named, []).extend([(door, here)] if here else [])
    return pytest.mark.parametrize(
        ("door", "calls"),
        [
            pytest.param(
                door,
                calls,
                id="-".join([str(door), *key]),
                marks=[]
                if door.is_available
                else pytest.mark.skip(f"{door.library} is optional, and not installed here"),
            )
            for key, pairs in groups.items()
            for door, calls in pairs
        ],
    )
