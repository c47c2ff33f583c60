"""What ``python -m onedsl bench`` shows of its rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from .. import _core, capabilities
from .cases import FORMATS
from .implementations import TRIAD
from .machine import cpu, machine
from .measure import Row, disturbance, geometric_mean
from .table import Column, microseconds, ratio, table

# Of smaller tensors the call itself is a large part.
LEAST_BYTES = 1 << 20


def times_as_fast(row: Row, other: str) -> float:
    """Compare onedsl with another; NaN where that did not run."""
    return row.time(other) / row.time("onedsl")


COLUMNS: tuple[Column[Row], ...] = (
    Column("layer\n(N, C, X)", lambda row: row.layer),
    Column("type,\nformat", lambda row: f"{row.dtype:<4} {row.data_format}"),
    Column("onedsl", lambda row: microseconds(row.time("onedsl"))),
    Column("oneDNN", lambda row: microseconds(row.time("oneDNN"))),
    Column("torch", lambda row: microseconds(row.time("torch"))),
    Column("than\noneDNN", lambda row: ratio(times_as_fast(row, "oneDNN"))),
    Column("than\ntorch", lambda row: ratio(times_as_fast(row, "torch"))),
    Column("of its\nfloor", lambda row: f"{row.floor_share('onedsl'):.0%}"),
)


def rows_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Lay the rows of each operation out, with a gap between the networks."""
    for operation, section in by_operation(rows):
        yield table(
            f"{operation}: microseconds a call (median), and how many times as fast onedsl is",
            "Each by the faster of two calls: it allocates its results, or is given them. floor: "
            "what the algorithm must move at the rate of a triad on tensors of this size in the "
            "same rounds",
            COLUMNS,
            [list(network) for _, network in itertools.groupby(section, lambda r: r.workload)],
        )


def by_operation(rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """Take the rows of each operation together."""
    for operation in dict.fromkeys(row.operation for row in rows):
        yield operation, [row for row in rows if row.operation == operation]


def summary(rows: Sequence[Row]) -> list[str]:
    """Say in ratios what the rows show."""
    lines = [line for _, section in by_operation(rows) for line in _summary_of(section)]
    return lines + disturbance(rows)


def _summary_of(rows: Sequence[Row]) -> list[str]:
    """Say it of one operation."""
    lines = []
    for who in ("torch", "oneDNN"):
        ratios = [(times_as_fast(row, who), str(row)) for row in rows if row.ran(who)]
        if ratios:
            mean = geometric_mean([ratio for ratio, _ in ratios])
            lowest, where = min(ratios)
            lines.append(
                f"onedsl against {who}: {mean:.2f} times as fast (geometric mean of {len(ratios)} "
                f"rows), at least {lowest:.2f} ({where})"
            )
    for data_format in FORMATS:
        shares = [
            (row.floor_share("onedsl"), str(row))
            for row in rows
            if row.data_format == data_format and row.tensor_bytes >= LEAST_BYTES and row.ran(TRIAD)
        ]
        if shares:
            mean = geometric_mean([share for share, _ in shares])
            lowest, where = min(shares)
            lines.append(
                f"onedsl, {data_format}: {mean:.0%} of its floor (geometric mean of {len(shares)} "
                f"rows), at least {lowest:.0%} ({where})"
            )
    return lines


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draw every row's rate."""
    from .plot import BLUE, GREY, VERMILION, Mark, plot  # it needs matplotlib, which is optional

    marks = {
        "torch": Mark("PyTorch", GREY, "s"),
        "oneDNN": Mark("oneDNN", BLUE, "D"),
        "onedsl": Mark("onedsl", VERMILION, "o"),
    }
    alone = len({row.operation for row in rows}) == 1
    shares = {
        (row.dtype, f"{'' if alone else row.operation} {row.layer}  {row.data_format}".strip()): {
            mark: row.triad_share(mark) for mark in marks if row.ran(mark)
        }
        for row in rows
    }
    ratios = [times_as_fast(row, "torch") for row in rows if row.ran("torch")]
    gain = f": {geometric_mean(ratios):.1f} times as fast as PyTorch" if ratios else ""
    plot(
        path,
        shares,
        marks,
        f"Batch normalization{gain}",
        f"Layers of common networks, shapes (N, C, X). {machine()}",
    )


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write the machine, the versions and the rows."""
    document = {"machine": machine_facts(), "rows": [asdict(r) for r in rows]}
    path.write_text(json.dumps(document, indent=1))


def machine_facts() -> dict[str, Any]:
    """Collect what times depend on, beside the code."""
    found = capabilities()
    return {
        "cpu": cpu("model name"),
        "onedsl": found.onedsl_version,
        "onednn": found.onednn_version,
        "onednn_isa": found.onednn_isa,
        "native_isa": found.native_isa,
        "num_threads": found.num_threads,
        "last_cache_bytes": _core.last_cache_bytes(),
    }
