"""Timing of the calls of cases, comparison of runs, and a description of the machine."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


class Change(NamedTuple):
    """The change of a row's time: new over old, and the standard error of this ratio."""

    ratio: float
    noise: float

    @property
    def is_slower(self) -> bool:
        """Whether the ratio exceeds 1.1, and exceeds 1 by two standard errors."""
        return self.ratio > 1.1 and self.ratio - 2 * self.noise > 1


def key_of(case: Case) -> object:
    """Return the key that a row has in every run."""
    return case.operation, tuple(case.shape), case.dtype, case.data_format


def read_rows(path: Path) -> tuple[dict[str, Any], dict[object, Row]]:
    """Return machine and rows, by `key_of`, of a file that ``onedsl bench --json`` wrote."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row(**members) for members in document["rows"]]
        for row in rows:
            for name in ("onedsl", TRIAD):
                if not (0 < row.seconds[name] < math.inf and 0 <= row.noise[name] < math.inf):
                    raise ValueError(f"times must be positive, got {row.seconds}, {row.noise}")
        return dict(document["machine"]), {key_of(row): row for row in rows}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} must be a file that `onedsl bench --json` wrote: {error!r}"
        ) from None


def change_of(row: Row, earlier: Mapping[object, Row]) -> Change | None:
    """Return the change of a row, None if the earlier run does not have it.

    Times are compared in units of the triad's time in the same rounds, so that differences of
    memory bandwidth between the runs cancel out, unless the triads used different stores.
    """
    old = earlier.get(key_of(row))
    if old is None:
        return None
    ratio = row.seconds["onedsl"] / old.seconds["onedsl"]
    names = ["onedsl"]
    if row.non_temporal == old.non_temporal:
        ratio *= old.seconds[TRIAD] / row.seconds[TRIAD]
        names.append(TRIAD)
    return Change(ratio, ratio * math.hypot(*(r.noise[n] for r in (row, old) for n in names)))


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
