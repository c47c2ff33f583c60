"""``python -m onedsl``: what runs how on this machine, and the benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import _bench
from ._capabilities import capabilities
from ._types import DTYPES


def _choices(kind: str, known: Sequence[str]) -> object:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"no {kind} {name!r}; there are {', '.join(known)}"
                )
        return chosen

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m onedsl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, instruction sets, and what oneDNN runs by itself")
    bench = commands.add_parser(
        "bench",
        help="compare onedsl, oneDNN and PyTorch on layers of common networks",
        description="Times onedsl's backends, PyTorch where it is installed, and the machine's "
        "own triad bandwidth, interleaved, on the batch-norm layers of common networks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    workloads = list(_bench.WORKLOADS)
    bench.add_argument(
        "--workloads",
        type=_choices("workload", workloads),  # type: ignore[arg-type]
        default=workloads,
        metavar="NAMES",
        help=f"comma list of {', '.join(workloads)}",
    )
    bench.add_argument(
        "--dtypes",
        type=_choices("dtype", list(DTYPES)),  # type: ignore[arg-type]
        default=list(DTYPES),
        metavar="NAMES",
        help=f"comma list of {', '.join(DTYPES)}",
    )
    bench.add_argument(
        "--formats",
        type=_choices("format", ["NXC", "NCX"]),  # type: ignore[arg-type]
        default=["NXC", "NCX"],
        metavar="NAMES",
        help="comma list of NXC, NCX",
    )
    bench.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="time to spend on each row"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    bench.add_argument("--plot", type=Path, metavar="FILE", help="draw a PNG there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    if options.command == "info":
        print(capabilities())
        return 0
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        print("the benchmark needs rich: pip install 'onedsl[examples]'", file=sys.stderr)
        return 2

    # Where there is no terminal to ask, a width that the table needs.
    console = Console() if sys.stdout.isatty() else Console(width=100)
    found = capabilities()
    console.print(
        f"onedsl {found.onedsl_version} ({found.native_isa}), oneDNN {found.onednn_version} "
        f"({found.onednn_isa}), {found.num_threads} threads"
    )
    triad = _bench.triad_arrays()
    rows = list(_bench.problems(options.workloads, options.dtypes, options.formats))
    for row in track(rows, "measuring", console=console):
        _bench.measure(row, options.seconds, triad)
    console.print(_bench.table(rows))
    for line in _bench.summary(rows):
        console.print(line, highlight=False)
    if options.json:
        _bench.write_json(options.json, rows)
    if options.plot:
        _bench.plot(options.plot, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
