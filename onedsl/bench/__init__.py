"""The benchmark behind ``python -m onedsl bench`` and ``examples/compare_data_formats.py``.

Cases (an operation on a layer in one type and format) become calls, one for each contender; the
calls are timed in turns and become rows; rows are shown in a table and drawn in a picture. What is
claimed are ratios of times that were measured in turns.
"""

from __future__ import annotations

from .cases import FORMATS, WORKLOADS, Case, cases, random_problem
from .expected import expected
from .implementations import BACKENDS, TRIAD, implementations, onedsl_calls, triad_call
from .machine import Watch, machine
from .measure import Row, disturbance, geometric_mean, measure
from .memory import EPSILON, Memory, copies_past_the_cache, memory
from .operations import OPERATIONS

__all__ = [
    "BACKENDS",
    "EPSILON",
    "FORMATS",
    "OPERATIONS",
    "TRIAD",
    "WORKLOADS",
    "Case",
    "Memory",
    "Row",
    "Watch",
    "cases",
    "copies_past_the_cache",
    "disturbance",
    "expected",
    "geometric_mean",
    "implementations",
    "machine",
    "measure",
    "memory",
    "onedsl_calls",
    "random_problem",
    "triad_call",
]
