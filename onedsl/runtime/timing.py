"""Interleaved timing of several calls, and noise detection."""

from __future__ import annotations

import os
import time
import timeit
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS = 5
# Duration of a sample and of the warm-up before it. The warm-up wakes the threads and lets the
# clock frequency settle, as in the middle of a training step.
SAMPLE_SECONDS = 2e-3

# CPU time of other programs below which a measurement is not noisy: CPUs, and seconds, because the
# kernel counts in hundredths.
TOLERATED_CPUS = 0.25
NOISE_SECONDS = 0.05


def samples_of(
    calls: Mapping[Name, Callable[[], object]], *, seconds: float = 0.0, pause: float = 0.0
) -> dict[Name, list[float]]:
    """Time calls in interleaved rounds, so that slow phases of the machine affect all of them.

    Return the seconds per call for each name, one value for each round. The rounds take `seconds`
    in total, but there are at least `MIN_ROUNDS`. `pause` is slept before each sample.
    """
    timers = {name: timeit.Timer(call, timer=time.perf_counter) for name, call in calls.items()}
    samples: dict[Name, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < deadline:
        for name, timer in timers.items():
            time.sleep(pause)
            repeats = _warm_up(timer)
            samples[name].append(timer.timeit(repeats) / repeats)
        rounds += 1
    return samples


def _warm_up(timer: timeit.Timer) -> int:
    """Repeat the timer's call for at least a sample's time, and return the number of calls."""
    total, number, elapsed = 0, 1, 0.0
    while True:
        elapsed += timer.timeit(number)
        total += number
        if elapsed >= SAMPLE_SECONDS:
            return total
        number = total


class NoiseMonitor:
    """Detects whether other programs use CPUs, from its construction on."""

    def __init__(self) -> None:
        self._begin, self._others = time.perf_counter(), _cpu_seconds_of_others()

    def is_noisy(self, num_threads: int) -> bool:
        """Return whether other programs left fewer CPUs than the number of threads."""
        others = _cpu_seconds_of_others() - self._others
        if others < NOISE_SECONDS:
            return False
        used = others / (time.perf_counter() - self._begin)
        return num_threads + used > (os.cpu_count() or 1) + TOLERATED_CPUS


def noise_warning() -> str:
    """Return a warning that other programs disturb the measurement, with a remedy."""
    warning = "Warning: other programs used CPUs that the threads needed."
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive":
        return warning
    return (
        f"{warning} A call can take ten times as long, because OpenMP's threads wait for each "
        "other actively. Set OMP_WAIT_POLICY=passive or a lower OMP_NUM_THREADS."
    )


def _cpu_seconds_of_others() -> float:
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    own = sum(os.times()[:4])  # with children that have ended
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - own
