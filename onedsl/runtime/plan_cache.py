"""Statistics and clearing of the plan cache."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core


class PlanCounts(NamedTuple):
    """Size of the plan cache."""

    plans: int
    """Number of plans."""
    bytes: int
    """Estimated memory of the plans. Those of oneDNN are much larger than onedsl's own."""


def plan_counts() -> PlanCounts:
    """Return the number and the estimated memory of the cached plans.

    A call caches one plan for each new combination of operator, shape, memory order, dtypes,
    epsilon, outputs, backend and number of threads. The cache is cleared when it reaches some
    thousand plans, or tens of megabytes.
    """
    return PlanCounts(*_core.plan_counts())


def clear_plans() -> None:
    """Remove all plans from the cache and free their memory.

    This is safe at any time and from any thread: running calls and compiled operators keep the
    plans that they use.
    """
    _core.clear_plans()
