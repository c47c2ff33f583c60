"""Today's rows beside those of a file that the benchmark wrote before."""

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
class Before:
    """What a file has of an earlier run."""

    machine: Mapping[str, Any]
    rows: Mapping[Key, Row]


@dataclass(frozen=True)
class Change:
    """A row, and how its time has changed."""

    row: Row
    ratio: float
    """New time over old, each in triads of its own rounds."""
    noise: float
    """Standard error of the ratio."""

    def is_slower(self, threshold: float) -> bool:
        """Tell whether it is past a threshold, and not by its noise alone: two standard errors."""
        return self.ratio > threshold and self.ratio - 2 * self.noise > 1


def read(path: Path) -> Before:
    """Read a file of the benchmark.

    Raises
    ------
    ValueError
        If it is none. The message names the file, and the row.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        machine, rows = dict(document["machine"]), list(document["rows"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no file of `onedsl bench --json`: {error!r}") from None
    found = {}
    for i, members in enumerate(rows):
        try:
            row = _row(members)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: rows[{i}] is no row of the benchmark: {error}") from None
        found[key_of(row)] = row
    return Before(machine, found)


def _row(members: Mapping[str, Any]) -> Row:
    known = {field.name for field in fields(Row)}
    row = Row(**{name: value for name, value in members.items() if name in known})
    for times in (row.seconds, row.noise):
        for name in ("onedsl", TRIAD):
            if not 0 <= float(times[name]) < math.inf:
                raise ValueError(f"{name} has {times[name]}")
    if not (row.seconds["onedsl"] > 0 and row.seconds[TRIAD] > 0):
        raise ValueError("a time of 0")
    return row


def key_of(case: Case) -> Key:
    """Give what makes two rows the same, on whichever day."""
    return case.operation, tuple(case.shape), case.dtype, case.data_format


def changes(rows: Sequence[Row], before: Before) -> list[Change]:
    """Compare the rows that the file has, too.

    Times are compared in units of the triad of their own rounds: what the memory gave that day
    cancels out.
    """
    found = []
    for row in rows:
        old = before.rows.get(key_of(row))
        if old is not None:
            ratio = _in_triads(row) / _in_triads(old)
            shares = [one.noise[name] for one in (row, old) for name in ("onedsl", TRIAD)]
            found.append(Change(row, ratio, ratio * math.hypot(*shares)))
    return found


def _in_triads(row: Row) -> float:
    return row.seconds["onedsl"] / row.seconds[TRIAD]


def differences(machine: Mapping[str, Any], before: Before) -> list[str]:
    """Say what else has changed: versions, CPU, threads."""
    return [
        f"{name}: {before.machine.get(name)} then, {now} now"
        for name, now in machine.items()
        if before.machine.get(name) != now
    ]


def changes_table(found: Sequence[Change], threshold: float) -> Table:
    """Lay the changes out."""
    columns: tuple[Column[Change], ...] = (
        Column("layer\n(N, C, X)", lambda c: c.row.layer),
        Column("", lambda c: c.row.operation),
        Column("type,\nformat", lambda c: f"{c.row.dtype:<4} {c.row.data_format}"),
        Column("times\nas long", lambda c: f"{c.ratio:.2f}"),
        Column("noise", lambda c: f"{c.noise:.2f}"),
        Column("", lambda c: "slower" if c.is_slower(threshold) else ""),
    )
    return table(
        f"onedsl's time against the file's, in triads of the same rounds; slower: {threshold:g} "
        "and more, and 1 by two standard errors",
        "",
        columns,
        [found],
    )


def verdict(found: Sequence[Change], threshold: float) -> str:
    """Say it in a line."""
    slower = sum(change.is_slower(threshold) for change in found)
    mean = geometric_mean([change.ratio for change in found])
    return (
        f"{slower} of {len(found)} rows slower; {mean:.2f} times as long as before (geometric mean)"
    )
