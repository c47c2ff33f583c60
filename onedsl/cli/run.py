"""The command ``onedsl run``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from ..bench.table import Column, console, microseconds, table
from ..graph import Graph
from ..operators._single_op_graph import CallInfo, parse_graph
from ..operators.batch_norm_training_backward import (
    BatchNormGradients,
    BatchNormTrainingBackward,
)
from ..runtime.errors import UnsupportedError
from ..runtime.timing import median_seconds
from ..tensors.dtypes import Backend
from ..testing import SUM_TOLERANCES, TOLERANCES, batch_norm_backward
from . import overrides
from .fill import Inputs, blocks, filled
from .options import POSITIVE, as_usage_errors

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
@click.option("--in-shapes", metavar="ID:SHAPE*TAG+...", help="Change inputs, as in benchdnn.")
@click.option("--dt", metavar="DT or ID:DT+...", help="Change types, as in benchdnn.")
@click.option(
    "--op-attrs", metavar="ID:NAME:VALUE*...+...", help="Change attributes, as in benchdnn."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of diff_dst."
)
@click.option(
    "--seconds", type=POSITIVE, default="0.5", show_default=True, help="Time spent on timing."
)
def run(
    graph_file: Path,
    backend: str,
    in_shapes: str | None,
    dt: str | None,
    op_attrs: str | None,
    seed: int,
    seconds: float,
) -> int:
    """Run a graph of one op, verify the results in float64, and time it.

    GRAPH.json is a graph of one BatchNormTrainingBackward op, written by oneDNN with
    ONEDNN_GRAPH_DUMP, by `onedsl export`, or for oneDNN's benchdnn. Inputs are filled as in
    benchdnn. An output passes if its relative L2 error is within the tolerance.
    """
    with as_usage_errors():
        graph = _overridden(_read(graph_file), in_shapes, dt, op_attrs)
        problem = parse_graph(graph)
        if problem.shape is None:
            raise ValueError("graph[0].inputs[0].shape (src) must be known. Set --in-shapes")
        op = BatchNormTrainingBackward(problem.epsilon, problem.data_format)
        inputs = filled(problem, seed)
        outputs: Literal["all", "diff_src"] = "all" if len(problem.outputs) > 1 else "diff_src"
        results: dict[str, BatchNormGradients] = {}
        calls: dict[str, Callable[[], Any]] = {}
        unsupported: dict[str, str] = {}
        for name in BACKENDS[backend]:
            call = functools.partial(
                op, inputs.src, inputs.diff_dst, inputs.mean, inputs.variance, inputs.gamma,
                outputs=outputs, backend=name,
            )  # fmt: skip
            try:
                results[name] = call()
            except UnsupportedError as error:
                if backend != "both":
                    raise
                unsupported[name] = str(error)
                continue
            calls[name] = functools.partial(call, out=results[name])
        errors = relative_errors(problem, inputs, results)
        times = median_seconds(calls, seconds=seconds)
    return _show(graph_file, problem, errors, times, unsupported)


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


def _overridden(graph: Graph, in_shapes: str | None, dt: str | None, op_attrs: str | None) -> Graph:
    """Return the graph with the changes of the command line's options."""
    for change, text in (
        (overrides.op_attrs, op_attrs),
        (overrides.in_shapes, in_shapes),
        (overrides.dt, dt),
    ):
        if text:
            graph = change(graph, text)
    return graph


def relative_errors(
    problem: CallInfo, inputs: Inputs, results: dict[str, BatchNormGradients]
) -> dict[tuple[str, str], float]:
    """Return the relative L2 error of each output of each backend. The keys are (backend, output).

    To save memory, the float64 reference is computed for one block of channels at a time. The error
    of an output that contains NaN is NaN.
    """
    axis = problem.data_format.channel_axis
    squares = {
        (backend, name): [0.0, 0.0]
        for backend, result in results.items()
        for name, got in result._asdict().items()
        if got is not None
    }
    for part in blocks(inputs.src, axis):
        tensors = (slice(None),) * (axis % inputs.src.ndim) + (part,)
        expected = batch_norm_backward(
            inputs.src[tensors],
            inputs.diff_dst[tensors],
            inputs.mean[part],
            inputs.variance[part],
            None if inputs.gamma is None else inputs.gamma[part],
            epsilon=problem.epsilon,
            data_format=problem.data_format,
        )
        for backend, result in results.items():
            for name, got, reference in zip(result._fields, result, expected, strict=True):
                if got is None:
                    continue
                computed = got[tensors if name == "diff_src" else part].astype(np.float64)
                sums = squares[backend, name]
                sums[0] += float(((computed - reference) ** 2).sum())
                sums[1] += float((reference**2).sum())
    return {key: _relative(error, norm) for key, (error, norm) in squares.items()}


def _relative(error: float, norm: float) -> float:
    """Return the relative L2 error, from the squared L2 norms of the error and the reference."""
    if norm == 0:
        return 0.0 if error == 0 else float("nan") if np.isnan(error) else float("inf")
    return float(np.sqrt(error / norm))


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
            TOLERANCES[problem.dtype]
            if output == "diff_src"
            else SUM_TOLERANCES[problem.stats_dtype],
            microseconds(times[backend]) if output == "diff_src" else "",
        )
        for (backend, output), error in errors.items()
    ]
    columns: tuple[Column[Line], ...] = (
        Column("backend", lambda line: line.backend),
        Column("output", lambda line: line.output),
        Column("relative L2 error", lambda line: f"{line.error:.2e}"),
        Column("tolerance", lambda line: f"{line.tolerance:.1e}"),
        Column("result", lambda line: "PASS" if line.passed else "FAIL"),
        Column("time (µs)", lambda line: line.time),
    )
    by_backend = [[line for line in lines if line.backend == name] for name in times]
    out.print(table("", "", columns, by_backend))
    for backend, reason in unsupported.items():
        out.print(f"{backend} does not support this graph: {reason}", markup=False)
    passed = all(line.passed for line in lines)
    out.print("PASS" if passed else "FAIL")
    return 0 if passed else 1
