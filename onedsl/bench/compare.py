"""Comparison of rows with those of an earlier run, ``onedsl bench --compare``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .cases import Case
from .implementations import TRIAD
from .measure import Row


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


def read(path: Path) -> tuple[dict[str, Any], dict[object, Row]]:
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


def change(row: Row, earlier: Mapping[object, Row]) -> Change | None:
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
