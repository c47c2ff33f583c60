"""The command ``onedsl bench``."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from .. import bench as benchmark
from ..bench import Row, compare, geometric_mean
from ..bench.cases import Shape
from ..runtime.timing import noise_warning
from ..tensors.dtypes import DTYPES
from .options import (
    EXISTING_FILE,
    OUTPUT_FILE,
    PICTURE_FILE,
    POSITIVE,
    as_usage_errors,
    names_option,
    parse_shape,
    parsed,
)
from .output import console, microseconds, progress, ratio, table

NETWORKS = ("ResNet-18", "ResNet-50", "MobileNetV2", "DenseNet-121")
OTHERS = ("oneDNN", "PyTorch")

# Parameters that require --step, and parameters that --step excludes.
_STEP_PARAMETERS = ("batch", "size", "rounds", "processes")
_LAYER_PARAMETERS = ("what", "operations", "seconds", "plot", "old_file")

# The summary leaves out smaller tensors, where the overhead of a call dominates.
MIN_BYTES = 1 << 20


def parse_workload(text: str) -> tuple[str, Sequence[Shape]]:
    """Return name and shapes of a preset, given by its first letters, or of a layer's shape."""
    if text[:1].isdecimal():
        shape = parse_shape(text)
        if 0 in shape:
            raise ValueError(f"must have no size of 0, got {text!r}")
        return text, (shape,)
    found = _beginning_with(text, benchmark.WORKLOADS)
    if len(found) != 1:
        known = ", ".join(map(_plain, benchmark.WORKLOADS))
        raise ValueError(f"must be one of {known}, or a shape such as 32x56x56x64, got {text!r}")
    return found[0], benchmark.WORKLOADS[found[0]]


def parse_networks(text: str) -> list[str]:
    """Return the networks that comma-separated first letters select."""
    chosen: set[str] = set()
    for word in text.split(","):
        found = _beginning_with(word, NETWORKS)
        if not found:
            raise ValueError(f"must be among {', '.join(map(_plain, NETWORKS))}, got {word!r}")
        chosen.update(found)
    return [name for name in NETWORKS if name in chosen]


def _beginning_with(text: str, names: Sequence[str] | Mapping[str, object]) -> list[str]:
    prefix = _plain(text)
    return [name for name in names if prefix and _plain(name).startswith(prefix)]


def _plain(name: str) -> str:
    """Return a name as the command line spells it: in lower case, without hyphens."""
    return name.lower().replace("-", "")


def _number(flag: str, default: int, least: int, text: str) -> Callable[[Any], Any]:
    number = click.IntRange(least, 1 << 12)
    help_text = f"With --step: {text}."
    return click.option(flag, type=number, default=default, show_default=True, help=help_text)


@click.command(short_help="Compare the speed of onedsl, oneDNN and PyTorch.")
@click.argument("what", nargs=-1, type=parsed("preset", parse_workload))
@names_option("--operations", benchmark.OPERATIONS, "backward,forward")
@names_option("--dtypes", DTYPES)
@names_option("--formats", benchmark.FORMATS)
@click.option("--seconds", type=POSITIVE, default="2", show_default=True, help="Time per layer.")
@click.option("--json", "json_file", type=OUTPUT_FILE, help="Write all figures to a JSON file.")
@click.option("--plot", type=PICTURE_FILE, help="Draw a picture (.png, .pdf or .svg).")
@click.option(
    "--compare",
    "old_file",
    metavar="OLD.json",
    type=EXISTING_FILE,
    help="Compare with a file that --json wrote. The exit status is 1 if a row is slower.",
)
@click.option(
    "--step",
    "networks",
    type=parsed("networks", parse_networks),
    is_flag=False,
    flag_value=",".join(NETWORKS),
    metavar="[NETWORKS]",
    help="Time whole training steps in PyTorch instead of layers. NETWORKS are comma-separated "
    f"names among {', '.join(map(_plain, NETWORKS))}; the default is all.",
)
@_number("--batch", 16, 1, "images")
@_number("--size", 224, 32, "height and width of the images in pixels")  # halved five times
@_number("--rounds", 5, 1, "timed steps of a process")
@_number("--processes", 5, 1, "processes for each way to train")
@click.pass_context
def bench(
    context: click.Context,
    what: Sequence[tuple[str, Sequence[Shape]]],
    operations: list[str],
    dtypes: list[str],
    formats: list[str],
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
    old_file: Path | None,
    networks: list[str] | None,
    batch: int,
    size: int,
    rounds: int,
    processes: int,
) -> int:
    """Compare the speed of onedsl, oneDNN and PyTorch on layers of networks.

    WHAT is a preset (resnet50, mobilenetv2, transformer, images, small) or the shape of one layer
    with the channels last, such as 32x56x56x64. The default is all presets. For each layer, the
    command times calls of onedsl, of oneDNN, of PyTorch if it is installed, and of a triad
    (out = a + 2 * b), which measures the machine's memory bandwidth. The calls in all formats of a
    layer are interleaved.

    With --step, the command times whole training steps of networks in PyTorch: eager, with
    onedsl.torch.enable(), with torch.compile, and with torch.compile(backend="onedsl"). Each way
    runs in processes of its own, which alternate. The dtypes are f32 and bf16, by autocast. NCX is
    PyTorch's contiguous memory format, NXC its channels_last.
    """
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'onedsl[cli]'")
    if networks is not None:
        if given := _first_given(context, _LAYER_PARAMETERS):
            raise click.UsageError(f"{given} cannot be combined with --step")
        if not _first_given(context, ("dtypes",)):
            dtypes = ["f32", "bf16"]
        cases = list(itertools.product(networks, dtypes, formats))
        return _bench_steps(cases, (batch, size, rounds), processes, json_file)
    if given := _first_given(context, _STEP_PARAMETERS):
        raise click.UsageError(f"{given} needs --step")
    workloads = dict(what) if what else benchmark.WORKLOADS
    layers = list(benchmark.layers(workloads, dtypes, formats, operations))
    earlier: dict[object, Row] = {}
    if old_file:
        with as_usage_errors():
            machine, earlier = compare.read(old_file)
            if not {compare.key_of(case) for layer in layers for case in layer} & earlier.keys():
                raise ValueError(f"{old_file} must contain one of the rows to measure, got none")

    out = console()
    out.print(benchmark.describe_machine())
    rows: list[Row] = []
    for layer in progress(layers, "measuring"):
        with as_usage_errors():
            calls = {case: benchmark.implementations(case) for case in layer}
            rows += benchmark.measure(calls, seconds)
    for report in rows_tables(rows, earlier):
        out.print(report)
    for line in summary(rows):
        out.print(line)
    if json_file:
        _write_json(json_file, rows=[asdict(row) for row in rows])
    if plot:
        _plot(plot, rows)
    if not old_file:
        return 0
    for name, now in benchmark.machine_facts().items():
        if machine.get(name) != now:
            out.print(f"{name}: {machine.get(name)} before, {now} now", markup=False)
    changes = [change for row in rows if (change := compare.change(row, earlier))]
    slower = sum(change.is_slower for change in changes)
    mean = geometric_mean([change.ratio for change in changes])
    out.print(f"{slower} of {len(changes)} rows slower; new/old time {mean:.2f} (geometric mean)")
    return 1 if slower else 0


def _first_given(context: click.Context, names: Sequence[str]) -> str:
    """Return the first of the named parameters that the command line sets, or nothing."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is click.core.ParameterSource.COMMANDLINE:
            return parameter.opts[0] if isinstance(parameter, click.Option) else "WHAT"
    return ""


def _write_json(path: Path, **results: object) -> None:
    """Write the machine, the versions and the results."""
    path.write_text(json.dumps({"machine": benchmark.machine_facts(), **results}, indent=1))


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
        change = compare.change(row, earlier)
        nxc = in_nxc.get(key, math.nan) if row.data_format == "NCX" else math.nan
        return [
            row.layer,
            f"{row.dtype:<4} {row.data_format}",
            *(microseconds(row.time(name)) for name in ("onedsl", *OTHERS)),
            *(ratio(speedup(row, other)) for other in OTHERS),
            ratio(row.time("onedsl") / nxc),
            f"{row.floor_share('onedsl'):.0%}",
            f"{change.ratio:.2f}{' slower' if change.is_slower else ''}" if change else "",
        ]

    for operation, section in itertools.groupby(rows, lambda row: row.operation):
        networks = itertools.groupby(section, lambda row: row.workload)
        yield table(
            titles,
            [list(map(line, network)) for _, network in networks],
            f"{operation}: median time per call, and onedsl's speedup over oneDNN and PyTorch",
            "Times are of the faster of two calls: one allocates its results, one writes to given "
            "memory. NCX/NXC: onedsl's times in the two formats. floor: the minimum time of the "
            "algorithm at the memory bandwidth of a triad on tensors of this size."
            + (" new/old: relative to the triads of both runs." if earlier else ""),
        )


def summary(rows: Sequence[Row]) -> list[str]:
    """Return mean and lowest ratios of each operation, and a warning about noisy rows."""
    lines = []
    for operation, group in itertools.groupby(rows, lambda row: row.operation):
        section = list(group)
        figures = {
            f"speedup over {name}": (
                ".2f",
                [(speedup(r, name), str(r)) for r in section if name in r.seconds],
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
    return [f"{noisy} of {len(rows)} rows are noisy.", noise_warning()] if noisy else []


def _plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw all rows."""
    from .plot import draw  # matplotlib is optional

    gains = []
    for name in OTHERS:
        if ratios := [speedup(row, name) for row in rows if name in row.seconds]:
            gains.append(f"{geometric_mean(ratios):.1f} times as fast as {name}")
    title = " and ".join(gains)
    layers = ", ".join(dict.fromkeys(row.workload for row in rows))
    subtitle = [f"Layers (N, X, C): {layers}. Geometric mean of all rows."]
    subtitle += [benchmark.describe_machine(), *_noise(rows)[:1]]
    draw(path, rows, f"onedsl: {title}" if title else "onedsl", "\n".join(subtitle))


# ---- Training steps ----


def _bench_steps(
    cases: Sequence[tuple[str, str, str]],
    workload: tuple[int, int, int],
    processes: int,
    json_file: Path | None,
) -> int:
    """Time training steps, print a table, write the file, and return the exit status."""
    if any(dtype == "f16" for _, dtype, _ in cases):
        raise click.UsageError("--dtypes must be among f32, bf16 with --step, got 'f16'")
    if importlib.util.find_spec("torch") is None:
        raise click.UsageError("--step needs PyTorch: pip install 'onedsl[torch]'")
    from ..bench import steps

    results = []
    for case in progress(cases, "measuring"):
        with as_usage_errors():
            results.append(steps.measure(case, *workload, processes))
    batch, size, rounds = workload
    conditions = (
        f"{batch} images of {size} x {size}, {processes} processes of {rounds} steps for each way"
    )
    out = console()
    out.print(benchmark.describe_machine())
    sections = [
        [
            (
                " ".join(result.case) if way == steps.EAGER else "",
                way,
                f"{1e3 * result.seconds[way]:.0f}",
                f"{result.speedups[way]:.2f}",
                f"{result.page_faults[way]:,.0f}",
            )
            for way in result.seconds
        ]
        for result in results
    ]
    out.print(
        table(
            ("network", "way", "ms", "speedup", "page faults\nper step"),
            sections,
            "Time of a training step",
            f"{conditions}. Medians of the processes; speedup: eager's time over the way's.",
            left=2,
        )
    )
    if any(result.noisy for result in results):
        out.print(noise_warning())
    if json_file:
        found = [result._asdict() for result in results]
        _write_json(json_file, conditions=conditions, steps=found)
    return 0
