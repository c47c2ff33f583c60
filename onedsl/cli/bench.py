"""The command ``onedsl bench``."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from .. import bench as benchmark
from ..bench import compare, report
from ..bench.table import console, progress
from ..tensors.dtypes import DTYPES
from .options import (
    COUNT,
    OUTPUT_FILE,
    PICTURE_FILE,
    POSITIVE,
    Parsed,
    as_usage_errors,
    names_option,
    parse_shape,
)

Shapes = tuple[tuple[int, ...], ...]

NETWORKS = ("ResNet-50", "MobileNetV2", "DenseNet-121")

# Parameters that require --step, and parameters that --step excludes.
_STEP_PARAMETERS = ("batch", "size", "rounds")
_LAYER_PARAMETERS = ("what", "operations", "seconds", "old_file", "threshold")

# PyTorch's memory format for each data format.
_MEMORY_FORMATS = {"NCX": "contiguous", "NXC": "channels_last"}


def parse_workload(text: str) -> tuple[str, Shapes]:
    """Parse the name of a preset, its first letters, or a layer's shape with the channels last.

    Returns
    -------
    name : str
        The preset's full name, or the text of the shape.
    shapes : tuple of tuple of int
        The shapes of the layers, with the channels second.
    """
    if text[:1].isdecimal():
        number, *spatial, channels = parse_shape(text)
        if 0 in (number, *spatial, channels):
            raise ValueError(f"must have no size of 0, got {text!r}")
        return text, ((number, channels, *spatial),)
    prefix = _plain(text)
    found = [name for name in benchmark.WORKLOADS if _plain(name).startswith(prefix)]
    if len(found) != 1 or not prefix:
        known = ", ".join(map(_plain, benchmark.WORKLOADS))
        raise ValueError(f"must be one of {known}, or a shape such as 32x56x56x64, got {text!r}")
    return found[0], benchmark.WORKLOADS[found[0]]


def parse_networks(text: str) -> list[str]:
    """Parse comma-separated names of networks. The first letters of a name are enough."""
    chosen = set()
    for word in map(_plain, text.split(",")):
        found = [name for name in NETWORKS if word and _plain(name).startswith(word)]
        if not found:
            raise ValueError(f"must be among {', '.join(map(_plain, NETWORKS))}, got {word!r}")
        chosen.update(found)
    return [name for name in NETWORKS if name in chosen]


def _plain(name: str) -> str:
    """Return a name as the command line spells it: in lower case, without hyphens."""
    return name.lower().replace("-", "")


@click.command(short_help="Compare the speed of onedsl, oneDNN and PyTorch.")
@click.argument("what", nargs=-1, type=Parsed("preset", parse_workload))
@names_option("--operations", benchmark.OPERATIONS, "backward,forward")
@names_option("--dtypes", DTYPES)
@names_option("--formats", benchmark.FORMATS)
@click.option("--seconds", type=POSITIVE, default="1", show_default=True, help="Time per row.")
@click.option("--json", "json_file", type=OUTPUT_FILE, help="Write all figures to a JSON file.")
@click.option("--plot", type=PICTURE_FILE, help="Draw a picture (.png, .pdf or .svg).")
@click.option(
    "--compare",
    "old_file",
    metavar="OLD.json",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with a file that --json wrote. The exit status is 1 if a row is slower.",
)
@click.option(
    "--threshold",
    type=POSITIVE,
    default="1.1",
    show_default=True,
    help="With --compare: a row is slower if its new time exceeds its old time by this factor.",
)
@click.option(
    "--step",
    "networks",
    type=Parsed("networks", parse_networks),
    is_flag=False,
    flag_value=",".join(NETWORKS),
    metavar="[NETWORKS]",
    help="Time whole training steps in PyTorch instead of layers. NETWORKS are comma-separated "
    f"names among {', '.join(map(_plain, NETWORKS))}; the default is all.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 16),
    default=16,
    show_default=True,
    help="With --step: number of images.",
)
@click.option(
    "--size",
    type=click.IntRange(32, 1 << 12),  # the networks halve it five times
    default=224,
    show_default=True,
    help="With --step: height and width of the images in pixels.",
)
@click.option(
    "--rounds",
    type=COUNT,
    default=20,
    show_default=True,
    help="With --step: number of timed steps of each variant.",
)
@click.pass_context
def bench(
    context: click.Context,
    what: Sequence[tuple[str, Shapes]],
    operations: list[str],
    dtypes: list[str],
    formats: list[str],
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
    old_file: Path | None,
    threshold: float,
    networks: list[str] | None,
    batch: int,
    size: int,
    rounds: int,
) -> int:
    """Compare the speed of onedsl, oneDNN and PyTorch on layers of networks.

    WHAT is a preset (resnet50, mobilenetv2, transformer, images, small) or the shape of one layer
    with the channels last, such as 32x56x56x64. The default is all presets. For each layer, the
    command times calls of onedsl, of oneDNN, of PyTorch if it is installed, and of a triad
    (out = a + 2 * b), which measures the machine's memory bandwidth. The calls are interleaved.

    With --step, the command times whole training steps of networks in PyTorch: with PyTorch's own
    kernels, with onedsl.torch.enable(), with enable() and onedsl.torch.fuse(), and with
    torch.compile, without and with fuse(). The dtypes are f32 and bf16, by autocast. The memory
    formats are PyTorch's contiguous (NCX) and channels_last (NXC).
    """
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'onedsl[cli]'")
    if networks is not None:
        if given := _first_given(context, _LAYER_PARAMETERS):
            raise click.UsageError(f"{given} cannot be combined with --step")
        if not _first_given(context, ("dtypes",)):
            dtypes = ["f32", "bf16"]
        return _bench_steps(networks, dtypes, formats, batch, size, rounds, json_file, plot)
    if given := _first_given(context, _STEP_PARAMETERS):
        raise click.UsageError(f"{given} needs --step")
    workloads: Mapping[str, Shapes] = dict(what) if what else benchmark.WORKLOADS
    cases = list(benchmark.cases(workloads, dtypes, formats, operations))
    with as_usage_errors():
        earlier = None if old_file is None else compare.read(old_file)
        if earlier and not any(compare.key_of(case) in earlier.rows for case in cases):
            raise ValueError(f"{old_file} must contain one of the rows to measure, got none")

    out = console()
    out.print(benchmark.describe_machine())
    rows = []
    for case in progress(cases, "measuring"):
        with as_usage_errors():
            calls = benchmark.implementations(case, benchmark.random_problem(case))
            rows += benchmark.measure({case: calls}, seconds)
    for table in report.rows_tables(rows):
        out.print(table)
    for line in report.summary(rows):
        out.print(line)
    if json_file:
        report.write_json(json_file, rows)
    if plot:
        report.draw(plot, rows)
    if earlier is None:
        return 0
    found = compare.changes(rows, earlier)
    out.print(compare.changes_table(found, threshold))
    for line in compare.differences(benchmark.machine_facts(), earlier):
        out.print(line, markup=False)
    out.print(compare.verdict(found, threshold))
    return 1 if any(change.is_slower(threshold) for change in found) else 0


def _first_given(context: click.Context, names: Sequence[str]) -> str:
    """Return the first of the named parameters that the command line sets.

    The result is the option's flag, ``WHAT`` for the argument, or an empty string if the command
    line sets none of the parameters.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is click.core.ParameterSource.COMMANDLINE:
            return parameter.opts[0] if isinstance(parameter, click.Option) else "WHAT"
    return ""


def _bench_steps(
    networks: Sequence[str],
    dtypes: Sequence[str],
    formats: Sequence[str],
    batch: int,
    size: int,
    rounds: int,
    json_file: Path | None,
    plot: Path | None,
) -> int:
    """Time training steps, print a table, write the files, and return the exit status."""
    if "f16" in dtypes:
        raise click.UsageError("--dtypes must be among f32, bf16 with --step, got 'f16'")
    if importlib.util.find_spec("torch") is None:
        raise click.UsageError("--step needs PyTorch: pip install 'onedsl[torch]'")
    from ..bench import steps  # it needs PyTorch

    results = []
    cases = steps.cases(networks, dtypes, [_MEMORY_FORMATS[name] for name in formats])
    for case in progress(cases, "measuring"):
        with as_usage_errors():
            results.append(steps.measure(case, batch, size, rounds))
    conditions = steps.conditions(batch, size)
    out = console()
    out.print(benchmark.describe_machine())
    out.print(steps.results_table(results, conditions))
    if json_file:
        steps.write_json(json_file, results, conditions)
    if plot:
        steps.draw(plot, results, conditions)
    return 0
