"""The command ``onedsl run``."""

from __future__ import annotations

import functools
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from .. import _core
from ..graph import Graph, LogicalTensor
from ..graph._check import check_op, port_error, ports_of
from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..runtime.errors import OneDNNDefectWarning, UnsupportedError
from ..runtime.text import printable
from ..runtime.timing import NoiseMonitor, noise_warning, samples_of
from ..tensors.arrays import new_array
from ..tensors.dtypes import DTYPES, STATISTICS
from ..tensors.spec import TensorSpec
from ..testing import batch_norm_backward, random_problem
from ..testing._compare import compared
from . import options
from .output import console, microseconds, table

Arrays = dict[str, Any]

AS_WRITTEN = "as-written"
BACKENDS = ("native", "onednn")

MAX_FILE_BYTES = 1 << 20  # a parsed document takes many times as much memory
UNSUPPORTED = 3
"""Exit status of a command if oneDNN does not support the call on this CPU."""


@click.command(name="run", short_help="Run, verify and time a graph file.")
@click.argument("graph_file", metavar="GRAPH.json", type=options.EXISTING_FILE)
@options.choice("--backend", "backend", ("both", *BACKENDS), "What computes the gradient.")
@click.option("--as-written", is_flag=True, help="Let oneDNN run the graph of the file as it is.")
@options.seconds(0.5)
def run(graph_file: Path, backend: str, as_written: bool, seconds: float) -> int:
    """Run a graph of one op, verify the results in float64, and time it.

    GRAPH.json is a graph of one BatchNormTrainingBackward op, written by oneDNN with
    ONEDNN_GRAPH_DUMP or by `onedsl export`. The inputs are those of onedsl.testing.random_problem.
    An output passes if its relative L2 error is within the tolerance of
    onedsl.testing.assert_close, which is larger for oneDNN.

    onedsl changes some graphs so that oneDNN computes the gradient, and prints the changes. With
    `--as-written`, oneDNN runs the graph of the file.

    The exit status is 0 if all outputs pass, 1 if one fails, and 3 if none fails but oneDNN does
    not support the graph on this CPU.
    """
    if as_written and backend != "both":
        raise click.UsageError("--as-written cannot be combined with --backend")
    graph, call, inputs = _read(graph_file)
    results: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {}
    notes: list[str] = []
    unsupported = False
    names = (AS_WRITTEN,) if as_written else BACKENDS if backend == "both" else (backend,)
    monitor = NoiseMonitor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OneDNNDefectWarning)  # the notes contain the defects
        for name in names:
            try:
                function = _function(name, graph, call, inputs, notes)
                results[name] = function()
                calls[name] = functools.partial(function, out=results[name])
            except UnsupportedError as error:
                unsupported = True
                notes.append(f"{name}: {error}")
        samples = samples_of(calls, seconds=seconds) if calls else {}
    times = {name: statistics.median(rounds) for name, rounds in samples.items()}
    reference = batch_norm_backward(
        **_given(call, inputs), epsilon=call.op.epsilon, data_format=call.op.data_format
    )
    passed = _show(graph_file, call, results, times, reference)
    for note in notes:
        console().print(printable(note))
    status = (UNSUPPORTED if unsupported else 0) if passed else 1
    click.echo({0: "PASS", 1: "FAIL", UNSUPPORTED: "UNSUPPORTED"}[status])
    if calls and monitor.is_noisy(_core.max_threads()):
        click.echo(noise_warning(), err=True)
    return status


def _function(
    backend: Any, graph: Graph, call: Call, inputs: Arrays, notes: list[str]
) -> Callable[..., Any]:
    """Return a function of ``out`` that computes the outputs. Append what differs to the notes."""
    if backend == AS_WRITTEN:
        compiled = graph.compile()
        notes += [f"{backend}: {defect}" for defect in compiled.defects]
        return functools.partial(compiled, **inputs)
    outputs: Any = "all" if call.all_outputs else "diff_src"
    if backend == "onednn" and inputs["src"].size:
        src = inputs["src"]
        changes = () if _core.is_dense(src) else ("copied to memory without gaps",)
        requested = call.op.graph(
            TensorSpec.of(np.empty_like(src)),
            stats_dtype=inputs["mean"].dtype,
            gamma="gamma" in inputs,
            outputs=outputs,
        )
        if text := "; ".join((*changes, *requested.repaired().changes)):
            notes.append(f"onednn: changed by onedsl: {text}. --as-written changes nothing")
    return functools.partial(call.op, **_given(call, inputs), outputs=outputs, backend=backend)


def _read(path: Path) -> tuple[Graph, Call, Arrays]:
    """Return a file's graph, its call and random inputs."""
    with path.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise options.InputError(
            f"{path} must have at most 1 MiB: a graph of one op has a few kilobytes"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise options.InputError(f"{path} must be a JSON text file, got binary data") from None
    with options.user_input(path):
        graph = Graph.from_json(text)
        call = parse_graph(graph)
        return graph, call, random_inputs(call)


class Call(NamedTuple):
    """A call of the operator, read from a graph."""

    op: BatchNormTrainingBackward
    inputs: dict[str, LogicalTensor]
    all_outputs: bool  # or only diff_src


def parse_graph(graph: Graph) -> Call:
    """Return the call that a graph of one op describes.

    Another graph is a ValueError with the path of the invalid member, such as
    ``graph[0].inputs[2] (mean)``.
    """
    if graph.engine_kind != "cpu":
        raise ValueError(f'engine_kind must be "cpu", got "{graph.engine_kind}"')
    for i, other in enumerate(graph.ops):
        if other.kind != "BatchNormTrainingBackward":
            kind = "BatchNormTrainingBackward"
            raise ValueError(f'graph[{i}].kind must be "{kind}", got "{other.kind}"')
    if len(graph.ops) != 1:
        raise ValueError(f"graph must have one op, got {len(graph.ops)}")
    (op,) = graph.ops
    check_op(0, op)
    if len(op.outputs) == 2:
        raise ValueError("graph[0].outputs must be 1 (diff_src) or 3 tensors, got 2")
    attributes: dict[str, Any] = {"data_format": "NXC", **op.attrs}
    try:
        own = BatchNormTrainingBackward(attributes["epsilon"], attributes["data_format"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"graph[0].attrs: {error}") from None
    data, statistics = op.inputs[0].dtype, op.inputs[2].dtype
    for place, port, tensor in ports_of(0, op):
        dtype, like = (data, "src") if port.kind == "tensor" else (statistics, "mean")
        if tensor.dtype != dtype:
            raise port_error(place, port.name, f"have dtype {dtype} like {like}", tensor.dtype)
    if statistics not in STATISTICS[data]:
        expected = f"have dtype {' or '.join(STATISTICS[data])} where src is {data}"
        raise port_error("graph[0].inputs[2]", "mean", expected, statistics)
    inputs = {name: tensor for side, name, tensor in op.ports if side == "in"}
    return Call(own, inputs, len(op.outputs) == 3)


def random_inputs(call: Call) -> Arrays:
    """Return random inputs with the names, shapes, dtypes and strides of a graph's."""
    src, mean = call.inputs["src"], call.inputs["mean"]
    if src.shape is None:
        raise ValueError("graph[0].inputs[0] (src) must have a known shape")
    types = DTYPES[src.dtype], DTYPES[mean.dtype]
    problem = random_problem(src.shape, *types, data_format=call.op.data_format)
    arrays = {n: array for n, array in problem._asdict().items() if n in call.inputs}
    for name, array in arrays.items():
        if call.inputs[name].strides is not None:
            arrays[name] = new_array(call.inputs[name])
            arrays[name][...] = array
    return arrays


def _given(call: Call, inputs: Arrays) -> Arrays:
    """Return the inputs without a gamma that is ignored because only diff_src is computed."""
    return {n: array for n, array in inputs.items() if call.all_outputs or n != "gamma"}


def _show(
    path: Path,
    call: Call,
    results: dict[str, Any],
    times: dict[str, float],
    reference: tuple[Any, ...],
) -> bool:
    """Print a table of the errors and times, and return whether all outputs pass."""
    out = console()
    tensors = f"src {call.inputs['src']}, statistics {call.inputs['mean'].dtype}"
    out.print(printable(f"{path.name}: {call.op!r}, {tensors}"))
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
