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
from .cases import Case
from .implementations import ALLOCATING, TRIADS, implementations
from .timing import NoiseMonitor, samples_of

VERSION = 2
"""Version of what is measured, in files. Version 1, which files do not name, repeated one call."""


@dataclass(frozen=True, kw_only=True)
class Row(Case):
    """A case and its times."""

    seconds: Mapping[str, float]
    """Median seconds of a call over all rounds, by name of the call."""
    noise: Mapping[str, float]
    """Relative standard error of each median."""
    noisy: bool = False
    """Whether other programs used CPUs that the timed calls needed."""

    def fastest_call(self, name: str) -> str:
        """Return the name of the faster of an implementation's calls."""
        return min(name, name + ALLOCATING, key=lambda call: self.seconds.get(call, math.inf))

    def time(self, name: str) -> float:
        """Return the seconds of the faster of an implementation's calls, NaN if it did not run."""
        return self.seconds.get(self.fastest_call(name), math.nan)

    def floor(self, triad: str) -> float:
        """Return the minimum seconds of the algorithm at the memory bandwidth of a triad."""
        return self.floor_in_triads(TRIADS[triad]) * self.seconds[triad]

    @property
    def best_triad(self) -> str:
        """Name of the triad whose kind of stores allows the algorithm the least time."""
        return min(TRIADS, key=self.floor)

    def floor_share(self, name: str) -> float:
        """Return the minimum time of the algorithm as a fraction of an implementation's time."""
        return self.floor(self.best_triad) / self.time(name)


def measure(calls: Mapping[Case, Mapping[str, Any]], seconds: float) -> list[Row]:
    """Time all calls of some cases in random order, for about these seconds.

    `calls` maps each case to its calls by name, as `implementations` returns them. Before each, the
    same implementation's calls with small tensors wake the threads.
    """
    named = {(case, name): call for case in calls for name, call in calls[case].items()}
    small = implementations(Case("", (16, 64), "f32", "NXC"))
    monitor = NoiseMonitor()
    warm_ups = {(case, name): small[name] for case, name in named}
    samples = samples_of(named, seconds=seconds, warm_ups=warm_ups)
    noisy = monitor.is_noisy(_core.max_threads())
    return [
        Row(
            **asdict(case),
            seconds={name: statistics.median(samples[case, name]) for name in by_name},
            noise={name: standard_error(samples[case, name]) for name in by_name},
            noisy=noisy,
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
        machine, found = dict(document["machine"]), list(document["rows"])
        version = document.get("version", 1)
        rows = [Row(**members) for members in found] if version == VERSION else []
        for row in rows:
            for name in ("onedsl", *TRIADS):
                if not (0 < row.seconds[name] < math.inf and 0 <= row.noise[name] < math.inf):
                    raise ValueError(f"times must be positive, got {row.seconds}, {row.noise}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} must be a file that `onedsl bench --json` wrote: {error!r}"
        ) from None
    if version != VERSION:
        raise ValueError(
            f"{path} must have version {VERSION}, got {version!r}: another version of onedsl "
            "measured something else. Measure again"
        )
    return machine, {key_of(row): row for row in rows}


def change_of(row: Row, earlier: Mapping[object, Row]) -> Change | None:
    """Return the change of a row, None if the earlier run does not have it.

    Times are compared in units of the algorithm's minimum time in the same rounds, so that
    differences of memory bandwidth between the runs cancel out.
    """
    old = earlier.get(key_of(row))
    if old is None:
        return None
    ratio = old.floor_share("onedsl") / row.floor_share("onedsl")
    errors = [r.noise[n] for r in (row, old) for n in (r.fastest_call("onedsl"), r.best_triad)]
    return Change(ratio, ratio * math.hypot(*errors))


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
    line = "onedsl {onedsl} ({native_isa}), oneDNN {onednn} ({onednn_isa}), {num_threads} threads"
    return line.format(**machine_facts())


def cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo, or an empty string."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""
