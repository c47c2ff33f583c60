"""``onedsl bench``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from .. import bench as benchmark
from ..bench import arguments, compare, report
from ..bench.table import console, progress
from ..tensors.dtypes import DTYPES
from .options import SECONDS, Checked, Command, as_usage_errors, shape

Shapes = tuple[tuple[int, ...], ...]

# What training steps have beside WHAT of the layers, and what they have not.
NETWORKS = ("ResNet-50", "MobileNetV2", "DenseNet-121")
_OF_STEPS = ("batch", "size", "rounds")
_OF_LAYERS = ("what", "operations", "seconds", "old_file", "threshold")
_MEMORIES = {"NCX": "contiguous", "NXC": "channels_last"}  # PyTorch's words
_LEAST_SIZE = 32  # pixels: the networks halve it five times


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


def networks(text: str) -> list[str]:
    """Take names of networks, or their beginnings, with commas between."""
    chosen = set()
    for word in map(_plain, text.split(",")):
        found = [name for name in NETWORKS if word and _plain(name).startswith(word)]
        if not found:
            raise ValueError(f"no network {word!r}; there are {', '.join(map(_plain, NETWORKS))}")
        chosen.update(found)
    return [name for name in NETWORKS if name in chosen]


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
@click.option(
    "--step",
    "of_networks",
    type=Checked("networks", networks),
    is_flag=False,
    flag_value=",".join(NETWORKS),
    metavar="[NETWORKS]",
    help="Whole training steps by PyTorch instead, of all networks or of those named: "
    f"{', '.join(map(_plain, NETWORKS))}.",
)
@click.option(
    "--batch",
    type=Checked("count", arguments.count),
    default="16",
    show_default=True,
    help="With --step: images.",
)
@click.option(
    "--size",
    type=Checked("count", arguments.count),
    default="224",
    show_default=True,
    help="With --step: pixels of an image's side.",
)
@click.option(
    "--rounds",
    type=Checked("count", arguments.count),
    default="20",
    show_default=True,
    help="With --step: steps of each way.",
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
    of_networks: list[str] | None,
    batch: int,
    size: int,
    rounds: int,
) -> int:
    """Compare onedsl, oneDNN and PyTorch on layers of networks.

    WHAT is a preset (resnet50, mobilenetv2, transformer, images, small), or a layer's shape with
    the channels last, as 32x56x56x64; without it, all presets. Times onedsl's kernels, oneDNN's,
    PyTorch where it is installed, and the machine's own memory rate (a triad), in turns.

    With --step: whole training steps of networks, by PyTorch, by PyTorch under
    onedsl.torch.enable(), and after onedsl.torch.fuse() as well, in turns; f32, and bf16 by
    autocast, contiguous (NCX) and channels_last (NXC).
    """
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'onedsl[cli]'")
    refused = _given(context, _OF_STEPS if of_networks is None else _OF_LAYERS)
    if of_networks is None and refused:
        raise click.UsageError(f"{refused} goes with --step")
    if of_networks is not None:
        if refused:
            raise click.UsageError(f"--step does not go with {refused}")
        if not _given(context, ("dtypes",)):
            dtypes = ["f32", "bf16"]
        return _steps(of_networks, dtypes, formats, batch, size, rounds, json_file, plot)
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
    if before is None:
        return 0
    found = compare.changes(rows, before)
    out.print(compare.changes_table(found, threshold))
    for line in compare.differences(report.machine_facts(), before):
        out.print(line, markup=False)
    out.print(compare.verdict(found, threshold))
    return 1 if any(change.is_slower(threshold) for change in found) else 0


def _given(context: click.Context, names: Sequence[str]) -> str:
    """Name the first of some parameters that the user has given; empty if there is none."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is click.core.ParameterSource.COMMANDLINE:
            return parameter.opts[0] if isinstance(parameter, click.Option) else "WHAT"
    return ""


def _steps(
    of_networks: Sequence[str],
    dtypes: Sequence[str],
    formats: Sequence[str],
    batch: int,
    size: int,
    rounds: int,
    json_file: Path | None,
    plot: Path | None,
) -> int:
    if "f16" in dtypes:
        raise click.UsageError("--step has the types f32 and bf16: networks are not trained in f16")
    if size < _LEAST_SIZE:
        raise click.UsageError(f"--size must be at least {_LEAST_SIZE}, not {size}")
    if importlib.util.find_spec("torch") is None:
        raise click.UsageError("--step needs PyTorch: pip install 'onedsl[torch]'")
    from ..bench import steps, steps_report  # they need PyTorch

    cases = steps.cases(of_networks, dtypes, [_MEMORIES[word] for word in formats])
    results = []
    for case in progress(cases, "measuring"):
        with as_usage_errors():
            results.append(steps.measure(case, batch, size, rounds))
    conditions = steps.conditions(batch, size)
    out = console()
    out.print(benchmark.machine())
    out.print(steps_report.results_table(results, conditions))
    if json_file:
        steps_report.write_json(json_file, results, conditions)
    if plot:
        steps_report.draw(plot, results, conditions)
    return 0
