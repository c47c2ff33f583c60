"""Train through one residual block's batch norms: PyTorch's separate kernels, and onedsl's fused.

A bottleneck block of ResNet-50 normalizes three times: twice with a ReLU behind, and once with the
shortcut added before the ReLU. PyTorch goes over memory for each of these steps; onedsl does them
while it normalizes. Every result is checked against the float64 reference before it is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

import onedsl
from onedsl import bench, testing
from onedsl.bench import arguments
from onedsl.bench.plot import BLUE, DARK_GREY, GRID, VERMILION
from onedsl.bench.table import Column, console, microseconds, progress, ratio, table

# Passes of the block, and the channels of the layer that each belongs to.
PASSES = [
    *(("relu-forward", 64), ("relu-forward", 64), ("add-relu-forward", 256)),
    *(("add-relu-backward", 256), ("relu-backward", 64), ("relu-backward", 64)),
]
# What PyTorch's kernels beside batch norm's own move: tensors read and written.
RELU, ADD, MASK = 2, 3, 3
BESIDE = {
    "relu-forward": RELU,
    "add-relu-forward": ADD + RELU,
    "relu-backward": MASK,
    "add-relu-backward": MASK,
}
WHO = {"PyTorch": BLUE, "onedsl": VERMILION}


def separate_bytes(case: bench.Case) -> int:
    """Count what PyTorch's separate kernels must move, each at its best."""
    norm = bench.Case(
        case.workload, case.shape, case.dtype, case.data_format, case.operation.split("-")[-1]
    )
    return norm.floor_bytes + BESIDE[case.operation] * case.tensor_bytes


def measure(case: bench.Case, seconds: float) -> bench.Row:
    """Verify one pass, then time it against PyTorch's in turns."""
    problem = bench.random_problem(case)
    memory = bench.memory(case, problem)
    wanted = bench.expected(case, memory)
    got = bench.onedsl_calls(case, memory)["onedsl"]()._asdict()
    for name, reference in wanted.items():
        allowed = testing.TOLERANCES if reference.ndim > 1 else testing.SUM_TOLERANCES
        error = testing.relative_l2(got[name], reference)
        tolerance = allowed[onedsl.TensorSpec.of(got[name]).dtype]
        if not error <= tolerance:
            sys.exit(f"{case}: {name} is off by {error:.2g} (relative L2), over {tolerance:.2g}")
    (row,) = bench.measure({case: bench.implementations(case, problem)}, seconds)
    return row


def time_of(rows: Sequence[bench.Row], who: str) -> float:
    """Add up a block's time."""
    return sum(row.time("torch" if who == "PyTorch" else who) for row in rows)


def bytes_of(rows: Sequence[bench.Row], who: str) -> float:
    """Add up what a block moves."""
    return sum(separate_bytes(row) if who == "PyTorch" else row.floor_bytes for row in rows)


Blocks = dict[tuple[str, str], list[bench.Row]]


def draw(path: Path, blocks: Blocks, title: str) -> None:
    """Draw time and bytes of each block, PyTorch's above onedsl's."""
    figure = Figure(figsize=(12, 3.2 + 0.7 * len(blocks)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, what, unit, scale in (
        (panels[0], time_of, "milliseconds, forward and backward", 1e3),
        (panels[1], bytes_of, "megabytes that must move", 1e-6),
    ):
        for i, rows in enumerate(blocks.values()):
            for (who, colour), offset in zip(WHO.items(), (-0.19, 0.19), strict=True):
                value = what(rows, who) * scale
                label = who if i == 0 else None
                axes.barh(i + offset, value, 0.34, color=colour, label=label, zorder=2)
                axes.text(value, i + offset, f" {value:,.1f}", va="center", color=DARK_GREY)
        axes.set_xlabel(unit, size=11)
        axes.margins(x=0.14)
        axes.grid(axis="x", color=GRID, zorder=0)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    panels[0].set_yticks(range(len(blocks)), [f"{dtype} {fmt}" for dtype, fmt in blocks])
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title, size=15, weight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=90)


def main() -> None:
    """Run the block in every type and format, print a table and draw a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=arguments.count, default=16)
    parser.add_argument("--size", type=arguments.count, default=56, help="height and width")
    parser.add_argument("--dtypes", **arguments.names("dtype", ["f32", "bf16"]))
    parser.add_argument("--formats", **arguments.names("format", list(bench.FORMATS)))
    parser.add_argument("--seconds", type=arguments.positive, default=0.5, help="for each pass")
    parser.add_argument("--save", **arguments.save("layer.png"))
    chosen = parser.parse_args()
    out = console()
    out.print(bench.machine())
    blocks: Blocks = {}
    cases = [
        bench.Case("block", (chosen.batch, c, chosen.size, chosen.size), dtype, fmt, operation)
        for dtype in chosen.dtypes
        for fmt in chosen.formats
        for operation, c in PASSES
    ]
    for case in progress(cases, "measuring"):
        row = measure(case, chosen.seconds)
        if not row.ran("torch"):
            sys.exit("this example compares with PyTorch, which is not installed")
        blocks.setdefault((case.dtype, case.data_format), []).append(row)
    columns: list[Column[bench.Row]] = [
        Column("pass", lambda row: row.operation),
        Column("layer\n(N, C, X)", lambda row: row.layer),
        Column("type,\nformat", lambda row: f"{row.dtype:<4} {row.data_format}"),
        Column("PyTorch", lambda row: microseconds(row.time("torch"))),
        Column("onedsl", lambda row: microseconds(row.time("onedsl"))),
        Column("times\nas fast", lambda row: ratio(row.time("torch") / row.time("onedsl"))),
        Column("PyTorch\nMB", lambda row: f"{separate_bytes(row) / 1e6:,.0f}"),
        Column("onedsl\nMB", lambda row: f"{row.floor_bytes / 1e6:,.0f}"),
    ]
    out.print(table("microseconds a pass (median)", "", columns, blocks.values()))
    out.print("Every result agrees with the float64 reference.")
    gains = [time_of(rows, "PyTorch") / time_of(rows, "onedsl") for rows in blocks.values()]
    finding = f"A residual block's batch norms: {bench.geometric_mean(gains):.1f} times as fast"
    out.print(f"{finding} (geometric mean of types and formats).")
    out.print(*bench.disturbance(row for rows in blocks.values() for row in rows))
    if chosen.save:
        draw(chosen.save, blocks, finding)
        out.print(f"Picture: {chosen.save}")


if __name__ == "__main__":
    main()
