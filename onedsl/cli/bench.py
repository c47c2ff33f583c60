"""The command ``onedsl bench``."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean

import click
from click.core import ParameterSource
from rich.table import Table

from .. import bench as benchmark
from ..bench import MIN_BYTES, Row, steps
from ..bench.cases import Shape
from ..bench.measure import VERSION, change_of, key_of, read_rows
from ..bench.timing import noise_warning
from ..graph.drawing import SUFFIXES
from ..runtime.text import printable
from ..tensors.dtypes import DTYPES
from . import options
from .output import console, microseconds, progress, ratio, table

OTHERS = ("oneDNN", "PyTorch")

# Parameters that require --step, and parameters that --step excludes.
_STEP_PARAMETERS = {"batch", "size", "processes"}
_LAYER_PARAMETERS = {"operations", "seconds", "plot", "old_file"}


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


def _number(flag: str, default: int, least: int, text: str) -> options.Decorator:
    number = click.IntRange(least, 1 << 12)
    help_text = f"With --step: {text}."
    return click.option(flag, type=number, default=default, show_default=True, help=help_text)


@click.command(short_help="Compare the speed of onedsl, oneDNN and PyTorch.")
@click.argument("what", nargs=-1)
@_names("operation", tuple(benchmark.OPERATIONS), ("backward", "forward"))
@_names("dtype", tuple(DTYPES), tuple(DTYPES))
@_names("format", benchmark.FORMATS, benchmark.FORMATS)
@options.seconds(2, "Time per layer.")
@click.option("--json", "json_file", type=options.file, help="Write all figures to a JSON file.")
@click.option("--plot", type=options.file, help=f"Draw a picture ({', '.join(SUFFIXES)}).")
@click.option(
    "--compare",
    "old_file",
    metavar="OLD.json",
    type=options.EXISTING_FILE,
    help="Compare with a file that --json wrote. The exit status is 1 if a row is slower.",
)
@click.option("--step", is_flag=True, help="Time training steps of networks instead of layers.")
@_number("--batch", 16, 1, "images")
@_number("--size", 224, 32, "height and width of the images in pixels")  # halved five times
@_number("--processes", 5, 1, "processes for each way to train")
@click.pass_context
def bench(
    context: click.Context,
    what: Sequence[str],
    operations: Sequence[str],
    dtypes: Sequence[str],
    formats: Sequence[str],
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
    old_file: Path | None,
    step: bool,
    batch: int,
    size: int,
    processes: int,
) -> int:
    """Compare the speed of onedsl, oneDNN and PyTorch on layers of networks.

    WHAT is a preset (resnet50, mobilenetv2, transformer, images, small) or the shape of one layer
    with the channels last, such as 32x56x56x64. The default is all presets. For each layer, the
    command times calls of onedsl, of oneDNN, of PyTorch if it is installed, and of a triad
    (out = a + 2 * b), which measures the machine's memory bandwidth. They are single calls in
    random order on tensors out of cache, as a program makes them between other work; only those
    that take less than 20 us are repeated at once. Shown is the faster of two calls of each
    library: one allocates its results, one writes to given memory.

    With --step, WHAT is a network (mobilenetv2, resnet50, resnet18, densenet121, mobilenetv3,
    efficientnet_b0, regnet_y_400mf, unet; by default all), and the command times whole training
    steps in PyTorch: eager, with onedsl.torch.enable(), with torch.compile, and with
    torch.compile(backend="onedsl"). Each way runs in processes of its own, which alternate. The
    dtypes are f32 and bf16, by autocast. NCX is PyTorch's contiguous memory format, NXC its
    channels_last.
    """
    given = {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    for name, flag in given.items():
        if name in (_LAYER_PARAMETERS if step else _STEP_PARAMETERS):
            verb = "cannot be combined with" if step else "needs"
            raise click.UsageError(f"{flag} {verb} --step")
    if step:
        chosen = what or steps.NETWORKS, dtypes if "dtypes" in given else steps.DTYPES, formats
        return _bench_steps(list(itertools.product(*chosen)), batch, size, processes, json_file)
    if plot and plot.suffix not in SUFFIXES:
        raise click.UsageError(f"--plot must end in {', '.join(SUFFIXES)}, got {plot.name!r}")
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'onedsl[plot]'")
    workloads = {name: layer_shapes(name) for name in what or benchmark.WORKLOADS}
    layers = list(benchmark.layers(workloads, dtypes, formats, operations))
    earlier: dict[object, Row] = {}
    if old_file:
        with options.user_input():
            machine, earlier = read_rows(old_file)
        if not {key_of(case) for layer in layers for case in layer} & earlier.keys():
            raise options.InputError(
                f"{old_file} must contain one of the rows to measure, got none"
            )

    out = console()
    out.print(benchmark.describe_machine())
    rows: list[Row] = []
    for layer in progress(layers, "measuring"):
        rows += benchmark.measure(
            {case: benchmark.implementations(case) for case in layer}, seconds
        )
    for report in rows_tables(rows, earlier):
        out.print(report)
    for line in summary(rows):
        out.print(line)
    if json_file:
        _write_json(json_file, rows=[asdict(row) for row in rows])
    if plot:
        from .plot import draw  # matplotlib is optional

        draw(plot, rows, *titles(rows))
    if not old_file:
        return 0
    for name, now in benchmark.machine_facts().items():
        if machine.get(name) != now:
            out.print(printable(f"{name}: {machine.get(name)} before, {now} now"))
    changes = [change for row in rows if (change := change_of(row, earlier))]
    slower = sum(change.is_slower for change in changes)
    mean = geometric_mean([change.ratio for change in changes])
    out.print(f"{slower} of {len(changes)} rows slower; new/old time {mean:.2f} (geometric mean)")
    return 1 if slower else 0


def _write_json(path: Path, **results: object) -> None:
    """Write the machine, the versions and the results."""
    path.write_text(
        json.dumps({"version": VERSION, "machine": benchmark.machine_facts(), **results}, indent=1)
    )


# ---- Layers ----


def speedup(row: Row, other: str) -> float:
    """Return another implementation's time over onedsl's, NaN if the other did not run."""
    return row.time(other) / row.time("onedsl")


def rows_tables(rows: Sequence[Row], earlier: Mapping[object, Row]) -> Iterator[Table]:
    """Build a table for each operation, with a gap between networks."""
    titles = (
        "layer\n(N, X, C)", "type,\nformat", "onedsl\nµs", "oneDNN\nµs", "PyTorch\nµs",
        "speedup\nvs.\noneDNN", "speedup\nvs.\nPyTorch", "NCX\n/NXC", "floor\n/time",
        "new/old\ntime",
    )  # fmt: skip
    in_nxc = {
        (row.operation, row.shape, row.dtype): row.time("onedsl")
        for row in rows
        if row.data_format == "NXC"
    }

    def line(row: Row) -> list[str]:
        key = row.operation, row.shape, row.dtype
        change = change_of(row, earlier)
        nxc = in_nxc.get(key, math.nan) if row.data_format == "NCX" else math.nan
        return [
            row.layer,
            f"{row.dtype:<4} {row.data_format}{' *' if row.noisy else ''}",
            *(microseconds(row.time(name)) for name in ("onedsl", *OTHERS)),
            *(ratio(speedup(row, other)) for other in OTHERS),
            ratio(row.time("onedsl") / nxc),
            f"{row.floor_share('onedsl'):.0%}" if row.tensor_bytes >= MIN_BYTES else "",
            f"{change.ratio:.2f}{' slower' if change.is_slower else ''}" if change else "",
        ]

    for operation, section in itertools.groupby(rows, lambda row: row.operation):
        networks = itertools.groupby(section, lambda row: row.workload)
        yield table(
            titles,
            [list(map(line, network)) for _, network in networks],
            f"{operation}: median time per call, and onedsl's speedup over oneDNN and PyTorch",
            "Single calls in random order, on tensors out of cache. Times are of the faster of two "
            "calls: one allocates its results, one writes to given memory. NCX/NXC: onedsl's times "
            "in the two formats. floor: the minimum time of the algorithm at the memory bandwidth "
            "of a triad on tensors of this size."
            + (" new/old: relative to the floors of both runs." if earlier else "")
            + (" *: noisy." if any(row.noisy for row in rows) else ""),
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


def titles(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the title and the subtitle of the picture."""
    gains = []
    for name in OTHERS:
        compared = [row for row in rows if name in row.seconds and not row.noisy]
        if ratios := [speedup(row, name) for row in compared]:
            gains.append(f"{geometric_mean(ratios):.1f} times as fast as {name}")
    layers = ", ".join(dict.fromkeys(row.workload for row in rows))
    subtitle = [f"Layers (N, X, C): {layers}." + (" Geometric means." if gains else "")]
    subtitle += [benchmark.describe_machine(), *_noise(rows)[:1]]
    return f"onedsl: {' and '.join(gains)}".removesuffix(": "), "\n".join(subtitle)


# ---- Training steps ----


def _bench_steps(
    cases: Sequence[steps.Case], batch: int, size: int, processes: int, json_file: Path | None
) -> int:
    """Time training steps, print a table, write the file, and return the exit status."""
    for network, dtype, _ in cases:
        if network == "unet" and size % 16:
            raise options.InputError(f"--size must be a multiple of 16 for unet, got {size}")
        if network not in steps.NETWORKS:
            raise options.InputError(
                f"WHAT must be among {', '.join(steps.NETWORKS)}, got {network!r}"
            )
        if dtype not in steps.DTYPES:
            raise options.InputError(f"--dtype must be f32 or bf16 with --step, got {dtype!r}")
    if importlib.util.find_spec("torch") is None:
        raise click.UsageError("--step needs PyTorch: pip install 'onedsl[torch]'")
    results = [steps.measure(case, batch, size, processes) for case in progress(cases, "measuring")]
    conditions = (
        f"{batch} images of {size} x {size}, {processes} processes of {steps.ROUNDS} steps for each"
        " way"
    )
    sections = [
        [
            (
                " ".join(result.case) if way == steps.EAGER else "",
                way,
                f"{1e3 * result.seconds[way]:.0f}",
                f"{result.speedups[way]:.2f}",
                f"{result.over_compile[way]:.2f}",
                f"{result.page_faults[way]:,.0f}",
            )
            for way in result.seconds
        ]
        for result in results
    ]
    out = console()
    out.print(benchmark.describe_machine())
    out.print(
        table(
            ("network", "way", "ms", "over\neager", "over\ncompile", "page faults\nper step"),
            sections,
            "Time of a training step",
            f"{conditions}. Medians of the processes. over: the speedup over another way.",
            left=2,
        )
    )
    if any(result.noisy for result in results):
        out.print(noise_warning())
    if json_file:
        found = [result._asdict() for result in results]
        _write_json(json_file, conditions=conditions, steps=found)
    return 0
