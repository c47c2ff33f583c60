"""``onedsl bench``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from .. import bench as benchmark
from .._types import DTYPES
from ..bench import arguments, compare, report
from ..bench.table import console, progress
from .options import SECONDS, Checked, Command, as_usage_errors, shape

Shapes = tuple[tuple[int, ...], ...]


def workload(text: str) -> tuple[str, Shapes]:
    """Take a preset's name, or its beginning, or one layer's shape with the channels last."""
    if text[:1].isdecimal():
        number, *spatial, channels = shape(text)
        if 0 in (number, *spatial, channels):
            raise ValueError(f"{text!r} has no elements to be timed")
        return text, ((number, channels, *spatial),)
    wanted = _plain(text)
    found = [name for name in benchmark.WORKLOADS if _plain(name).startswith(wanted)]
    if len(found) != 1 or not wanted:
        known = ", ".join(map(_plain, benchmark.WORKLOADS))
        raise ValueError(f"no preset {text!r}; there are {known}, and shapes as 32x56x56x64")
    return found[0], benchmark.WORKLOADS[found[0]]


def _plain(name: str) -> str:
    return name.lower().replace("-", "")


def _names(
    option: str, kind: str, known: Sequence[str], default: str = ""
) -> Callable[[Command], Command]:
    """Make an option that takes some of the known names."""
    described = arguments.names(kind, known, default)
    return click.option(
        option,
        type=Checked("names", described["type"]),
        default=described["default"],
        show_default=True,
        help="Names or their beginnings, with commas between.",
    )


@click.command(short_help="Compare onedsl, oneDNN and PyTorch.")
@click.argument("what", nargs=-1, type=Checked("preset", workload))
@_names("--operations", "operation", list(benchmark.OPERATIONS), "backward,forward")
@_names("--dtypes", "dtype", list(DTYPES))
@_names("--formats", "format", list(benchmark.FORMATS))
@click.option("--seconds", type=SECONDS, default="1", show_default=True, help="Time for each row.")
@click.option(
    "--json", "json_file", type=Checked("file", arguments.output), help="Write all figures there."
)
@click.option(
    "--plot", type=Checked("file", arguments.picture), help="Draw a .png, .pdf or .svg there."
)
@click.option(
    "--compare",
    "old_file",
    metavar="OLD.json",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that --json wrote: status 1 if a row is slower now.",
)
@click.option(
    "--threshold",
    type=Checked("ratio", arguments.positive),
    default="1.1",
    show_default=True,
    help="So many times as long is slower.",
)
def bench(
    what: Sequence[tuple[str, Shapes]],
    operations: list[str],
    dtypes: list[str],
    formats: list[str],
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
    old_file: Path | None,
    threshold: float,
) -> int:
    """Compare onedsl, oneDNN and PyTorch on layers of networks.

    WHAT is a preset (resnet50, mobilenetv2, transformer, images, small), or a layer's shape with
    the channels last, as 32x56x56x64; without it, all presets. Times onedsl's kernels, oneDNN's,
    PyTorch where it is installed, and the machine's own memory rate (a triad), in turns.
    """
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'onedsl[cli]'")
    workloads: Mapping[str, Shapes] = dict(what) if what else benchmark.WORKLOADS
    cases = list(benchmark.cases(workloads, dtypes, formats, operations))
    with as_usage_errors():
        before = None if old_file is None else compare.read(old_file)
        if before is not None and not any(compare.key_of(case) in before.rows for case in cases):
            raise ValueError(f"{old_file} has none of the rows that are to be measured")

    out = console()
    out.print(benchmark.machine())
    rows = []
    for case in progress(cases, "measuring"):
        with as_usage_errors():
            calls = benchmark.contenders(case, benchmark.random_problem(case))
            rows += benchmark.measure({case: calls}, seconds)
    for table in report.rows_tables(rows):
        out.print(table)
    for line in report.summary(rows):
        out.print(line)
    if json_file:
        report.write_json(json_file, rows)
    if plot:
        report.draw(plot, rows)
    if before is None:
        return 0
    found = compare.changes(rows, before)
    out.print(compare.changes_table(found, threshold))
    for line in compare.differences(report.machine_facts(), before):
        out.print(line, markup=False)
    out.print(compare.verdict(found, threshold))
    return 1 if any(change.is_slower(threshold) for change in found) else 0
