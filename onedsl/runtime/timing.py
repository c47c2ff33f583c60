"""Interleaved timing of several calls."""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS = 5
# Duration of a sample and of the warm-up before it. The warm-up wakes the threads and lets the
# clock frequency settle, as in the middle of a training step.
SAMPLE_SECONDS = 2e-3


def samples_of(
    calls: Mapping[Name, Callable[[], object]], *, seconds: float = 0.0, pause: float = 0.0
) -> dict[Name, list[float]]:
    """Time calls in interleaved rounds, so that slow phases of the machine affect all of them.

    Parameters
    ----------
    calls : mapping of name to callable
    seconds : float
        Total time for all calls. At least `MIN_ROUNDS` rounds are run, even if they take longer.
    pause : float
        Seconds to sleep before each sample.

    Returns
    -------
    dict
        The seconds per call for each name, one value for each round.
    """
    timers = {name: timeit.Timer(call, timer=time.perf_counter) for name, call in calls.items()}
    samples: dict[Name, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < deadline:
        for name, timer in timers.items():
            time.sleep(pause)
            repeats = _warm_up(timer, SAMPLE_SECONDS)
            samples[name].append(timer.timeit(repeats) / repeats)
        rounds += 1
    return samples


def median_seconds(
    calls: Mapping[Name, Callable[[], object]], *, seconds: float = 0.0
) -> dict[Name, float]:
    """Return the median seconds of each call, timed by `samples_of`."""
    return {
        name: statistics.median(times) for name, times in samples_of(calls, seconds=seconds).items()
    }


def _warm_up(timer: timeit.Timer, seconds: float) -> int:
    """Repeat the timer's call for at least the given time, and return the number of calls."""
    total, number, elapsed = 0, 1, 0.0
    while True:
        elapsed += timer.timeit(number)
        total += number
        if elapsed >= seconds:
            return total
        number = total
