"""Interleaved timing of the calls of cases, and noise detection."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import _core
from ..runtime.timing import samples_of
from .cases import Case
from .implementations import ALLOCATING, TRIAD, uses_non_temporal_stores

# If a process has two OpenMP runtimes, for example because PyTorch contains its own libgomp, the
# idle threads of one spin on the cores that the other needs. After a pause they sleep.
PAUSE_SECONDS = 0.004

# Number of CPUs that other programs may use before a measurement counts as noisy.
TOLERATED_CPUS = 0.25


@dataclass(frozen=True, kw_only=True)
class Row(Case):
    """A case and its times.

    Attributes
    ----------
    seconds : mapping of str to float
        Median seconds of a call over all rounds, by name of the call.
    noise : mapping of str to float
        Relative standard error of each median.
    noisy : bool
        Whether other programs used CPUs that the timed calls needed.
    non_temporal : bool
        Whether the triad, and onedsl's kernel, used non-temporal stores.
    """

    seconds: Mapping[str, float]
    noise: Mapping[str, float]
    noisy: bool = False
    non_temporal: bool = True  # older files lack it: their triad always used such stores

    def time(self, name: str) -> float:
        """Return the seconds of the faster of an implementation's calls, NaN if it did not run."""
        calls = name, name + ALLOCATING
        return min((self.seconds[call] for call in calls if call in self.seconds), default=math.nan)

    def ran(self, name: str) -> bool:
        """Return whether an implementation ran."""
        return not math.isnan(self.time(name))

    @property
    def triad_bandwidth(self) -> float:
        """Bytes per second of the triad in the same rounds, without the reads of its stores."""
        return 3 * self.tensor_bytes / self.time(TRIAD)

    def bandwidth_share(self, name: str) -> float:
        """Return an implementation's effective memory bandwidth as a fraction of the triad's.

        The effective bandwidth counts each tensor once.
        """
        return self.bytes / self.time(name) / self.triad_bandwidth

    def floor_share(self, name: str) -> float:
        """Return the minimum time of the algorithm as a fraction of an implementation's time."""
        return self.floor_in_triads(self.non_temporal) * self.time(TRIAD) / self.time(name)


def measure(calls: Mapping[Case, Mapping[str, Any]], seconds: float) -> list[Row]:
    """Time all calls of some cases interleaved.

    Parameters
    ----------
    calls : mapping of Case to mapping of str to callable
    seconds : float
        Approximate time to spend.

    Returns
    -------
    list of Row
        One for each case.
    """
    all_calls = {
        (case, name): call for case, by_name in calls.items() for name, call in by_name.items()
    }
    monitor = NoiseMonitor()
    samples = samples_of(all_calls, seconds=seconds, pause=PAUSE_SECONDS)
    noisy = monitor.is_noisy(_core.max_threads())
    return [
        Row(
            **asdict(case),
            seconds={name: statistics.median(samples[case, name]) for name in by_name},
            noise={name: standard_error(samples[case, name]) for name in by_name},
            noisy=noisy,
            non_temporal=uses_non_temporal_stores(case),
        )
        for case, by_name in calls.items()
    ]


def standard_error(samples: Sequence[float]) -> float:
    """Estimate the relative standard error of the median from the median absolute deviation.

    For normal samples the standard deviation is 1.48 median absolute deviations, and the error of
    the median is 1.25 times that of the mean. Outliers have no influence.
    """
    median = statistics.median(samples)
    deviation = 1.4826 * statistics.median([abs(sample - median) for sample in samples])
    return 1.2533 * deviation / math.sqrt(len(samples)) / median


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of ratios, NaN if there are none."""
    return statistics.geometric_mean(values) if values else math.nan


class NoiseMonitor:
    """Detects whether other programs use CPUs, from its construction on."""

    def __init__(self) -> None:
        self._begin, self._others = time.perf_counter(), _cpu_seconds_of_others()

    def is_noisy(self, num_threads: int) -> bool:
        """Return whether other programs left fewer CPUs than the number of threads."""
        elapsed = time.perf_counter() - self._begin
        used = (_cpu_seconds_of_others() - self._others) / elapsed
        return num_threads + used > (os.cpu_count() or 1) + TOLERATED_CPUS


def _cpu_seconds_of_others() -> float:
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


def noise_warning(rows: Iterable[Row]) -> list[str]:
    """Return a warning about noisy rows: one line, or none."""
    noisy = [row.noisy for row in rows]
    if not any(noisy):
        return []
    return [
        f"Warning: {sum(noisy)} of {len(noisy)} rows are noisy, because other programs used the "
        "CPUs. Their times are not reliable."
    ]
