"""Timing of single calls in random order, and noise detection."""

from __future__ import annotations

import os
import random
import re
import time
import timeit
from collections.abc import Callable, Hashable, Iterator, Mapping
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

CGROUP_FILE = "/proc/self/cgroup"


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
    """Detects whether other programs use CPUs of this process, from its construction on."""

    def __init__(self) -> None:
        self._begin, self._before = time.perf_counter(), _cpu_seconds_of_others()

    def is_noisy(self, num_threads: int) -> bool:
        """Return whether other programs left fewer CPUs than the number of threads."""
        elapsed = time.perf_counter() - self._begin
        now = _cpu_seconds_of_others()
        for (cpus, before), (_, after) in zip(self._before, now, strict=False):
            others = after - before
            if others >= NOISE_SECONDS and num_threads + others / elapsed > cpus + TOLERATED_CPUS:
                return True
        # Threads beyond the control group's quota wait for each other, too.
        return any(num_threads > cpus + TOLERATED_CPUS for cpus, _ in now[1:])


def noise_warning() -> str:
    """Return a warning that other programs disturb the measurement, with a remedy."""
    warning = "Warning: other programs used CPUs that the threads needed."
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive":
        return warning
    return (
        f"{warning} A call can take ten times as long, because OpenMP's threads wait for each "
        "other actively. Set OMP_WAIT_POLICY=passive or a lower OMP_NUM_THREADS."
    )


def _cpu_seconds_of_others() -> list[tuple[float, float]]:
    """Return numbers of CPUs, and the CPU time that other processes and machines used on them.

    The first pair is of the CPUs that the process may use. The others are of control groups, which
    limit the CPU time of their processes: a container's, for example.
    """
    cpus = os.sched_getaffinity(0)
    own = sum(os.times()[:4])  # with children that have ended
    used = 0
    for number, times in re.findall(r"^cpu(\d+) (.*)", _read("/proc/stat"), re.MULTILINE):
        if int(number) in cpus:
            user, nice, system, _, _, _, _, stolen = map(int, times.split()[:8])
            used += user + nice + system + stolen
    found = [(float(len(cpus)), used / os.sysconf("SC_CLK_TCK") - own)]
    return found + [(quota, seconds - own) for quota, seconds in _quotas(_read(CGROUP_FILE))]


def _quotas(cgroups: str, root: str = "/sys/fs/cgroup") -> Iterator[tuple[float, float]]:
    """Yield the quotas of the process's control groups in CPUs, and the seconds that they used."""
    for path in re.findall(r"^0::/(.*)$", cgroups, re.MULTILINE):  # version 2
        folder = Path(root, path)
        for parent in (folder, *list(folder.parents)[: len(Path(path).parts)]):
            quota, _, period = _read(parent / "cpu.max").partition(" ")  # or "max"
            used = _read(parent / "cpu.stat").split()  # "usage_usec" and a number come first
            if quota.isdecimal() and used:
                yield int(quota) / int(period), int(used[1]) / 1e6
    for path in re.findall(r"^\d+:(?:\w+,)*cpu(?:,\w+)*:/(.*)$", cgroups, re.MULTILINE):
        for folder in dict.fromkeys((Path(root, "cpu", path), Path(root, "cpu"))):
            quota = _read(folder / "cpu.cfs_quota_us").strip()  # -1: no limit
            period = _read(folder / "cpu.cfs_period_us")
            usage = _read(Path(root, "cpuacct", folder.relative_to(f"{root}/cpu"), "cpuacct.usage"))
            if quota.isdecimal() and usage:
                yield int(quota) / int(period), int(usage) / 1e9


def _read(path: str | Path) -> str:
    """Return a file's text, or nothing if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
