"""Show what a data format costs: NXC against NCX, in numbers and in a picture.

Layers of real photographs and of ResNet-50, in every data type, format and backend. Each result is
checked against the float64 reference first, then all variants of a layer are timed in turns.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator
from numpy.lib.stride_tricks import sliding_window_view
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

import onedsl
from onedsl import testing

Array = npt.NDArray[Any]
Backend = Literal["auto", "onednn", "native"]
Call = Callable[[], object]

EPSILON = 1e-5
DTYPES = ("f32", "bf16", "f16")
FORMATS = ("NXC", "NCX")
KERNELS: tuple[Backend, ...] = ("onednn", "native")  # what there is for auto to choose from
BACKENDS: tuple[Backend, ...] = (*KERNELS, "auto")

SECONDS = 1.2  # of timing a layer; all 15 layers stay well under a minute with it
MIN_ROUNDS = 5  # for a median, however slow the machine
DISTURBANCE = 0.25  # CPUs that other programs may take: OpenMP's threads wait for the slowest
LOG_WIDTH = 110  # columns of the tables where there is no terminal to ask

# The layers


class Layer(NamedTuple):
    """A batch-norm layer: where its data come from, and how often ResNet-50 has it."""

    name: str
    channels: int
    size: int
    multiplicity: int
    problem: Callable[[Layer, int], testing.Problem]


def photo_problem(layer: Layer, _batch: int) -> testing.Problem:
    """Make a layer's activations from photographs: raw colours, or the answers of filters."""
    photos = np.stack(load_sample_images().images).astype(np.float32)
    photos = (photos - photos.mean((0, 1, 2))) / photos.std((0, 1, 2))
    colours = photos.shape[-1]
    if layer.channels > colours:
        bank = gabor_filters(layer.channels // colours)
        windows = sliding_window_view(photos, bank.shape[1:], (1, 2))[:, ::2, ::2]
        photos = np.tensordot(windows, bank, ((-2, -1), (1, 2))).reshape(*windows.shape[:3], -1)
    src = tiles(photos, layer.size)

    # The loss is 0.5 * sum(relu(y) ** 2), so its gradient with respect to y is relu(y).
    gamma = np.linspace(0.5, 1.5, layer.channels, dtype=np.float32)
    y = testing.batch_norm(src, gamma, epsilon=EPSILON)
    mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))
    return testing.Problem(src, np.maximum(y, 0).astype(np.float32), mean, variance, gamma)


def gabor_filters(number: int) -> Array:
    """Make 7x7 filters for edges (the first 8) and lines (the next 8) in 8 directions."""
    y, x = np.mgrid[-3:4, -3:4]
    angle = (np.arange(number) % 8 * np.pi / 8)[:, None, None]
    phase = np.where(np.arange(number) < 8, np.pi / 2, 0)[:, None, None]
    wave = np.cos(2 * np.pi / 6 * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    bank: Array = wave * np.exp(-(x**2 + y**2) / 8)
    bank -= bank.mean((1, 2), keepdims=True)
    bank /= np.linalg.norm(bank, axis=(1, 2), keepdims=True)
    return bank.astype(np.float32)


def tiles(images: Array, size: int) -> Array:
    """Cut images into a batch of squares, and drop what is left at the edges."""
    n, rows, columns = images.shape[0], images.shape[1] // size, images.shape[2] // size
    squares = images[:, : rows * size, : columns * size]
    squares = squares.reshape(n, rows, size, columns, size, -1).swapaxes(2, 3)
    return np.ascontiguousarray(squares.reshape(n * rows * columns, size, size, -1))


def resnet50_problem(layer: Layer, batch: int) -> testing.Problem:
    """Make random data of a ResNet-50 layer's shape."""
    return testing.random_problem((batch, layer.size, layer.size, layer.channels))


PHOTOS = tuple(
    Layer(f"photos-{channels}x{size}", channels, size, 0, photo_problem)
    for channels, size in ((3, 208), (24, 104), (48, 104))
)

# Channels, height and width, and number of the 53 batch-norm layers of ResNet-50 v1.5, which has
# the stride in the 3x3 convolution.
RESNET50 = tuple(
    Layer(f"resnet50-{channels}x{size}", channels, size, count, resnet50_problem)
    for channels, size, count in (
        (64, 112, 1),
        (64, 56, 6),
        (256, 56, 4),
        (128, 56, 1),
        (128, 28, 7),
        (512, 28, 5),
        (256, 28, 1),
        (256, 14, 11),
        (1024, 14, 7),
        (512, 14, 1),
        (512, 7, 5),
        (2048, 7, 4),
    )
)

LAYERS = PHOTOS + RESNET50

# What is compared, and what comes out


class Variant(NamedTuple):
    """One way to run a layer."""

    dtype: str
    data_format: str
    backend: str


class Result(NamedTuple):
    """What one variant of a layer did."""

    chosen: str = ""
    """The backend that ran; that of "auto" is known only after compiling."""
    errors: tuple[float, ...] = ()
    """Relative L2 errors of diff_src, diff_gamma and diff_beta."""
    failure: str = ""
    """Which gradients are wrong."""
    missing: str = ""
    """Why it cannot run on this CPU."""
    seconds: float = float("nan")
    """Median of the rounds."""


class Row(NamedTuple):
    """The results of one layer."""

    name: str
    elements: int
    results: dict[Variant, Result]
    disturbed: bool = False
    """Whether other programs wanted CPUs that the timings needed."""


def run_layer(layer: Layer, batch: int, dtypes: Sequence[str]) -> Row:
    """Verify every variant of a layer, then time them."""
    problem = layer.problem(layer, batch)
    results: dict[Variant, Result] = {}
    calls: dict[Variant, Call] = {}
    for dtype in dtypes:
        for variant, result, call in verify(problem, dtype):
            results[variant] = result
            if call:
                calls[variant] = call
    disturbed, seconds = time_in_turns(calls)
    for variant, value in seconds.items():
        results[variant] = results[variant]._replace(seconds=value)
    return Row(layer.name, problem.src.size, results, disturbed)


def verify(problem: testing.Problem, dtype: str) -> Iterator[tuple[Variant, Result, Call | None]]:
    """Run the variants of one dtype, and compare each with the one float64 reference."""
    problem = rounded(problem, dtype)
    expected = testing.batch_norm_backward(*problem, epsilon=EPSILON)
    terms = problem.src.size // problem.mean.size
    for data_format in FORMATS:
        if data_format == "NCX":
            problem = problem._replace(src=to_ncx(problem.src), diff_dst=to_ncx(problem.diff_dst))
            expected = expected._replace(diff_src=to_ncx(expected.diff_src))
        op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
        spec = onedsl.TensorSpec.of(problem.src)
        out = onedsl.BatchNormGradients(*map(np.empty_like, (problem.src, *problem[2:4])))
        for backend in BACKENDS:
            variant = Variant(dtype, data_format, backend)
            try:
                compiled = op.compile(spec, backend=backend)
            except onedsl.UnsupportedError as error:
                yield variant, Result(missing=missing_isa(error)), None
                continue
            call = partial(compiled, *problem, out=out)
            call()
            errors = tuple(map(testing.relative_l2, out, expected))
            failure = judge(errors, tolerances(dtype, compiled.backend, terms))
            yield variant, Result(compiled.backend, errors, failure), call


def rounded(problem: testing.Problem, dtype: str) -> testing.Problem:
    """Round the tensors to a dtype; the statistics stay those of the unrounded src."""
    to = numpy_dtype(dtype)
    return problem._replace(src=problem.src.astype(to), diff_dst=problem.diff_dst.astype(to))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Give NumPy's dtype, or ml_dtypes', of onedsl's name."""
    return onedsl.TensorSpec((), dtype).numpy_dtype


def to_ncx(array: Array) -> Array:
    """Copy (N, H, W, C) to (N, C, H, W)."""
    return np.ascontiguousarray(np.moveaxis(array, -1, 1))


def missing_isa(error: onedsl.UnsupportedError) -> str:
    """Give the instruction set that an error names, in few words."""
    needed = re.search(r"needs (\w+)", str(error))
    return f"no {needed[1]}" if needed else "unsupported"


def tolerances(dtype: str, backend: str, terms: int) -> tuple[float, ...]:
    """Give the errors allowed to the three gradients: onedsl's own.

    oneDNN gets more for long sums. It adds in plain float32, which can lose up to a rounding a
    term; half a percent is the limit.
    """
    own = (testing.TOLERANCES[dtype], *[testing.SUM_TOLERANCES["f32"]] * 2)
    if backend != "onednn":
        return own
    return tuple(max(tolerance, min(terms * 2.0**-24, 2.0**-8)) for tolerance in own)


def judge(errors: Iterable[float], allowed: Iterable[float]) -> str:
    """Say which gradients are wrong, if any."""
    names = onedsl.BatchNormGradients._fields
    return ", ".join(
        f"{name} is off by {error:.2g} (relative L2), more than {tolerance:.2g}"
        for name, error, tolerance in zip(names, errors, allowed, strict=True)
        if not error <= tolerance
    )


def time_in_turns(calls: dict[Variant, Call]) -> tuple[bool, dict[Variant, float]]:
    """Give each variant's median seconds, from rounds in which each runs once.

    Also tell whether other programs disturbed. The backend changes slowest within a round. So
    between two calls on the same tensors all other tensors of the layer are used, and no variant
    finds its own in a warmer cache than the others.
    """
    order = sorted(calls, key=lambda variant: BACKENDS.index(variant.backend))
    samples: dict[Variant, list[float]] = {variant: [] for variant in order}
    begin, others = time.perf_counter(), cpu_seconds_of_others()
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < begin + SECONDS:
        rounds += 1
        for variant in order:
            start = time.perf_counter()
            calls[variant]()
            samples[variant].append(time.perf_counter() - start)
    cpus_of_others = (cpu_seconds_of_others() - others) / (time.perf_counter() - begin)
    wanted = onedsl.capabilities().num_threads + cpus_of_others
    medians = {variant: median(times) for variant, times in samples.items()}
    return wanted > (os.cpu_count() or 1) + DISTURBANCE, medians


def cpu_seconds_of_others() -> float:
    """Give the CPU seconds that other programs have used since the machine started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


# What the results say


def gigabytes(elements: int, dtype: str) -> float:
    """Count the least traffic: src and diff_dst are read, diff_src is written."""
    return 3 * elements * numpy_dtype(dtype).itemsize / 1e9


def pick(
    rows: Iterable[Row], dtype: str, backend: str, formats: Sequence[str] = FORMATS
) -> list[Result]:
    """Give the results of all layers in one dtype and backend, where it can run."""
    found = (row.results[Variant(dtype, f, backend)] for row in rows for f in formats)
    return [result for result in found if not result.missing]


def format_costs(rows: Sequence[Row], dtypes: Iterable[str], backend: str) -> list[float]:
    """Give the time in NCX over the time in NXC, of every layer and dtype."""
    return [
        ncx.seconds / nxc.seconds
        for dtype in dtypes
        for nxc, ncx in zip(
            *(pick(rows, dtype, backend, [data_format]) for data_format in FORMATS), strict=True
        )
    ]


def resnet50_sum(rows: Sequence[Row]) -> list[Row]:
    """Add up all batch-norm layers of ResNet-50, if all their shapes were run."""
    found = {row.name: row for row in rows}
    if any(layer.name not in found for layer in RESNET50):
        return []
    parts = [(layer.multiplicity, found[layer.name]) for layer in RESNET50]
    results = {
        variant: result._replace(
            seconds=sum(n * row.results[variant].seconds for n, row in parts),
            failure="".join(row.results[variant].failure for _, row in parts),
        )
        for variant, result in parts[0][1].results.items()
    }
    return [Row("resnet50 sum, ms", sum(n * row.elements for n, row in parts), results)]


def results_table(rows: Sequence[Row], dtypes: Sequence[str]) -> Table:
    """Make a table with one row per layer and dtype, and the best in green."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("\nlayer", no_wrap=True)
    table.add_column("")
    for data_format in FORMATS:
        for backend in BACKENDS:
            table.add_column(f"{data_format}\n{backend}", justify="right")
    table.add_column("\nGB/s", justify="right")
    add_rows(table, rows, dtypes, unit=1e-6)
    table.add_section()
    add_rows(table, resnet50_sum(rows), dtypes, unit=1e-3)
    return table


def add_rows(table: Table, rows: Iterable[Row], dtypes: Sequence[str], unit: float) -> None:
    """Fill the table of results."""
    for row in rows:
        for dtype in dtypes:
            results = [result for variant, result in row.results.items() if variant.dtype == dtype]
            best = min(result.seconds for result in results if not result.missing)
            table.add_row(
                row.name if dtype == dtypes[0] else "",
                dtype,
                *(cell(result, best, unit) for result in results),
                f"{gigabytes(row.elements, dtype) / best:.0f}",
            )


def cell(result: Result, best: float, unit: float) -> Text:
    """Show one time and its ratio to the best of its row."""
    if result.missing:
        return Text(result.missing, "dim")
    if result.failure:
        return Text("WRONG", "bold red")
    text = f"{result.seconds / unit:.0f} {times(result.seconds / best)}"
    return Text(text, "bold green" if result.seconds == best else "")


def times(ratio: float) -> str:
    """Write a ratio with two digits."""
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def summary_table(rows: Sequence[Row], dtypes: Sequence[str]) -> Table:
    """Make a table of what NCX costs, what auto chose, and how exact the backends are."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(f"layers: {len(rows)}")
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    for backend in BACKENDS:
        costs = (format_costs(rows, [dtype], backend) for dtype in dtypes)
        table.add_row(
            f"NCX time / NXC time, geometric mean, {backend}",
            *(times(geometric_mean(ratios)) if ratios else "-" for ratios in costs),
            end_section=backend == BACKENDS[-1],
        )
    for data_format in FORMATS:
        picked = (pick(rows, dtype, "auto", [data_format]) for dtype in dtypes)
        counts = ([result.chosen for result in results].count("native") for results in picked)
        table.add_row(
            f"layers where auto took native, {data_format}",
            *(f"{count} of {len(rows)}" for count in counts),
            end_section=data_format == FORMATS[-1],
        )
    for backend in KERNELS:
        worst = (
            [max(errors) for errors in zip(*(r.errors for r in found), strict=True)]
            for found in (pick(rows, dtype, backend) for dtype in dtypes)
        )
        table.add_row(
            f"relative error of diff_src / of sums, {backend}",
            *(f"{e[0]:.0e} / {max(e[1:]):.0e}" if e else "-" for e in worst),
        )
    return table


# The picture

# Okabe and Ito's blue and vermilion, which colour-blind people can tell apart.
COLOURS = {"NXC": "#0072B2", "NCX": "#D55E00"}
MARKERS = {"onednn": "o", "native": "D"}
LABELS = {"onednn": "oneDNN", "native": "onedsl's own kernel"}
DARK_GREY, GREY, GRID, STRIPE = "#555555", "#8a8a8a", "#dcdcdc", "#f3f3f3"
OFFSETS = {"onednn": -0.17, "native": 0.17}  # rows apart, so that marks do not hide each other


def plot(rows: Sequence[Row], dtypes: Sequence[str], header: str, path: Path) -> None:
    """Draw a panel per dtype: the time per element of every layer, format and backend."""
    head, foot, row_height, width = 1.5, 1.1, 0.37, 13.3  # inches; the width is a slide's
    height = head + foot + row_height * len(rows)
    figure = Figure(figsize=(width, height), dpi=150)
    panels = figure.subplots(1, len(dtypes), sharex=True, sharey=True, squeeze=False)[0]
    figure.subplots_adjust(0.135, foot / height, 0.985, 1 - head / height, wspace=0.05)
    for axes, dtype in zip(panels, dtypes, strict=True):
        draw_panel(axes, rows, dtype)
    panels[0].set_yticks(range(len(rows)), [row.name for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    left, top = 0.012, 1 - 0.2 / height
    figure.text(left, top, finding(rows, dtypes), va="top", size=21, weight="bold")
    subtitle = f"Geometric means, layers: {len(rows)}. {header}"
    figure.text(left, 1 - 0.65 / height, subtitle, va="top", size=11.5, color=DARK_GREY)
    figure.legend(handles=legend(), loc="lower center", ncols=5, frameon=False, fontsize=13)
    figure.savefig(path)


def finding(rows: Sequence[Row], dtypes: Sequence[str]) -> str:
    """Put into one sentence what NCX costs."""
    found = [(name, format_costs(rows, dtypes, kernel)) for kernel, name in LABELS.items()]
    parts = [f"{times(geometric_mean(costs))} in {name}" for name, costs in found if costs]
    return f"NCX takes {', '.join(parts)}".replace(" in ", " NXC's time in ", 1)


def draw_panel(axes: Axes, rows: Sequence[Row], dtype: str) -> None:
    """Draw one dtype: for each layer and backend a line from NXC to NCX."""
    for y, row in enumerate(rows):
        if y % 2 == 0:
            axes.axhspan(y - 0.5, y + 0.5, color=STRIPE, linewidth=0, zorder=0)
        for backend in KERNELS:
            draw_pair(axes, row, dtype, backend, y + OFFSETS[backend])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ns per element, less is better", size=13)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=12)
    axes.spines[:].set_visible(False)
    axes.set_title(dtype, loc="left", size=16, weight="bold")
    missing = {r.missing for v, r in rows[0].results.items() if v.dtype == dtype and r.missing}
    if missing:
        axes.set_title(f"oneDNN: {missing.pop()}", loc="right", size=11.5, color=DARK_GREY)


def draw_pair(axes: Axes, row: Row, dtype: str, backend: Backend, y: float) -> None:
    """Draw one backend's times in NXC and NCX, and the line between them."""
    ends = [result.seconds / row.elements * 1e9 for result in pick([row], dtype, backend)]
    axes.plot(ends, [y] * len(ends), color=GREY, linewidth=1.5, zorder=2)
    for x, data_format in zip(ends, FORMATS, strict=False):
        auto = row.results[Variant(dtype, data_format, "auto")].chosen == backend
        axes.plot(
            x,
            y,
            MARKERS[backend],
            color=COLOURS[data_format],
            markersize=8,
            markeredgecolor="black" if auto else COLOURS[data_format],
            markeredgewidth=1.5 if auto else 0,
        )


def legend() -> list[Line2D]:
    """Explain colours, shapes and the black edge."""
    dot: dict[str, Any] = {"linestyle": "", "markersize": 9}
    return [
        *(Line2D([], [], marker="s", color=c, label=f, **dot) for f, c in COLOURS.items()),
        *(Line2D([], [], marker=m, color=GREY, label=LABELS[b], **dot) for b, m in MARKERS.items()),
        Line2D(
            [],
            [],
            marker="o",
            markerfacecolor="white",
            color="black",
            markeredgewidth=1.4,
            label='taken by "auto"',
            **dot,
        ),
    ]


# The command


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", 1)[0] if __doc__ else "",
        epilog="layers: " + ", ".join(layer.name for layer in LAYERS),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--layers",
        type=parse_layers,
        default="photos,resnet50",
        help="names, patterns or beginnings of names, with commas between",
    )
    parser.add_argument(
        "--dtypes",
        type=parse_dtypes,
        default=",".join(DTYPES),
        help="data types, with commas between",
    )
    parser.add_argument(
        "--batch", type=parse_batch, default=8, help="images in a batch of the ResNet-50 layers"
    )
    parser.add_argument(
        "--save",
        type=parse_path,
        default="compare_data_formats.png",
        metavar="PATH",
        help="where the picture goes, .png, .pdf or .svg; '' for nowhere",
    )
    return parser.parse_args()


def parse_layers(text: str) -> list[Layer]:
    """Take names, patterns and beginnings of names."""
    chosen: set[str] = set()
    for word in text.split(","):
        names = [
            layer.name
            for layer in LAYERS
            if fnmatch.fnmatchcase(layer.name, word) or layer.name.startswith(f"{word}-")
        ]
        if not names:
            raise argparse.ArgumentTypeError(
                f"no layer is called {word!r}; there are "
                + ", ".join(layer.name for layer in LAYERS)
            )
        chosen.update(names)
    return [layer for layer in LAYERS if layer.name in chosen]


def parse_dtypes(text: str) -> list[str]:
    """Take data types."""
    words = text.split(",")
    for word in words:
        if word not in DTYPES:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(DTYPES)}")
    return [dtype for dtype in DTYPES if dtype in words]


def parse_batch(text: str) -> int:
    """Take a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, not {text!r}")
    return int(text)


def parse_path(text: str) -> Path | None:
    """Take a path that can be written to later, or nothing."""
    if not text:
        return None
    path = Path(text)
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"must end in .png, .pdf or .svg, not {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


def run_layers(layers: Sequence[Layer], batch: int, dtypes: Sequence[str]) -> list[Row]:
    """Run all layers; show progress where a person looks on."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    rows = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(layers))
        for layer in layers:
            progress.update(task, description=layer.name)
            rows.append(run_layer(layer, batch, dtypes))
            progress.advance(task)
        progress.update(task, description="done")
    return rows


def main() -> int:
    """Run the comparison, and print and save what came out."""
    options = arguments()
    console = Console()
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console = Console(width=LOG_WIDTH)
    found = onedsl.capabilities()
    header = (
        f"onedsl {found.onedsl_version} ({found.native_isa}), oneDNN {found.onednn_version} "
        f"({found.onednn_isa}), {found.num_threads} threads, batch {options.batch} of ResNet-50"
    )
    console.print(header, highlight=False)

    rows = run_layers(options.layers, options.batch, options.dtypes)
    console.print("\nMicroseconds, and how many times the best of the row", style="bold")
    console.print(results_table(rows, options.dtypes))
    notes = "GB/s: of the row's best, with src and diff_dst read once and diff_src written once."
    if resnet50_sum(rows):
        notes += "\nresnet50 sum: milliseconds of all 53 batch-norm layers of the network."
    console.print(notes, style="dim", highlight=False)
    console.print()
    console.print(summary_table(rows, options.dtypes))
    console.print()
    if disturbed := [row.name for row in rows if row.disturbed]:
        warning = f"Other programs kept the CPUs busy, so do not trust {', '.join(disturbed)}."
        console.print(warning, style="bold yellow", highlight=False)
    if options.save:
        plot(rows, options.dtypes, header, options.save)
        console.print(f"Picture: {options.save}", highlight=False)

    failures = [
        f"{row.name} {' '.join(variant)}: {result.failure}"
        for row in rows
        for variant, result in row.results.items()
        if result.failure
    ]
    for failure in failures:
        print(f"verification failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
