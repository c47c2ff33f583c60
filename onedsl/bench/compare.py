"""Comparison of rows with those of an earlier run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.table import Table

from .cases import Case
from .implementations import TRIAD
from .measure import Row, geometric_mean
from .table import Column, table

Key = tuple[object, ...]


@dataclass(frozen=True)
class EarlierRun:
    """Contents of a file that ``onedsl bench --json`` wrote."""

    machine: Mapping[str, Any]
    rows: Mapping[Key, Row]


@dataclass(frozen=True)
class Change:
    """The change of a row's time.

    Attributes
    ----------
    row : Row
        The new row.
    ratio : float
        New time over old time.
    noise : float
        Standard error of the ratio.
    """

    row: Row
    ratio: float
    noise: float

    def is_slower(self, threshold: float) -> bool:
        """Return whether the ratio exceeds the threshold, and exceeds 1 by two standard errors."""
        return self.ratio > threshold and self.ratio - 2 * self.noise > 1


def read(path: Path) -> EarlierRun:
    """Read a file that ``onedsl bench --json`` wrote.

    Raises
    ------
    ValueError
        If the file has other contents. The message contains its path and the number of the row.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        machine, rows = dict(document["machine"]), list(document["rows"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} must be a file that `onedsl bench --json` wrote: {error!r}"
        ) from None
    found = {}
    for i, members in enumerate(rows):
        try:
            row = _row(members)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: rows[{i}] is invalid: {error}") from None
        found[key_of(row)] = row
    return EarlierRun(machine, found)


def _row(members: Mapping[str, Any]) -> Row:
    known = {field.name for field in fields(Row)}
    row = Row(**{name: value for name, value in members.items() if name in known})
    for name in ("onedsl", TRIAD):
        if not 0 < float(row.seconds[name]) < math.inf:
            raise ValueError(f"seconds[{name!r}] must be positive, got {row.seconds[name]}")
        if not 0 <= float(row.noise[name]) < math.inf:
            raise ValueError(f"noise[{name!r}] must not be negative, got {row.noise[name]}")
    return row


def key_of(case: Case) -> Key:
    """Return the key that a row has in every run."""
    return case.operation, tuple(case.shape), case.dtype, case.data_format


def changes(rows: Sequence[Row], earlier: EarlierRun) -> list[Change]:
    """Return the changes of the rows that the earlier run also has.

    Times are compared in units of the triad's time in the same rounds, so that differences of
    memory bandwidth between the runs cancel out. If the triads used different stores, times are
    compared in seconds.
    """
    found = []
    for row in rows:
        old = earlier.rows.get(key_of(row))
        if old is None:
            continue
        ratio = row.seconds["onedsl"] / old.seconds["onedsl"]
        names = ["onedsl"]
        if row.non_temporal == old.non_temporal:
            ratio *= old.seconds[TRIAD] / row.seconds[TRIAD]
            names.append(TRIAD)
        errors = [one.noise[name] for one in (row, old) for name in names]
        found.append(Change(row, ratio, ratio * math.hypot(*errors)))
    return found


def differences(machine: Mapping[str, Any], earlier: EarlierRun) -> list[str]:
    """Return the differences in machine and versions, one line each."""
    return [
        f"{name}: {earlier.machine.get(name)} before, {now} now"
        for name, now in machine.items()
        if earlier.machine.get(name) != now
    ]


def changes_table(found: Sequence[Change], threshold: float) -> Table:
    """Build a table of changes."""
    columns: tuple[Column[Change], ...] = (
        Column("layer\n(N, C, X)", lambda c: c.row.layer),
        Column("operation", lambda c: c.row.operation),
        Column("type,\nformat", lambda c: f"{c.row.dtype:<4} {c.row.data_format}"),
        Column("new/old\ntime", lambda c: f"{c.ratio:.2f}"),
        Column("±", lambda c: f"{c.noise:.2f}"),
        Column("", lambda c: "slower" if c.is_slower(threshold) else ""),
    )
    return table(
        "onedsl's time, new over old",
        f"Relative to the triad of the same run. Slower: a ratio above {threshold:g}, and above 1 "
        "by two standard errors (±).",
        columns,
        [found],
    )


def verdict(found: Sequence[Change], threshold: float) -> str:
    """Return the number of slower rows and the mean ratio in one line."""
    slower = sum(change.is_slower(threshold) for change in found)
    mean = geometric_mean([change.ratio for change in found])
    return f"{slower} of {len(found)} rows slower; new/old time {mean:.2f} (geometric mean)"
