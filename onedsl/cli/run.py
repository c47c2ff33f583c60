"""The command ``onedsl run``."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .. import _core
from ..graph import Graph
from ..operators._single_op_graph import CallInfo, parse_graph
from ..operators.batch_norm_training_backward import BatchNormGradients, BatchNormTrainingBackward
from ..runtime.errors import OneDNNDefectWarning, UnsupportedError
from ..runtime.timing import NoiseMonitor, median_seconds, noise_warning
from ..tensors.arrays import new_array
from ..tensors.dtypes import DTYPES
from ..tensors.spec import TensorSpec
from ..testing import batch_norm_backward, random_problem
from ..testing._compare import compared
from . import options
from .output import console, microseconds, table

Arrays = dict[str, Any]

AS_WRITTEN = "as-written"
BACKENDS = {
    "both": ("native", "onednn"),
    "native": ("native",),
    "onednn": ("onednn",),
    AS_WRITTEN: (AS_WRITTEN,),
}

MAX_FILE_BYTES = 1 << 20  # a parsed document takes many times as much memory
UNSUPPORTED = 3
"""Exit status of a command if oneDNN does not support the call on this CPU."""


@click.command(name="run", short_help="Run, verify and time a graph file.")
@click.argument("graph_file", metavar="GRAPH.json", type=options.EXISTING_FILE)
@options.choice("--backend", "backend", tuple(BACKENDS), "What computes the gradient.")
@options.seconds(0.5)
def run(graph_file: Path, backend: str, seconds: float) -> int:
    """Run a graph of one op, verify the results in float64, and time it.

    GRAPH.json is a graph of one BatchNormTrainingBackward op, written by oneDNN with
    ONEDNN_GRAPH_DUMP or by `onedsl export`. The inputs are those of onedsl.testing.random_problem.
    An output passes if its relative L2 error is within the tolerance of
    onedsl.testing.assert_close, which is larger for oneDNN.

    onedsl changes some graphs so that oneDNN computes the gradient, and prints the changes. With
    `--backend as-written`, oneDNN runs the graph as it is.

    The exit status is 0 if all outputs pass, 1 if one fails, and 3 if none fails but oneDNN does
    not support the graph on this CPU.
    """
    graph = _read(graph_file)
    call = parse_graph(graph)
    if call.shape is None:
        raise ValueError("graph[0].inputs[0] (src) must have a known shape")
    inputs = random_inputs(call)
    results: dict[str, BatchNormGradients] = {}
    calls: dict[str, Callable[[], Any]] = {}
    notes: list[str] = []
    unsupported = False
    monitor = NoiseMonitor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OneDNNDefectWarning)  # the notes contain the defects
        for name in BACKENDS[backend]:
            try:
                function = _function(name, graph, call, inputs, notes)
                result = function()
                results[name] = BatchNormGradients(**result) if isinstance(result, dict) else result
                calls[name] = functools.partial(function, out=result)
            except UnsupportedError as error:
                unsupported = True
                notes.append(f"{name}: {error}")
        times = median_seconds(calls, seconds=seconds) if calls else {}
    reference = batch_norm_backward(
        **_given(call, inputs), epsilon=call.epsilon, data_format=call.data_format
    )
    passed = _show(graph_file, call, results, times, reference)
    for note in notes:
        console().print(note, markup=False)
    status = (UNSUPPORTED if unsupported else 0) if passed else 1
    click.echo({0: "PASS", 1: "FAIL", UNSUPPORTED: "UNSUPPORTED"}[status])
    if calls and monitor.is_noisy(_core.max_threads()):
        click.echo(noise_warning(), err=True)
    return status


def _function(
    backend: Any, graph: Graph, call: CallInfo, inputs: Arrays, notes: list[str]
) -> Callable[..., Any]:
    """Return a function of ``out`` that computes the outputs. Append what differs to the notes."""
    if backend == AS_WRITTEN:
        compiled = graph.compile()
        notes += [f"{backend}: {defect}" for defect in compiled.defects]
        return functools.partial(compiled, **inputs)
    op = BatchNormTrainingBackward(call.epsilon, call.data_format)
    outputs: Any = "all" if call.all_outputs else "diff_src"
    if backend == "onednn" and inputs["src"].size:
        changes: tuple[str, ...] = ()
        try:
            spec = TensorSpec.of(inputs["src"])
        except ValueError:
            spec = TensorSpec(inputs["src"].shape, inputs["src"].dtype)
            changes = ("copied to memory without gaps",)
        types: Any = {"stats_dtype": call.stats_dtype}
        plan = op.compile(spec, **types, gamma="gamma" in inputs, outputs=outputs, backend="onednn")
        if changes := changes + plan.graph.changes:
            text = "; ".join(changes)
            notes.append(f"onednn: changed by onedsl: {text}. as-written changes nothing")
    return functools.partial(op, **_given(call, inputs), outputs=outputs, backend=backend)


def _read(path: Path) -> Graph:
    """Parse a graph file. Error messages begin with the path."""
    with path.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    try:
        if len(content) > MAX_FILE_BYTES:
            raise ValueError("must have at most 1 MiB: a graph of one op has a few kilobytes")
        return Graph.from_json(content.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be a JSON text file, got binary data") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def random_inputs(call: CallInfo) -> Arrays:
    """Return random inputs with the names, shapes, dtypes and strides of a graph's."""
    types: Any = DTYPES[call.dtype], DTYPES[call.stats_dtype]
    problem = random_problem(call.shape or (), *types, data_format=call.data_format)
    arrays = {n: array for n, array in problem._asdict().items() if n in call.inputs}
    for name, array in arrays.items():
        if call.inputs[name].strides is not None:
            arrays[name] = new_array(call.inputs[name])
            arrays[name][...] = array
    return arrays


def _given(call: CallInfo, inputs: Arrays) -> Arrays:
    """Return the inputs without a gamma that is ignored because only diff_src is computed."""
    return {n: array for n, array in inputs.items() if call.all_outputs or n != "gamma"}


def _show(
    path: Path,
    call: CallInfo,
    results: dict[str, BatchNormGradients],
    times: dict[str, float],
    reference: BatchNormGradients,
) -> bool:
    """Print a table of the errors and times, and return whether all outputs pass."""
    shape = "x".join(map(str, call.shape or ()))
    out = console()
    out.print(
        f"{path.name}: BatchNormTrainingBackward, src {call.dtype} {shape} {call.data_format}, "
        f"statistics {call.stats_dtype}, epsilon {call.epsilon:g}",
        markup=False,
    )
    sections = []
    for name, result in results.items():
        lines = []
        for output, _, error, native, onednn in compared(result, reference):
            tolerance = native if name == "native" else onednn
            verdict = "PASS" if error <= tolerance else "FAIL"  # NaN fails
            time = microseconds(times[name]) if output == "diff_src" else ""
            lines.append((name, output, f"{error:.2e}", f"{tolerance:.1e}", verdict, time))
        sections.append(lines)
    titles = ("backend", "output", "relative L2 error", "tolerance", "result", "time (µs)")
    if sections:
        out.print(table(titles, sections))
    return all(line[4] == "PASS" for section in sections for line in section)
