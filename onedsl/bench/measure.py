"""Timing of the calls of cases, and a description of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .. import _core, capabilities
from .cases import Case
from .implementations import ALLOCATING, TRIADS, implementations
from .timing import time_calls


@dataclass(frozen=True, kw_only=True)
class Row(Case):
    """A case and its times."""

    seconds: Mapping[str, float]
    """Median seconds of a call over all rounds, by name of the call."""
    noisy: bool = False
    """Whether other programs used CPUs that the timed calls needed."""

    def fastest_call(self, name: str) -> str:
        """Return the name of the faster of an implementation's calls."""
        return min(name, name + ALLOCATING, key=lambda call: self.seconds.get(call, math.inf))

    def time(self, name: str) -> float:
        """Return the seconds of the faster of an implementation's calls, NaN if it did not run."""
        return self.seconds.get(self.fastest_call(name), math.nan)

    def floor(self, triad: str) -> float:
        """Return the minimum seconds of the algorithm at the memory bandwidth of a triad."""
        return self.floor_in_triads(TRIADS[triad]) * self.seconds[triad]

    @property
    def best_triad(self) -> str:
        """Name of the triad whose kind of stores allows the algorithm the least time."""
        return min(TRIADS, key=self.floor)

    def floor_share(self, name: str) -> float:
        """Return the minimum time of the algorithm as a fraction of an implementation's time."""
        return self.floor(self.best_triad) / self.time(name)


def warm_up_case(num_threads: int) -> Case:
    """Return a case of small tensors whose calls run on all threads.

    onedsl runs smaller ones on one thread: see `parallel_from` in ``csrc/native/plan/cpu.hpp``.
    """
    return Case("", (512 + 64 * num_threads, 64), "f32", "NXC")


def measure(calls: Mapping[Case, Mapping[str, Any]], seconds: float) -> list[Row]:
    """Time all calls of some cases in random order, for about these seconds.

    `calls` maps each case to its calls by name, as `implementations` returns them. Before each, the
    same implementation's calls with small tensors wake the threads.
    """
    named = {(case, name): call for case in calls for name, call in calls[case].items()}
    small = implementations(warm_up_case(_core.max_threads()))
    warm_ups = {(case, name): small[name] for case, name in named}
    times = time_calls(named, seconds=seconds, warm_ups=warm_ups)
    return [
        Row(
            **asdict(case),
            seconds={name: times.seconds[case, name] for name in by_name},
            noisy=times.noisy,
        )
        for case, by_name in calls.items()
    ]


def describe_machine() -> str:
    """Return versions, instruction sets and threads in one line."""
    found = capabilities()
    return (
        f"onedsl {found.onedsl_version} ({found.native_isa}), oneDNN {found.onednn_version} "
        f"({found.onednn_isa}), {found.num_threads} threads"
    )
