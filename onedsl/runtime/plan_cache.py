"""The plans that onedsl keeps from call to call."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core


class PlanCounts(NamedTuple):
    """How much is kept."""

    plans: int
    bytes: int
    """About what they hold: some 90 KiB each in oneDNN, some hundred bytes in onedsl's kernels."""


def plan_counts() -> PlanCounts:
    """Count the plans that are kept.

    A call makes a plan for what it has not seen before: shape, memory order, types, epsilon,
    outputs, backend, number of threads. It is kept for the next such call. When there are 4096, or
    they hold 64 MiB, all are forgotten and the count starts anew.

    Returns
    -------
    PlanCounts

    Examples
    --------
    >>> onedsl.clear_plans()
    >>> onedsl.plan_counts()
    PlanCounts(plans=0, bytes=0)
    """
    return PlanCounts(*_core.plan_counts())


def clear_plans() -> None:
    """Forget the plans that are kept, and give back their memory.

    Safe at any time, from any thread: a call that is running keeps its own plan, and so does a
    compiled operator.
    """
    _core.clear_plans()
