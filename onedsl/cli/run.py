"""The command ``onedsl run``."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from click.core import ParameterSource

from ..graph import CompiledGraph, Graph
from ..operators._single_op_graph import CallInfo, parse_graph
from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..runtime.capabilities import capabilities
from ..runtime.errors import OneDNNDefectWarning, UnsupportedError
from ..runtime.timing import NoiseMonitor, median_seconds
from ..tensors.dtypes import DTYPES
from ..tensors.spec import TensorSpec
from ..testing import batch_norm_backward, random_problem, relative_l2
from ..testing._compare import tolerance_of
from .options import POSITIVE, UNSUPPORTED, as_usage_errors
from .output import console, microseconds, table

Array = npt.NDArray[Any]
Results = dict[str, Array]

REQUIRED = ("src", "diff_dst", "mean", "variance")
AS_WRITTEN = "as written"
BACKENDS: dict[str, tuple[str, ...]] = {
    "native": ("native",),
    "onednn": ("onednn",),
    "both": ("native", "onednn"),
}

MAX_FILE_BYTES = 1 << 20  # a parsed document takes many times as much memory


@dataclass(frozen=True)
class Line:
    """A line of the table, for one output of one backend.

    Attributes
    ----------
    backend, output : str
    error, tolerance : float
        Relative L2 errors.
    time : str
        Median time of a call in microseconds, or empty except in each backend's first line.
    """

    backend: str
    output: str
    error: float
    tolerance: float
    time: str

    @property
    def passed(self) -> bool:
        """Whether the error is at most the tolerance. An error of NaN does not pass."""
        return self.error <= self.tolerance


@click.command(name="run", short_help="Run, verify and time a graph file.")
@click.argument(
    "graph_file", metavar="GRAPH.json", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default="both",
    show_default=True,
    help="onedsl's kernels, oneDNN with the changes that it needs, or both.",
)
@click.option(
    "--as-written",
    is_flag=True,
    help="Run the file's own graph by oneDNN, without changes. Excludes --backend.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random inputs.",
)
@click.option(
    "--seconds", type=POSITIVE, default="0.5", show_default=True, help="Time spent on timing."
)
@click.pass_context
def run(
    context: click.Context,
    graph_file: Path,
    backend: str,
    as_written: bool,
    seed: int,
    seconds: float,
) -> int:
    """Run a graph of one op, verify the results in float64, and time it.

    GRAPH.json is a graph of one BatchNormTrainingBackward op, written by oneDNN with
    ONEDNN_GRAPH_DUMP or by `onedsl export`. The inputs are those of onedsl.testing.random_problem.
    An output passes if its relative L2 error is within the tolerance of
    onedsl.testing.assert_close, which is larger for oneDNN.

    onedsl changes some graphs so that oneDNN computes the gradient, and prints the changes. With
    --as-written, oneDNN runs the graph as it is.

    The exit status is 0 if all outputs pass, 1 if one fails, and 3 if none fails but oneDNN does
    not support the graph on this CPU.
    """
    if as_written and context.get_parameter_source("backend") != ParameterSource.DEFAULT:
        raise click.UsageError("--as-written runs oneDNN only: it excludes --backend")
    with as_usage_errors():
        graph = _read(graph_file)
        problem = parse_graph(graph)
        if problem.shape is None:
            raise ValueError("graph[0].inputs[0] (src) must have a known shape")
        inputs = random_inputs(problem, seed)
        results: dict[str, Results] = {}
        calls: dict[str, Callable[[], Any]] = {}
        notes: list[str] = []
        unsupported = False
        for name in (AS_WRITTEN,) if as_written else BACKENDS[backend]:
            try:
                if name == AS_WRITTEN:
                    compiled = graph.compile()
                    notes += [f"{name}: {defect}" for defect in compiled.defects]
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", OneDNNDefectWarning)
                        results[name] = compiled(out=None, **inputs)
                    calls[name] = functools.partial(_quietly, compiled, inputs, results[name])
                else:
                    results[name], calls[name] = _call_of(name, problem, inputs)
                    if name == "onednn":
                        notes += _changes(problem, inputs)
            except UnsupportedError as error:
                unsupported = True
                notes.append(f"{name}: {error}")
        src, diff_dst, mean, variance = (inputs[name] for name in REQUIRED)
        reference = batch_norm_backward(
            src,
            diff_dst,
            mean,
            variance,
            inputs.get("gamma") if len(problem.outputs) > 1 else None,
            epsilon=problem.epsilon,
            data_format=problem.data_format,
        )
        errors = {
            (name, output): relative_l2(array, getattr(reference, output))
            for name, arrays in results.items()
            for output, array in arrays.items()
        }
        monitor = NoiseMonitor()
        times = median_seconds(calls, seconds=seconds) if calls else {}
    status = _show(graph_file, problem, errors, times, notes, unsupported)
    if calls and (warning := monitor.warning(capabilities().num_threads)):
        click.echo(warning, err=True)
    return status


def _call_of(
    backend: Any, problem: CallInfo, inputs: dict[str, Array]
) -> tuple[Results, Callable[[], Any]]:
    """Return the results of a call of the operator, and a function that repeats it."""
    all_outputs = len(problem.outputs) > 1
    op: Any = BatchNormTrainingBackward(problem.epsilon, problem.data_format)
    call = functools.partial(
        op,
        *(inputs[name] for name in REQUIRED),
        inputs.get("gamma") if all_outputs else None,
        outputs="all" if all_outputs else "diff_src",
        backend=backend,
    )
    out = call()
    results = {name: array for name, array in out._asdict().items() if array is not None}
    return results, functools.partial(call, out=out)


def _quietly(compiled: CompiledGraph, inputs: dict[str, Array], out: Results) -> None:
    """Run a graph as written, without the warning that was shown before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OneDNNDefectWarning)
        compiled(out=out, **inputs)


def _changes(problem: CallInfo, inputs: dict[str, Array]) -> list[str]:
    """Return a line that lists what onedsl changed in the graph for oneDNN, if it did."""
    shape, strides = problem.shape or (), problem.inputs["src"].strides
    changes: tuple[str, ...] = ()
    try:
        spec = TensorSpec(shape, DTYPES[problem.dtype], strides)
    except ValueError:
        spec = TensorSpec(shape, DTYPES[problem.dtype])
        changes = ("copied to memory without gaps",)
    if 0 in shape:
        changes = ("not run, since src is empty",)
    else:
        changes += (
            BatchNormTrainingBackward(problem.epsilon, problem.data_format)
            .compile(
                spec,
                stats_dtype=DTYPES[problem.stats_dtype],
                gamma="gamma" in inputs,
                outputs="all" if len(problem.outputs) > 1 else "diff_src",
                backend="onednn",
            )
            .graph.changes
        )
    if not changes:
        return []
    return [f"onednn: changed by onedsl: {'; '.join(changes)}. --as-written changes nothing"]


def _read(path: Path) -> Graph:
    """Parse a graph file. Error messages begin with the path."""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(
            f"{path} must have at most {MAX_FILE_BYTES >> 20} MiB: a graph of one op has a few "
            "kilobytes"
        )
    try:
        return Graph.from_json(content.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be a JSON text file, got binary data") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def random_inputs(problem: CallInfo, seed: int) -> dict[str, Array]:
    """Return random inputs with the names, shapes, dtypes and strides of a graph's."""
    inputs = random_problem(
        problem.shape or (),
        DTYPES[problem.dtype],
        DTYPES[problem.stats_dtype],
        data_format=problem.data_format,
        seed=seed,
    )
    return {
        name: with_strides(array, problem.inputs[name].strides)
        for name, array in inputs._asdict().items()
        if name in problem.inputs
    }


def with_strides(array: Array, strides: tuple[int, ...] | None) -> Array:
    """Return a copy of an array with the given strides, which count elements."""
    if strides is None or not array.size:
        return array
    # The stride of an axis of size 1 is arbitrary, and may overflow when it is converted to bytes.
    steps = [step if n > 1 else 0 for n, step in zip(array.shape, strides, strict=True)]
    extent = 1 + sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True))
    result = np.lib.stride_tricks.as_strided(
        np.zeros(extent, array.dtype), array.shape, [step * array.itemsize for step in steps]
    )
    result[...] = array
    return result


def tolerance(problem: CallInfo, backend: str, output: str) -> float:
    """Return the maximum relative L2 error of a backend's output."""
    is_tensor = output == "diff_src"
    shape = problem.shape or ()
    count = math.prod(shape) // max(shape[problem.data_format.channel_axis], 1)
    dtype = problem.dtype if is_tensor else problem.stats_dtype
    return tolerance_of(dtype, is_tensor, "native" if backend == "native" else "onednn", count)


def _show(
    path: Path,
    problem: CallInfo,
    errors: dict[tuple[str, str], float],
    times: dict[str, float],
    notes: list[str],
    unsupported: bool,
) -> int:
    """Print the results and the notes, and return the exit status.

    `unsupported` is whether oneDNN was to run and does not support the graph.
    """
    shape = "x".join(map(str, problem.shape or ()))
    out = console()
    out.print(
        f"{path.name}: BatchNormTrainingBackward, src {problem.dtype} {shape} "
        f"{problem.data_format}, statistics {problem.stats_dtype}, epsilon {problem.epsilon:g}",
        markup=False,
    )
    lines = [
        Line(
            backend,
            output,
            error,
            tolerance(problem, backend, output),
            microseconds(times[backend]) if output == "diff_src" else "",
        )
        for (backend, output), error in errors.items()
    ]
    sections = [
        [
            (
                line.backend,
                line.output,
                f"{line.error:.2e}",
                f"{line.tolerance:.1e}",
                "PASS" if line.passed else "FAIL",
                line.time,
            )
            for line in lines
            if line.backend == name
        ]
        for name in times
    ]
    titles = ("backend", "output", "relative L2 error", "tolerance", "result", "time (µs)")
    if lines:
        out.print(table(titles, sections))
    for note in notes:
        out.print(note, markup=False)
    if not all(line.passed for line in lines):
        out.print("FAIL")
        return 1
    out.print("UNSUPPORTED" if unsupported else "PASS")
    return UNSUPPORTED if unsupported else 0
