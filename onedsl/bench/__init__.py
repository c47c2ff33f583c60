"""Benchmark of onedsl, oneDNN and PyTorch, used by ``onedsl bench`` and the examples.

A `Case` is an operation on one layer in one dtype and data format. `implementations` returns the
calls to time for a case, `measure` times them interleaved and returns a `Row` for each case, and
the modules `report`, `compare` and `plot` present rows. `steps` times whole training steps.

Reported ratios compare times from the same interleaved rounds.
"""

from __future__ import annotations

from .cases import FORMATS, OPERATIONS, WORKLOADS, Case, cases
from .implementations import BACKENDS, TRIAD, implementations, onedsl_calls, triad_call
from .machine import describe_machine, machine_facts
from .measure import NoiseMonitor, Row, geometric_mean, measure, noise_warning
from .memory import EPSILON, Memory, copies_beyond_cache, expected, memory, random_problem

__all__ = [
    "BACKENDS",
    "EPSILON",
    "FORMATS",
    "OPERATIONS",
    "TRIAD",
    "WORKLOADS",
    "Case",
    "Memory",
    "NoiseMonitor",
    "Row",
    "cases",
    "copies_beyond_cache",
    "describe_machine",
    "expected",
    "geometric_mean",
    "implementations",
    "machine_facts",
    "measure",
    "memory",
    "noise_warning",
    "onedsl_calls",
    "random_problem",
    "triad_call",
]
