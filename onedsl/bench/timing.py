"""Timing of single calls in random order, and noise detection."""

from __future__ import annotations

import os
import random
import re
import time
import timeit
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS = 5
SAMPLE_SECONDS = 2e-5
"""Calls that take less are timed in batches of about this duration."""
# Duration of the warm-up before a sample, which wakes the threads, as they are awake in the middle
# of a training step.
WARM_UP_SECONDS = 2e-4
# If a process has two OpenMP runtimes, for example GCC's libgomp and Intel's libiomp5, the idle
# threads of one spin on the cores that the other needs. After a pause they sleep.
PAUSE_SECONDS = 0.004

# CPU time of other programs below which a measurement is not noisy: CPUs, and seconds, because the
# kernel counts in hundredths.
TOLERATED_CPUS = 0.25
NOISE_SECONDS = 0.05


def samples_of(
    calls: Mapping[Name, Callable[[], object]],
    *,
    seconds: float = 0.0,
    warm_ups: Mapping[Name, Callable[[], object]] | None = None,
) -> dict[Name, list[float]]:
    """Time single calls in random order, as a program makes them between other work.

    In each round every call is timed once; a short one in a batch of `SAMPLE_SECONDS`. Before it,
    its warm-up runs repeatedly, by default the call itself. Return the seconds per call for each
    name, one value for each round. The rounds take `seconds` in total, but there are at least
    `MIN_ROUNDS`.
    """
    timers = {name: timeit.Timer(call) for name, call in calls.items()}
    wakers = timers | {name: timeit.Timer(call) for name, call in (warm_ups or {}).items()}
    batches = {name: _calls_in(SAMPLE_SECONDS, timer) for name, timer in timers.items()}
    samples: dict[Name, list[float]] = {name: [] for name in calls}
    pause = PAUSE_SECONDS if _openmp_runtimes() > 1 else 0.0
    order = list(calls)
    rng = random.Random(0)
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < deadline:
        rng.shuffle(order)
        for name in order:
            time.sleep(pause)
            _calls_in(WARM_UP_SECONDS, wakers[name])
            number = batches[name]
            samples[name].append(timers[name].timeit(number) / number)
        rounds += 1
    return samples


def _calls_in(seconds: float, timer: timeit.Timer) -> int:
    """Repeat the timer's call for at least these seconds, and return the number of calls."""
    total, number, elapsed = 0, 1, 0.0
    while True:
        elapsed += timer.timeit(number)
        total += number
        if elapsed >= seconds:
            return total
        number = total


def _openmp_runtimes() -> int:
    """Return the number of OpenMP libraries in this process."""
    maps = Path("/proc/self/maps").read_text()
    return len(set(re.findall(r"/\S*/lib(?:gomp|iomp|omp)[-.\d]\S*", maps)))


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
    """Return the CPU time of other processes, and of other machines on the same CPUs."""
    user, nice, system, _, _, _, _, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    own = sum(os.times()[:4])  # with children that have ended
    return (user + nice + system + stolen) / os.sysconf("SC_CLK_TCK") - own
