"""Benchmark of onedsl, oneDNN and PyTorch: ``onedsl bench``, and the same from Python.

A `Case` is an operation on one layer in one dtype and data format. `implementations` returns the
calls to time for a case, and `measure` times the calls of several cases and returns a `Row` for
each case. `time_calls` times any calls in the same way.

Single calls are timed, as a program makes them between other work: all calls of a layer, of every
implementation and in both formats, in random order. Each uses the next of several copies of the
tensors, which together exceed the last-level cache, or 32 MiB if that is less. So inputs and given
memory are out of cache, except on CPUs with a larger cache.
Calls that take less than 20 us are timed in small batches. Before each sample, calls with small
tensors wake the threads. onedsl, oneDNN and PyTorch each have two calls: one writes to given
memory, one allocates its results, often in memory that is still in cache. The time of an
implementation is the median of the faster one. Ratios compare times from the same rounds.

The minimum time of an algorithm (the floor) is that of its memory traffic at the bandwidth of a
triad, ``out = a + 2 * b``, timed in the same rounds with ordinary and with non-temporal stores: the
floor is the lesser of the two.
"""

from __future__ import annotations

from .cases import FORMATS, MIN_BYTES, OPERATIONS, WORKLOADS, Case, layers
from .implementations import ALLOCATING, BACKENDS, COLORS, EPSILON, TRIADS, implementations
from .measure import Row, describe_machine, measure
from .timing import NoiseMonitor, Times, noise_warning, time_calls

__all__ = [
    "ALLOCATING",
    "BACKENDS",
    "COLORS",
    "EPSILON",
    "FORMATS",
    "MIN_BYTES",
    "OPERATIONS",
    "TRIADS",
    "WORKLOADS",
    "Case",
    "NoiseMonitor",
    "Row",
    "Times",
    "describe_machine",
    "implementations",
    "layers",
    "measure",
    "noise_warning",
    "time_calls",
]
