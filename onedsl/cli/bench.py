"""The command ``onedsl bench``."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean

import click
from rich.table import Table

from .. import bench as benchmark
from ..bench import MIN_BYTES, Row
from ..bench.cases import Shape
from ..bench.timing import noise_warning
from ..tensors.dtypes import DTYPES
from . import options
from .info import facts
from .output import console, microseconds, progress, ratio, table

OTHERS = ("oneDNN", "PyTorch")
IN_NCX, FLOOR = "NXC\n/NCX", "floor\n/time"
NOTES = {
    IN_NCX: "NXC/NCX: onedsl's times in the two formats.",
    FLOOR: "floor: the minimum time of the algorithm at the memory bandwidth of a triad on tensors "
    "of this size.",
}
"""Explanations of columns, which a table has only if they are not empty."""


def layer_shapes(text: str) -> Sequence[Shape]:
    """Return the shapes of a preset, or a layer's own shape."""
    if text in benchmark.WORKLOADS:
        return benchmark.WORKLOADS[text]
    try:
        shape = options.shape(text)
    except click.BadParameter:
        shape = (0,)
    if 0 in shape:
        known = ", ".join(benchmark.WORKLOADS)
        raise options.InputError(
            f"WHAT must be one of {known}, or a shape such as 32x56x56x64, got {text!r}"
        )
    return (shape,)


def _names(flag: str, known: Sequence[str], default: Sequence[str]) -> options.Decorator:
    return click.option(
        f"--{flag}",
        f"{flag}s",
        type=click.Choice(known),
        multiple=True,
        default=default,
        show_default=True,
        callback=lambda _context, _option, names: tuple(dict.fromkeys(names)),
        help="May be repeated.",
    )


@click.command(short_help="Compare the speed of onedsl, oneDNN and PyTorch.")
@click.argument("what", nargs=-1)
@_names("operation", tuple(benchmark.OPERATIONS), ("backward", "forward"))
@_names("dtype", tuple(DTYPES), tuple(DTYPES))
@_names("format", benchmark.FORMATS, benchmark.FORMATS)
@options.seconds(2, "Time per layer.")
@click.option("--json", "json_file", type=options.file, help="Write all figures to a JSON file.")
def bench(
    what: Sequence[str],
    operations: Sequence[str],
    dtypes: Sequence[str],
    formats: Sequence[str],
    seconds: float,
    json_file: Path | None,
) -> None:
    """Compare the speed of onedsl, oneDNN and PyTorch on layers of networks.

    WHAT is a preset (resnet50, mobilenetv2, transformer, images, small) or the shape of one layer
    with the channels last, such as 32x56x56x64. The default is all presets. For each layer, the
    command times calls of onedsl, of oneDNN, of PyTorch if it is installed, and of a triad
    (out = a + 2 * b), which measures the machine's memory bandwidth. They are single calls in
    random order, as a program makes them between other work; only those that take less than 20 us
    are repeated at once. Each uses other tensors than the call before. Together they exceed the
    last-level cache, or 32 MiB if that is less. Shown is the faster of two calls of each library:
    one allocates its results, one writes to given memory.
    """
    workloads = {name: layer_shapes(name) for name in what or benchmark.WORKLOADS}
    layers = list(benchmark.layers(workloads, dtypes, formats, operations))
    out = console()
    out.print(benchmark.describe_machine())
    rows: list[Row] = []
    for layer in progress(layers, "measuring"):
        rows += benchmark.measure(
            {case: benchmark.implementations(case) for case in layer}, seconds
        )
    if json_file:
        found = {"machine": facts(), "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    for report in rows_tables(rows):
        out.print(report)
    for line in summary(rows):
        out.print(line)


def speedup(row: Row, other: str) -> float:
    """Return another implementation's time over onedsl's, NaN if the other did not run."""
    return row.time(other) / row.time("onedsl")


def rows_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Build a table for each operation, with a gap between networks."""
    titles = (
        "layer\n(N, X, C)", "type,\nformat", "onedsl\nµs", "oneDNN\nµs", "PyTorch\nµs",
        "speedup\nvs.\noneDNN", "speedup\nvs.\nPyTorch", IN_NCX, FLOOR,
    )  # fmt: skip
    in_nxc = {
        (row.operation, row.shape, row.dtype): row.time("onedsl")
        for row in rows
        if row.data_format == "NXC"
    }

    def line(row: Row) -> list[str]:
        key = row.operation, row.shape, row.dtype
        nxc = in_nxc.get(key, math.nan) if row.data_format == "NCX" else math.nan
        has_floor = row.tensor_bytes >= MIN_BYTES and not row.noisy
        return [
            row.layer,
            f"{row.dtype:<4} {row.data_format}{' *' if row.noisy else ''}",
            *(microseconds(row.time(name)) for name in ("onedsl", *OTHERS)),
            *(ratio(speedup(row, other)) for other in OTHERS),
            ratio(nxc / row.time("onedsl")),
            f"{row.floor_share('onedsl'):.0%}" if has_floor else "",
        ]

    for operation, section in itertools.groupby(rows, lambda row: row.operation):
        networks = [
            [*map(line, network)]
            for _, network in itertools.groupby(section, lambda row: row.workload)
        ]
        columns = zip(titles, *itertools.chain(*networks), strict=True)
        notes = [NOTES[title] for title, *cells in columns if title in NOTES and any(cells)]
        notes += ["*: noisy."] if any(row.noisy for row in rows) else []
        yield table(
            titles,
            networks,
            f"{operation}: median time per call, and onedsl's speedup over oneDNN and PyTorch",
            " ".join([*notes, "onedsl bench --help says how calls are timed."]),
        )


def summary(rows: Sequence[Row]) -> list[str]:
    """Return mean and lowest ratios of each operation, and a warning about noisy rows."""
    lines = []
    quiet = (row for row in rows if not row.noisy)
    for operation, group in itertools.groupby(quiet, lambda row: row.operation):
        section = list(group)
        figures = {
            f"speedup over {name}": (
                ".2f",
                [(speedup(row, name), str(row)) for row in section if name in row.seconds],
            )
            for name in OTHERS
        }
        for name in benchmark.FORMATS:
            large = [r for r in section if r.data_format == name and r.tensor_bytes >= MIN_BYTES]
            shares = [(row.floor_share("onedsl"), str(row)) for row in large]
            figures[f"floor over time, {name}"] = ".0%", shares
        for what, (unit, ratios) in figures.items():
            if ratios:
                mean, (lowest, row) = geometric_mean([r for r, _ in ratios]), min(ratios)
                lines.append(
                    f"{operation}: {what} {mean:{unit}} (geometric mean of {len(ratios)} rows), "
                    f"lowest {lowest:{unit}} ({row})"
                )
    return lines + _noise(rows)


def _noise(rows: Sequence[Row]) -> list[str]:
    noisy = sum(row.noisy for row in rows)
    counted = f"{noisy} of {len(rows)} rows are noisy, and in no mean."
    return [counted, noise_warning()] if noisy else []
