"""Timing of single calls in random order, and noise detection."""

from __future__ import annotations

import os
import random
import re
import statistics
import time
import timeit
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .. import _core

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

TOLERATED_CPUS = 0.25
"""A measurement is noisy if other programs use more CPUs than this of those that it needs."""
TICKS_SECONDS = 0.05  # less CPU time is not counted, because the kernel counts in hundredths


@dataclass(frozen=True)
class Times(Generic[Name]):
    """Times of calls that were measured together."""

    seconds: dict[Name, float]
    """Median seconds of a call over all rounds, by name of the call."""
    noisy: bool
    """Whether other programs used CPUs that the calls needed."""


def time_calls(
    calls: Mapping[Name, Callable[[], object]],
    *,
    seconds: float = 0.0,
    warm_ups: Mapping[Name, Callable[[], object]] | None = None,
) -> Times[Name]:
    """Time single calls in random order.

    In each round every call is timed once; a short one in a batch of `SAMPLE_SECONDS`. Before it,
    its warm-up runs repeatedly, by default the call itself. The rounds take `seconds` in total, but
    there are at least `MIN_ROUNDS`.
    """
    timers = {name: timeit.Timer(call) for name, call in calls.items()}
    wakers = timers | {name: timeit.Timer(call) for name, call in (warm_ups or {}).items()}
    batches = {name: _calls_in(SAMPLE_SECONDS, timer) for name, timer in timers.items()}
    samples: dict[Name, list[float]] = {name: [] for name in calls}
    openmp = [path for path in threading_libraries() if not path.name.startswith("libtbb")]
    pause = PAUSE_SECONDS if len(openmp) > 1 else 0.0
    order = list(calls)
    rng = random.Random(0)
    monitor = NoiseMonitor()
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
    medians = {name: statistics.median(found) for name, found in samples.items()}
    return Times(medians, monitor.is_noisy(_core.max_threads()))


def _calls_in(seconds: float, timer: timeit.Timer) -> int:
    """Repeat the timer's call for at least these seconds, and return the number of calls."""
    total, number, elapsed = 0, 1, 0.0
    while True:
        elapsed += timer.timeit(number)
        total += number
        if elapsed >= seconds:
            return total
        number = total


def threading_libraries() -> list[Path]:
    """Return the libraries of OpenMP and TBB in this process."""
    maps = Path("/proc/self/maps").read_text()
    found = re.findall(r"(/.*/lib(?:gomp|i?omp5?|tbb)\b[^/\n]*)$", maps, re.MULTILINE)
    return list(map(Path, dict.fromkeys(found)))


class NoiseMonitor:
    """Detects whether threads have fewer CPUs than they need, from its construction on."""

    def __init__(self) -> None:
        self._begin = _counters()

    def is_noisy(self, num_threads: int) -> bool:
        """Return whether other programs, or a container's limit, left fewer CPUs than threads."""
        changes = zip(_counters(), self._begin, strict=True)
        elapsed, others, withheld = (now - before for now, before in changes)
        spare = len(os.sched_getaffinity(0)) - num_threads + TOLERATED_CPUS
        used = others > max(TICKS_SECONDS, spare * elapsed)
        return used or withheld > TOLERATED_CPUS * elapsed


def _counters() -> tuple[float, float, float]:
    """Return the time, and CPU time that others used and that a container's limit withheld."""
    cpus = os.sched_getaffinity(0)
    own = sum(os.times()[:4])  # with children that have ended
    # cpu<number> user nice system idle iowait irq softirq stolen
    pattern = r"^cpu(\d+) (\d+) (\d+) (\d+) (?:\d+ ){4}(\d+)"
    found = re.findall(pattern, _read("/proc/stat"), re.MULTILINE)
    ticks = sum(sum(map(int, used)) for cpu, *used in found if int(cpu) in cpus)
    # Of the control group of a container, in version 2 and in version 1.
    v2 = re.findall(r"^throttled_usec (\d+)", _read("/sys/fs/cgroup/cpu.stat"), re.MULTILINE)
    v1 = re.findall(r"^throttled_time (\d+)", _read("/sys/fs/cgroup/cpu/cpu.stat"), re.MULTILINE)
    withheld = sum(map(int, v2)) / 1e6 + sum(map(int, v1)) / 1e9
    return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK") - own, withheld


def _read(path: str) -> str:
    """Return a file's text, or nothing if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def noise_warning() -> str:
    """Return a warning that other programs disturb the measurement, with a remedy."""
    warning = "Warning: other programs used CPUs that the threads needed."
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive":
        return warning
    return (
        f"{warning} A call can take ten times as long, because OpenMP's threads wait for each "
        "other actively. Set OMP_WAIT_POLICY=passive or a lower OMP_NUM_THREADS."
    )
