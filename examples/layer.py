"""Time the batch norms of a residual block: PyTorch's separate kernels, and onedsl's fused ones.

A bottleneck block of ResNet-50 has three batch norms: two are followed by a ReLU, one by the
addition of the shortcut and a ReLU. PyTorch runs a kernel for each of these steps; onedsl runs one
for all. Every result is compared with the float64 reference before it is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from matplotlib.figure import Figure

import onedsl
from onedsl import bench, testing
from onedsl.bench.plot import BLUE, DARK_GREY, GRID, VERMILION
from onedsl.bench.table import Column, console, microseconds, progress, ratio, table
from onedsl.cli.options import COUNT, POSITIVE, names_option, save_option

# The block's operations, and the number of channels of each.
OPERATIONS = [
    *(("relu-forward", 64), ("relu-forward", 64), ("add-relu-forward", 256)),
    *(("add-relu-backward", 256), ("relu-backward", 64), ("relu-backward", 64)),
]
# Number of tensors that PyTorch's kernels for ReLU and addition read and write.
RELU, ADD, MASK = 2, 3, 3
EXTRA_TENSORS = {
    "relu-forward": RELU,
    "add-relu-forward": ADD + RELU,
    "relu-backward": MASK,
    "add-relu-backward": MASK,
}
COLORS = {"PyTorch": BLUE, "onedsl": VERMILION}


def bytes_of(case: bench.Case, name: str) -> float:
    """Return the least memory traffic of an implementation's kernels."""
    if name == "onedsl":
        return case.floor_bytes
    batch_norm = case.operation.split("-")[-1]
    alone = bench.Case(case.workload, case.shape, case.dtype, case.data_format, batch_norm)
    return alone.floor_bytes + EXTRA_TENSORS[case.operation] * case.tensor_bytes


def measure(case: bench.Case, seconds: float) -> bench.Row:
    """Verify an operation, then time onedsl's and PyTorch's kernels interleaved."""
    problem = bench.random_problem(case)
    memory = bench.memory(case, problem)
    expected = bench.expected(case, memory)
    results = bench.onedsl_calls(case, memory)["onedsl"]()._asdict()
    for name, reference in expected.items():
        tolerances = testing.TOLERANCES if reference.ndim > 1 else testing.SUM_TOLERANCES
        tolerance = tolerances[onedsl.TensorSpec.of(results[name]).dtype]
        error = testing.relative_l2(results[name], reference)
        if not error <= tolerance:
            sys.exit(f"{case}: {name} has a relative L2 error of {error:.2g} > {tolerance:.2g}")
    (row,) = bench.measure({case: bench.implementations(case, problem)}, seconds)
    return row


Blocks = dict[tuple[str, str], list[bench.Row]]


def draw(path: Path, blocks: Blocks, title: str) -> None:
    """Draw time and memory traffic of each block, PyTorch's above onedsl's."""
    figure = Figure(figsize=(12, 3.2 + 0.7 * len(blocks)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, label, scale in (
        (panels[0], "time, forward and backward (ms)", 1e3),
        (panels[1], "memory traffic (MB)", 1e-6),
    ):
        for i, rows in enumerate(blocks.values()):
            for (name, color), offset in zip(COLORS.items(), (-0.19, 0.19), strict=True):
                values = time_of if axes is panels[0] else traffic_of
                value = values(rows, name) * scale
                legend = name if i == 0 else None
                axes.barh(i + offset, value, 0.34, color=color, label=legend, zorder=2)
                axes.text(value, i + offset, f" {value:,.1f}", va="center", color=DARK_GREY)
        axes.set_xlabel(label, size=11)
        axes.margins(x=0.14)
        axes.grid(axis="x", color=GRID, zorder=0)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    panels[0].set_yticks(range(len(blocks)), [f"{dtype} {fmt}" for dtype, fmt in blocks])
    panels[0].set_ylabel("type and data format", size=11)
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title, size=15, weight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=90)


def time_of(rows: Sequence[bench.Row], name: str) -> float:
    """Return the time of a block's batch norms."""
    return sum(row.time(name) for row in rows)


def traffic_of(rows: Sequence[bench.Row], name: str) -> float:
    """Return the least memory traffic of a block's batch norms."""
    return sum(bytes_of(row, name) for row in rows)


@click.command(help=__doc__)
@click.option("--batch", type=COUNT, default=16, show_default=True, help="Number of images.")
@click.option("--size", type=COUNT, default=56, show_default=True, help="Height and width.")
@names_option("--dtypes", ["f32", "bf16"])
@names_option("--formats", bench.FORMATS)
@click.option(
    "--seconds", type=POSITIVE, default="0.5", show_default=True, help="Time for each operation."
)
@save_option("layer.png")
def main(
    batch: int,
    size: int,
    dtypes: list[str],
    formats: list[str],
    seconds: float,
    save: Path | None,
) -> None:
    """Time the block in every type and format, print a table and draw a picture."""
    out = console()
    out.print(bench.describe_machine())
    blocks: Blocks = {}
    cases = [
        bench.Case("block", (batch, channels, size, size), dtype, data_format, operation)
        for dtype in dtypes
        for data_format in formats
        for operation, channels in OPERATIONS
    ]
    for case in progress(cases, "measuring"):
        row = measure(case, seconds)
        if not row.ran("PyTorch"):
            sys.exit("layer.py needs PyTorch: pip install 'onedsl[torch]'")
        blocks.setdefault((case.dtype, case.data_format), []).append(row)
    columns: list[Column[bench.Row]] = [
        Column("operation", lambda row: row.operation),
        Column("layer\n(N, C, X)", lambda row: row.layer),
        Column("type,\nformat", lambda row: f"{row.dtype:<4} {row.data_format}"),
        Column("PyTorch\nµs", lambda row: microseconds(row.time("PyTorch"))),
        Column("onedsl\nµs", lambda row: microseconds(row.time("onedsl"))),
        Column("speedup", lambda row: ratio(row.time("PyTorch") / row.time("onedsl"))),
        Column("PyTorch\nMB", lambda row: f"{bytes_of(row, 'PyTorch') / 1e6:,.0f}"),
        Column("onedsl\nMB", lambda row: f"{bytes_of(row, 'onedsl') / 1e6:,.0f}"),
    ]
    out.print(table("Median time and least memory traffic per call", "", columns, blocks.values()))
    out.print("Every result agrees with the float64 reference.")
    gains = [time_of(rows, "PyTorch") / time_of(rows, "onedsl") for rows in blocks.values()]
    gain = f"Batch norms of a residual block: {bench.geometric_mean(gains):.1f} times as fast"
    out.print(f"{gain} as PyTorch (geometric mean of types and formats).")
    out.print(*bench.noise_warning(row for rows in blocks.values() for row in rows))
    if save:
        draw(save, blocks, f"{gain} with onedsl")
        out.print(f"Picture: {save}")


if __name__ == "__main__":
    main()
