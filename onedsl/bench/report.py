"""Tables, summary, picture and JSON file of ``onedsl bench``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from .cases import FORMATS
from .machine import describe_machine, machine_facts
from .measure import Row, geometric_mean, noise_warning
from .table import Column, microseconds, ratio, table

# The summary leaves out smaller tensors, where the overhead of a call dominates.
MIN_BYTES = 1 << 20

OTHERS = ("oneDNN", "PyTorch")


def speedup(row: Row, other: str) -> float:
    """Return another implementation's time over onedsl's, NaN if the other did not run."""
    return row.time(other) / row.time("onedsl")


COLUMNS: tuple[Column[Row], ...] = (
    Column("layer\n(N, C, X)", lambda row: row.layer),
    Column("type,\nformat", lambda row: f"{row.dtype:<4} {row.data_format}"),
    Column("onedsl\nµs", lambda row: microseconds(row.time("onedsl"))),
    Column("oneDNN\nµs", lambda row: microseconds(row.time("oneDNN"))),
    Column("PyTorch\nµs", lambda row: microseconds(row.time("PyTorch"))),
    Column("speedup\nvs.\noneDNN", lambda row: ratio(speedup(row, "oneDNN"))),
    Column("speedup\nvs.\nPyTorch", lambda row: ratio(speedup(row, "PyTorch"))),
    Column("floor\n/time", lambda row: f"{row.floor_share('onedsl'):.0%}"),
)


def rows_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Build a table for each operation, with a gap between networks."""
    for operation, section in by_operation(rows):
        yield table(
            f"{operation}: median time per call, and onedsl's speedup over oneDNN and PyTorch",
            "Times are of the faster of two calls: one allocates its results, one writes to given "
            "memory. floor: the minimum time of the algorithm at the memory bandwidth of a triad "
            "on tensors of this size.",
            COLUMNS,
            [list(network) for _, network in itertools.groupby(section, lambda r: r.workload)],
        )


def by_operation(rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """Group rows by operation."""
    for operation in dict.fromkeys(row.operation for row in rows):
        yield operation, [row for row in rows if row.operation == operation]


def summary(rows: Sequence[Row]) -> list[str]:
    """Return mean and lowest ratios of each operation, and a warning about noisy rows."""
    lines = [
        f"{operation}: {line}"
        for operation, section in by_operation(rows)
        for line in _operation_summary(section)
    ]
    return lines + noise_warning(rows)


def _operation_summary(rows: Sequence[Row]) -> Iterator[str]:
    def line(what: str, ratios: Sequence[tuple[float, str]], unit: str) -> str:
        mean = geometric_mean([ratio for ratio, _ in ratios])
        lowest, row = min(ratios)
        return (
            f"{what} {mean:{unit}} (geometric mean of {len(ratios)} rows), lowest {lowest:{unit}} "
            f"({row})"
        )

    for name in OTHERS:
        ratios = [(speedup(row, name), str(row)) for row in rows if row.ran(name)]
        if ratios:
            yield line(f"speedup over {name}", ratios, ".2f")
    for data_format in FORMATS:
        ratios = [
            (row.floor_share("onedsl"), str(row))
            for row in rows
            if row.data_format == data_format and row.tensor_bytes >= MIN_BYTES
        ]
        if ratios:
            yield line(f"floor over time, {data_format}", ratios, ".0%")


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draw the effective memory bandwidth of every row."""
    from .plot import BLUE, GREY, VERMILION, Mark, plot  # matplotlib is optional

    marks = {
        "PyTorch": Mark("PyTorch", GREY, "s"),
        "oneDNN": Mark("oneDNN", BLUE, "D"),
        "onedsl": Mark("onedsl", VERMILION, "o"),
    }
    one_operation = len({row.operation for row in rows}) == 1
    shares = {
        (
            row.dtype,
            f"{'' if one_operation else row.operation} {row.layer}  {row.data_format}".strip(),
        ): {mark: row.bandwidth_share(mark) for mark in marks if row.ran(mark)}
        for row in rows
    }
    ratios = [speedup(row, "PyTorch") for row in rows if row.ran("PyTorch")]
    gain = f": {geometric_mean(ratios):.1f} times as fast as PyTorch" if ratios else ""
    plot(
        path,
        shares,
        marks,
        f"Batch normalization{gain}",
        f"Layers of common networks, shapes (N, C, X). {describe_machine()}",
    )


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write the machine, the versions and the rows."""
    document = {"machine": machine_facts(), "rows": [asdict(r) for r in rows]}
    path.write_text(json.dumps(document, indent=1))
