"""Interleaved timing of the calls of cases, and a description of the machine."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import _core, capabilities
from ..runtime.timing import NoiseMonitor, samples_of
from .cases import Case
from .implementations import ALLOCATING, TRIAD, uses_non_temporal_stores

# If a process has two OpenMP runtimes, for example GCC's libgomp and Intel's libiomp5, the idle
# threads of one spin on the cores that the other needs. After a pause they sleep.
PAUSE_SECONDS = 0.004


@dataclass(frozen=True, kw_only=True)
class Row(Case):
    """A case and its times."""

    seconds: Mapping[str, float]
    """Median seconds of a call over all rounds, by name of the call."""
    noise: Mapping[str, float]
    """Relative standard error of each median."""
    noisy: bool = False
    """Whether other programs used CPUs that the timed calls needed."""
    non_temporal: bool = True
    """Whether the triad, and onedsl's kernel, used non-temporal stores."""

    def time(self, name: str) -> float:
        """Return the seconds of the faster of an implementation's calls, NaN if it did not run."""
        calls = name, name + ALLOCATING
        return min((self.seconds[call] for call in calls if call in self.seconds), default=math.nan)

    def floor_share(self, name: str) -> float:
        """Return the minimum time of the algorithm as a fraction of an implementation's time."""
        return self.floor_in_triads(self.non_temporal) * self.time(TRIAD) / self.time(name)


def measure(calls: Mapping[Case, Mapping[str, Any]], seconds: float) -> list[Row]:
    """Time all calls of some cases interleaved, for about these seconds.

    `calls` maps each case to its calls by name, as `implementations` returns them.
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


def machine_facts() -> dict[str, Any]:
    """Return the facts that times depend on: CPU, versions, instruction sets, threads, cache."""
    found = capabilities()
    return {
        "cpu": cpu_field("model name"),
        "onedsl": found.onedsl_version,
        "onednn": found.onednn_version,
        "onednn_isa": found.onednn_isa,
        "native_isa": found.native_isa,
        "num_threads": found.num_threads,
        "last_cache_bytes": _core.last_cache_bytes(),
    }


def describe_machine() -> str:
    """Return versions, instruction sets and threads in one line."""
    return (
        "onedsl {onedsl} ({native_isa}), oneDNN {onednn} ({onednn_isa}), {num_threads} threads"
    ).format(**machine_facts())


def cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo, or an empty string."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""
