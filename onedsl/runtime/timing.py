"""Timing calls against each other."""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS = 5
# A sample is about this long if the call can be repeated, and so are the calls before it: threads
# are awake then, and CPUs at their usual clock, as in the middle of a training step.
SAMPLE_SECONDS = 2e-3


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
            repeats = _repeat(timer, SAMPLE_SECONDS)
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


def _repeat(timer: timeit.Timer, seconds: float) -> int:
    """Call for so long, and once at least; tell how often that was."""
    total, number, elapsed = 0, 1, 0.0
    while True:
        elapsed += timer.timeit(number)
        total += number
        if elapsed >= seconds:
            return total
        number = total
