"""``onedsl``, or ``python -m onedsl``: what runs how on this machine, and the benchmark."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from . import bench
from ._capabilities import capabilities
from ._types import DTYPES
from .bench import arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(argv)
    if options.command == "info":
        print(capabilities())
        return 0
    needed = ["rich", "matplotlib"] if options.plot else ["rich"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"the benchmark needs {' and '.join(missing)}: pip install 'onedsl[examples]'",
            file=sys.stderr,
        )
        return 2
    _run_bench(options)
    return 0


def _run_bench(options: argparse.Namespace) -> None:
    from .bench import report
    from .bench.table import console, progress

    out = console()
    out.print(bench.machine())
    rows = []
    chosen = options.workloads, options.dtypes, options.formats, options.operations
    for case in progress(list(bench.cases(*chosen)), "measuring"):
        calls = bench.contenders(case, bench.random_problem(case))
        rows += bench.measure({case: calls}, options.seconds)
    for table in report.rows_tables(rows):
        out.print(table)
    for line in report.summary(rows):
        out.print(line)
    if options.json:
        report.write_json(options.json, rows)
    if options.plot:
        report.draw(options.plot, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onedsl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, instruction sets, and what oneDNN runs by itself")
    command = commands.add_parser(
        "bench",
        help="compare onedsl, oneDNN and PyTorch on layers of common networks",
        description="Times onedsl's kernels, oneDNN's, PyTorch where it is installed, and the "
        "machine's own memory rate (a triad), in turns, on the batch-norm layers of common "
        "networks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option, kind, known, default in (
        ("--operations", "operation", list(bench.OPERATIONS), "backward,forward"),
        ("--workloads", "workload", list(bench.WORKLOADS), ""),
        ("--dtypes", "dtype", list(DTYPES), ""),
        ("--formats", "format", list(bench.FORMATS), ""),
    ):
        command.add_argument(option, **arguments.names(kind, known, default))
    command.add_argument(
        "--seconds", type=arguments.positive, default=1.0, metavar="S", help="time for each row"
    )
    command.add_argument(
        "--json", type=arguments.output, metavar="FILE", help="write all figures there"
    )
    command.add_argument(
        "--plot", type=arguments.picture, metavar="FILE", help="draw a .png, .pdf or .svg there"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
