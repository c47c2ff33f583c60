"""Tables for a terminal."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

Line = TypeVar("Line")
Item = TypeVar("Item")

NOTHING = "-"
WIDTH = 110  # where there is no terminal to ask


@dataclass(frozen=True)
class Column(Generic[Line]):
    """What a table shows of each of its lines."""

    title: str
    cell: Callable[[Line], str]


def table(
    title: str,
    caption: str,
    columns: Sequence[Column[Line]],
    sections: Iterable[Sequence[Line]],
) -> Table:
    """Lay lines out, with a gap between the sections.

    The first column has labels, and is folded where a terminal is narrow; the others have figures,
    which are never cut. Columns in which nothing stands are left out.
    """
    sections = [section for section in sections if section]
    columns = [
        column
        for column in columns
        if any(column.cell(line) != NOTHING for section in sections for line in section)
    ]
    result = Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for i, column in enumerate(columns):
        result.add_column(
            column.title,
            justify="right" if i else "left",
            no_wrap=i > 0,
            overflow="fold",
            vertical="bottom",
        )
    for section in sections:
        for line in section:
            result.add_row(*(column.cell(line) for column in columns))
        result.add_section()
    return result


def microseconds(seconds: float) -> str:
    """Write a time."""
    if math.isnan(seconds):
        return NOTHING
    return f"{seconds * 1e6:,.{1 if seconds < 1e-5 else 0}f}"


def ratio(value: float) -> str:
    """Write a ratio."""
    return NOTHING if math.isnan(value) else f"{value:.2f}"


def console() -> Console:
    """Make a console for results, wide enough for a table where there is no terminal to ask."""
    asked = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if asked else WIDTH)


def progress(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Go through items, and show how far it is where a person looks on."""
    watcher = Console(stderr=True)
    return track(items, what, console=watcher, disable=not watcher.is_terminal)
