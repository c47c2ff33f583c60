"""Tables and progress bars for a terminal."""

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

EMPTY = "-"
WIDTH = 110  # without a terminal


@dataclass(frozen=True)
class Column(Generic[Line]):
    """A column's title, and the function that returns its cell for a line."""

    title: str
    cell: Callable[[Line], str]


def table(
    title: str,
    caption: str,
    columns: Sequence[Column[Line]],
    sections: Iterable[Sequence[Line]],
) -> Table:
    """Build a table with a gap between sections and without empty columns.

    In a narrow terminal, the labels in the first column wrap. Numbers in the other columns are
    never truncated.
    """
    sections = [section for section in sections if section]
    columns = [
        column
        for column in columns
        if any(column.cell(line) != EMPTY for section in sections for line in section)
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
    """Format a time in microseconds."""
    if math.isnan(seconds):
        return EMPTY
    return f"{seconds * 1e6:,.{1 if seconds < 1e-5 else 0}f}"


def ratio(value: float) -> str:
    """Format a ratio."""
    return EMPTY if math.isnan(value) else f"{value:.2f}"


def console() -> Console:
    """Return a console for results, wide enough for a table if there is no terminal."""
    width_is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if width_is_known else WIDTH)


def progress(items: Sequence[Item], description: str) -> Iterable[Item]:
    """Iterate over items, with a progress bar on stderr if that is a terminal."""
    stderr = Console(stderr=True)
    return track(items, description, console=stderr, disable=not stderr.is_terminal)
