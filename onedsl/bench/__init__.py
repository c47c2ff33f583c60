"""Benchmark of onedsl, oneDNN and PyTorch: ``onedsl bench``, and the same from Python.

A `Case` is an operation on one layer in one dtype and data format. `implementations` returns the
calls to time for a case, and `measure` times the calls of several cases interleaved and returns a
`Row` for each case. Reported ratios compare times from the same interleaved rounds.
"""

from __future__ import annotations

from .cases import FORMATS, MIN_BYTES, OPERATIONS, WORKLOADS, Case, layers
from .implementations import BACKENDS, EPSILON, TRIAD, implementations
from .measure import Row, describe_machine, machine_facts, measure

__all__ = [
    "BACKENDS",
    "EPSILON",
    "FORMATS",
    "MIN_BYTES",
    "OPERATIONS",
    "TRIAD",
    "WORKLOADS",
    "Case",
    "Row",
    "describe_machine",
    "implementations",
    "layers",
    "machine_facts",
    "measure",
]
