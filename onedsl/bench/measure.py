"""Timing the calls of cases in turns, with the machine's own memory rate among them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import _core
from ..runtime.timing import samples_of
from .cases import NEW, Case
from .implementations import TRIAD
from .machine import Watch

# Two OpenMP runtimes in one process, as where PyTorch has a libgomp under another name, take the
# cores from each other while their idle threads still spin; a pause before a contender's turn lets
# the other's go to sleep.
PAUSE_SECONDS = 0.004


@dataclass(frozen=True, kw_only=True)
class Row(Case):
    """A case and its times."""

    seconds: Mapping[str, float]
    """A call's, by contender: the median of all rounds."""
    noise: Mapping[str, float]
    """The standard error of each median, as a share of it."""
    disturbed: bool = False
    """Whether other programs wanted CPUs that the timing needed."""

    def time(self, who: str) -> float:
        """Give the seconds of the faster of a contender's calls, NaN where it did not run."""
        calls = who, who + NEW
        return min((self.seconds[name] for name in calls if name in self.seconds), default=math.nan)

    def ran(self, who: str) -> bool:
        """Tell whether a contender did."""
        return not math.isnan(self.time(who))

    @property
    def bytes_per_second(self) -> float:
        """What the memory gave in the same rounds, for tensors of this size: the triad's rate."""
        return 3 * self.tensor_bytes / self.time(TRIAD)

    def triad_share(self, who: str) -> float:
        """Give a contender's rate as a share of the triad's."""
        return self.bytes / self.bytes_per_second / self.time(who)

    def floor_share(self, who: str) -> float:
        """Give the time that the bytes of the algorithm take at the triad's rate, as a share."""
        return self.floor_bytes / self.bytes_per_second / self.time(who)


def measure(calls: Mapping[Case, Mapping[str, Any]], seconds: float) -> list[Row]:
    """Time all calls of some cases in turns, spending about the given time on them.

    Parameters
    ----------
    calls : mapping of Case to calls by contender
    seconds : float

    Returns
    -------
    list of Row
        One for each case.
    """
    everyone = {
        (case, name): call for case, by_name in calls.items() for name, call in by_name.items()
    }
    watch = Watch()
    samples = samples_of(everyone, seconds=seconds, pause=PAUSE_SECONDS)
    disturbed = watch.disturbed(_core.max_threads())
    return [
        Row(
            **asdict(case),
            seconds={name: statistics.median(samples[case, name]) for name in by_name},
            noise={name: standard_error(samples[case, name]) for name in by_name},
            disturbed=disturbed,
        )
        for case, by_name in calls.items()
    ]


def standard_error(samples: Sequence[float]) -> float:
    """Estimate that of the median, as a share of it, from the median deviation.

    For normal samples the deviation is 1.48 median deviations, and the median's error 1.25 times
    the mean's. A few samples that were disturbed do not count.
    """
    median = statistics.median(samples)
    deviation = 1.4826 * statistics.median([abs(sample - median) for sample in samples])
    return 1.2533 * deviation / math.sqrt(len(samples)) / median


def disturbance(rows: Iterable[Row]) -> list[str]:
    """Warn, in one line or none, of rows that other programs disturbed."""
    disturbed = [row.disturbed for row in rows]
    if not any(disturbed):
        return []
    return [
        f"Other programs kept the CPUs busy in {sum(disturbed)} of {len(disturbed)} rows: "
        "do not trust their times."
    ]


def geometric_mean(values: Sequence[float]) -> float:
    """Average ratios; NaN if there are none."""
    return statistics.geometric_mean(values) if values else math.nan
