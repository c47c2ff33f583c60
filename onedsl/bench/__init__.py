"""The benchmark behind ``python -m onedsl bench`` and ``examples/compare_data_formats.py``.

Cases (a layer in one type and format) become calls, one for each contender; the calls are timed in
turns and become rows; rows are shown in a table and drawn in a picture. What is claimed are ratios
of times that were measured in turns.
"""

from __future__ import annotations

from .cases import FORMATS, WORKLOADS, Case, cases, random_problem
from .contenders import BACKENDS, EPSILON, contenders, onedsl_calls, rotation
from .machine import Triad, Watch, machine, triad_arrays
from .measure import Row, disturbance, geometric_mean, measure

__all__ = [
    "BACKENDS",
    "EPSILON",
    "FORMATS",
    "WORKLOADS",
    "Case",
    "Row",
    "Triad",
    "Watch",
    "cases",
    "contenders",
    "disturbance",
    "geometric_mean",
    "machine",
    "measure",
    "onedsl_calls",
    "random_problem",
    "rotation",
    "triad_arrays",
]
