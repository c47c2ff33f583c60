"""Tables and progress bars for a terminal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ..runtime.text import printable

Item = TypeVar("Item")

WIDTH = 110  # without a terminal


def table(
    titles: Sequence[str],
    sections: Sequence[Sequence[Sequence[str]]],
    title: str = "",
    caption: str = "",
) -> Table:
    """Build a table with a gap between sections and without empty columns.

    In a narrow terminal, the labels in the first column wrap. Cells in the other columns are never
    truncated.
    """
    lines = [line for section in sections for line in section]
    shown = [i for i in range(len(titles)) if any(line[i] for line in lines)]
    result = Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for i in shown:
        result.add_column(
            titles[i],
            justify="left" if i == 0 else "right",
            no_wrap=i > 0,
            overflow="fold",
            vertical="bottom",
        )
    for section in sections:
        for line in section:
            result.add_row(*(line[i] for i in shown))
        result.add_section()
    return result


def grid(lines: Iterable[tuple[str, str]]) -> Table:
    """Build a table of labels and texts without a frame; texts wrap in a narrow terminal."""
    result = Table.grid(padding=(0, 2))
    for label, text in lines:
        result.add_row(label, "\n".join(map(printable, text.split("\n"))))
    return result


def microseconds(seconds: float) -> str:
    """Format a time in microseconds, NaN as an empty string."""
    if math.isnan(seconds):
        return ""
    return f"{seconds * 1e6:,.{1 if seconds < 1e-5 else 0}f}"


def ratio(value: float) -> str:
    """Format a ratio, NaN as an empty string."""
    return "" if math.isnan(value) else f"{value:.2f}"


def console() -> Console:
    """Return a console for results, wide enough for a table if there is no terminal."""
    # COLUMNS, if it is positive. Python 3.10 returns 0 for a terminal without a width.
    width = shutil.get_terminal_size((WIDTH, 0)).columns or WIDTH
    return Console(emoji=False, highlight=False, markup=False, width=width)


def progress(items: Sequence[Item], description: str) -> Iterable[Item]:
    """Iterate over items, with a progress bar on stderr if that is a terminal."""
    stderr = Console(stderr=True)
    return track(items, description, console=stderr, disable=not stderr.is_terminal)
