"""What ``python -m onedsl bench`` shows of its rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from .. import _core, capabilities
from .cases import FORMATS
from .machine import machine
from .measure import Row, disturbance, geometric_mean
from .table import Column, microseconds, ratio, table

TORCH = ("torch", "torch out")


def times_as_fast(row: Row, *others: str) -> float:
    """Compare onedsl with the fastest of others; NaN where they did not run."""
    return row.time(*others) / row.time("onedsl")


COLUMNS: tuple[Column[Row], ...] = (
    Column("layer\n(N, C, X)", lambda row: row.layer),
    Column("type,\nformat", lambda row: f"{row.dtype:<4} {row.data_format}"),
    Column("onedsl", lambda row: microseconds(row.time("onedsl"))),
    Column("oneDNN", lambda row: microseconds(row.time("oneDNN"))),
    Column("torch", lambda row: microseconds(row.time(*TORCH))),
    Column("triad", lambda row: microseconds(row.triad_seconds)),
    Column("than\noneDNN", lambda row: ratio(times_as_fast(row, "oneDNN"))),
    Column("than\ntorch", lambda row: ratio(times_as_fast(row, *TORCH))),
)


def rows_table(rows: Sequence[Row]) -> Table:
    """Lay the rows out, with a gap between the networks."""
    return table(
        "microseconds a call (median), and how many times as fast onedsl is",
        "torch: the faster of its two calls. triad: moving three tensors' bytes at the machine's "
        "own rate in the same rounds",
        COLUMNS,
        [list(section) for _, section in itertools.groupby(rows, lambda row: row.workload)],
    )


def summary(rows: Sequence[Row]) -> list[str]:
    """Say in ratios what the rows show."""
    lines = []
    for who, names in (
        ("torch (the faster of its two calls)", TORCH),
        ("oneDNN", ("oneDNN",)),
    ):
        ratios = [(times_as_fast(row, *names), str(row)) for row in rows if row.ran(*names)]
        if ratios:
            mean = geometric_mean([ratio for ratio, _ in ratios])
            lowest, where = min(ratios)
            lines.append(
                f"onedsl against {who}: {mean:.2f} times as fast (geometric mean of {len(ratios)} "
                f"rows), at least {lowest:.2f} ({where})"
            )
    for data_format in FORMATS:
        shares = [
            row.triad_share("onedsl")
            for row in rows
            if row.data_format == data_format and row.bytes > 6 * _core.last_cache_bytes()
        ]
        if shares:
            lines.append(
                f"onedsl, {data_format}, far out of cache: {min(shares):.0%} to {max(shares):.0%} "
                f"of the triad's rate ({len(shares)} rows)"
            )
    return lines + disturbance(rows)


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draw every row's rate."""
    from .plot import BLUE, GREY, VERMILION, Mark, plot  # it needs matplotlib, which is optional

    marks = {
        "torch": Mark("PyTorch", GREY, "s"),
        "oneDNN": Mark("oneDNN", BLUE, "D"),
        "onedsl": Mark("onedsl", VERMILION, "o"),
    }
    names = {"torch": TORCH, "oneDNN": ("oneDNN",), "onedsl": ("onedsl",)}
    shares = {
        (row.dtype, f"{row.layer}  {row.data_format}"): {
            mark: row.triad_share(*names[mark]) for mark in marks if row.ran(*names[mark])
        }
        for row in rows
    }
    ratios = [times_as_fast(row, *TORCH) for row in rows if row.ran(*TORCH)]
    gain = f": {geometric_mean(ratios):.1f} times as fast as PyTorch" if ratios else ""
    plot(
        path,
        shares,
        marks,
        f"Batch normalization's gradient{gain}",
        f"Layers of common networks, shapes (N, C, X). {machine()}",
    )


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write the machine, the versions and the rows."""
    found = capabilities()
    machine = {
        "onedsl": found.onedsl_version,
        "onednn": found.onednn_version,
        "onednn_isa": found.onednn_isa,
        "native_isa": found.native_isa,
        "num_threads": found.num_threads,
        "last_cache_bytes": _core.last_cache_bytes(),
    }
    path.write_text(json.dumps({"machine": machine, "rows": [asdict(r) for r in rows]}, indent=1))
