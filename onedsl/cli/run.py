"""The command ``onedsl run``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import numpy.typing as npt

from ..graph import Graph
from ..operators._single_op_graph import CallInfo, parse_graph
from ..operators.batch_norm_training_backward import (
    BatchNormGradients,
    BatchNormTrainingBackward,
)
from ..runtime.capabilities import capabilities
from ..runtime.errors import UnsupportedError
from ..runtime.timing import NoiseMonitor, median_seconds
from ..tensors.dtypes import DTYPES, Backend
from ..testing import (
    SUM_TOLERANCES,
    TOLERANCES,
    batch_norm_backward,
    random_problem,
    relative_l2,
)
from .options import POSITIVE, as_usage_errors
from .output import console, microseconds, table

Array = npt.NDArray[Any]
Inputs = tuple[Array, Array, Array, Array, Array | None]
"""src, diff_dst, mean, variance and gamma."""

BACKENDS: dict[str, tuple[Backend, ...]] = {
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
    help="With both, oneDNN is skipped if it does not support the graph.",
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
def run(
    graph_file: Path,
    backend: str,
    seed: int,
    seconds: float,
) -> int:
    """Run a graph of one op, verify the results in float64, and time it.

    GRAPH.json is a graph of one BatchNormTrainingBackward op, written by oneDNN with
    ONEDNN_GRAPH_DUMP or by `onedsl export`. The inputs are those of onedsl.testing.random_problem.
    An output passes if its relative L2 error is within the tolerance. oneDNN sums in f32, so its
    tolerance of f32 results grows with the number of elements per channel.
    """
    with as_usage_errors():
        problem = parse_graph(_read(graph_file))
        if problem.shape is None:
            raise ValueError("graph[0].inputs[0].shape (src) must be known")
        op = BatchNormTrainingBackward(problem.epsilon, problem.data_format)
        inputs = random_inputs(problem, seed)
        outputs: Literal["all", "diff_src"] = "all" if len(problem.outputs) > 1 else "diff_src"
        results: dict[str, BatchNormGradients] = {}
        calls: dict[str, Callable[[], Any]] = {}
        unsupported: dict[str, str] = {}
        for name in BACKENDS[backend]:
            call = functools.partial(
                op, *inputs, outputs=outputs, backend=name
            )  # fmt: skip
            try:
                results[name] = call()
            except UnsupportedError as error:
                if backend != "both":
                    raise
                unsupported[name] = str(error)
                continue
            calls[name] = functools.partial(call, out=results[name])
        reference = batch_norm_backward(
            *inputs, epsilon=problem.epsilon, data_format=problem.data_format
        )
        errors = {
            (backend, name): relative_l2(got, getattr(reference, name))
            for backend, result in results.items()
            for name, got in result._asdict().items()
            if got is not None
        }
        monitor = NoiseMonitor()
        times = median_seconds(calls, seconds=seconds)
    status = _show(graph_file, problem, errors, times, unsupported)
    if warning := monitor.warning(capabilities().num_threads):
        click.echo(warning, err=True)
    return status


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
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def random_inputs(problem: CallInfo, seed: int) -> Inputs:
    """Return random inputs with the shapes, dtypes and strides of a graph.

    gamma is None if the graph has no gamma, or if diff_src is the op's only output, in which case
    oneDNN ignores gamma.
    """
    inputs = random_problem(
        problem.shape or (),
        DTYPES[problem.dtype],
        DTYPES[problem.stats_dtype],
        data_format=problem.data_format,
        seed=seed,
    )
    uses_gamma = "gamma" in problem.inputs and len(problem.outputs) > 1
    return (
        with_strides(inputs.src, problem.inputs["src"].strides),
        with_strides(inputs.diff_dst, problem.inputs["diff_dst"].strides),
        inputs.mean,
        inputs.variance,
        inputs.gamma if uses_gamma else None,
    )


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
    dtype = problem.dtype if output == "diff_src" else problem.stats_dtype
    allowed = (TOLERANCES if output == "diff_src" else SUM_TOLERANCES)[dtype]
    if backend == "native":
        return allowed
    shape = problem.shape or ()
    count = math.prod(shape) // max(shape[problem.data_format.channel_axis], 1)
    return allowed + 2e-8 * math.sqrt(count)


def _show(
    path: Path,
    problem: CallInfo,
    errors: dict[tuple[str, str], float],
    times: dict[str, float],
    unsupported: dict[str, str],
) -> int:
    """Print the results and return the exit status.

    `unsupported` contains oneDNN's error message for each backend that does not support the graph.
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
    out.print(table(titles, sections))
    for backend, reason in unsupported.items():
        out.print(f"{backend} does not support this graph: {reason}", markup=False)
    passed = all(line.passed for line in lines)
    out.print("PASS" if passed else "FAIL")
    return 0 if passed else 1
