"""``onedsl bench``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import click

from .. import bench as benchmark
from .._types import DTYPES
from ..bench import arguments
from .options import SECONDS, Checked, Command


def _names(option: str, kind: str, known: list[str]) -> Callable[[Command], Command]:
    """Make an option that takes some of the known names."""
    described = arguments.names(kind, known)
    return click.option(
        option,
        type=Checked("names", described["type"]),
        default=described["default"],
        show_default=True,
        help="Names or their beginnings, with commas between.",
    )


@click.command(short_help="Compare onedsl, oneDNN and PyTorch.")
@_names("--workloads", "workload", list(benchmark.WORKLOADS))
@_names("--dtypes", "dtype", list(DTYPES))
@_names("--formats", "format", list(benchmark.FORMATS))
@click.option("--seconds", type=SECONDS, default="1", show_default=True, help="Time for each row.")
@click.option(
    "--json", "json_file", type=Checked("file", arguments.output), help="Write all figures there."
)
@click.option(
    "--plot", type=Checked("file", arguments.picture), help="Draw a .png, .pdf or .svg there."
)
def bench(
    workloads: list[str],
    dtypes: list[str],
    formats: list[str],
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
) -> int:
    """Compare onedsl, oneDNN and PyTorch on layers of common networks.

    Times onedsl's kernels, oneDNN's, PyTorch where it is installed, and the machine's own memory
    rate (a triad), in turns.
    """
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'onedsl[cli]'")
    from ..bench import report
    from ..bench.table import console, progress

    out = console()
    out.print(benchmark.machine())
    triad = benchmark.triad_arrays()
    rows = []
    cases = list(benchmark.cases(workloads, dtypes, formats))
    for case in progress(cases, "measuring"):
        calls = benchmark.contenders(benchmark.random_problem(case), case.data_format)
        rows += benchmark.measure({case: calls}, seconds, triad)
    out.print(report.rows_table(rows))
    for line in report.summary(rows):
        out.print(line)
    if json_file:
        report.write_json(json_file, rows)
    if plot:
        report.draw(plot, rows)
    return 0
