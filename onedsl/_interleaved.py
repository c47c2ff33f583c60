"""Timing calls against each other."""

from __future__ import annotations

import math
import statistics
import time
import timeit
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS = 5
# A sample is not shorter than this if the call can be repeated, so that the clock does not count.
SAMPLE_SECONDS = 5e-4


def samples_of(
    calls: Mapping[Name, Callable[[], object]], *, seconds: float = 0.0, pause: float = 0.0
) -> dict[Name, list[float]]:
    """Time calls in turns, so that all meet the same minute of the machine.

    Parameters
    ----------
    calls : mapping of name to callable
    seconds : float
        To spend on all together; no fewer than MIN_ROUNDS rounds are made.
    pause : float
        Seconds to wait before each call's turn.

    Returns
    -------
    dict
        The seconds of each call in every round.
    """
    timers = {name: timeit.Timer(call, timer=time.perf_counter) for name, call in calls.items()}
    samples: dict[Name, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < deadline:
        for name, timer in timers.items():
            time.sleep(pause)
            once = timer.timeit(1)  # wakes the call's threads, and tells how often to repeat it
            repeats = max(1, math.ceil(SAMPLE_SECONDS / max(once, 1e-7)))
            samples[name].append(timer.timeit(repeats) / repeats)
        rounds += 1
    return samples


def median_seconds(
    calls: Mapping[Name, Callable[[], object]], *, seconds: float = 0.0
) -> dict[Name, float]:
    """Time calls as `samples_of` does, and give the median seconds of each."""
    return {
        name: statistics.median(times) for name, times in samples_of(calls, seconds=seconds).items()
    }
