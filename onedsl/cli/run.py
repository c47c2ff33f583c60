"""The command ``onedsl run``."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from ..bench.timing import noise_warning, time_calls
from ..graph import Graph, GraphOp, LogicalTensor
from ..graph.check import check_graph
from ..graph.compiled_graph import batch_norm_of
from ..operators.attributes import PARSERS
from ..runtime.errors import OneDNNDefectWarning, UnsupportedError
from ..runtime.text import printable
from ..tensors.arrays import Array, new_array
from ..testing import (
    SUM_TOLERANCES,
    TOLERANCES,
    batch_norm_backward,
    batch_norm_forward_training,
    onednn_sum_error,
    relative_l2,
)
from ..testing.activations import evaluate
from . import options
from .output import console, microseconds, table

MAX_FILE_BYTES = 1 << 20  # a parsed document takes many times as much memory
REPAIR_HINT = "With --repair, the graph is changed to one that oneDNN computes"


@click.command(name="run", short_help="Run, verify and time a graph file.")
@click.argument("graph_file", metavar="GRAPH.json", type=options.EXISTING_FILE)
@click.option(
    "--repair", is_flag=True, help="Change the graph so that oneDNN computes what it documents."
)
@options.seconds(0.5)
def run(graph_file: Path, repair: bool, seconds: float) -> int:
    """Run a graph by oneDNN, verify the results in float64, and time it.

    GRAPH.json is written by `onedsl export`, or with ONEDNN_GRAPH_DUMP by a oneDNN that was built
    with ONEDNN_ENABLE_GRAPH_DUMP. The graph runs as it is, on random inputs. An output passes if
    its relative L2 error is within the tolerance of onedsl.testing.assert_close for oneDNN, times
    the number of ops. The reference computes what oneDNN documents. Where oneDNN is known to
    differ, the difference is printed.

    With `--repair`, the graph is changed as by `onedsl.graph.Graph.repaired`, and the changes are
    printed.

    The exit status is 0 if all outputs pass, 1 if one fails, 3 if oneDNN does not support the graph
    on this CPU or is known to crash on it, and 2 for other errors.
    """
    graph = _read(graph_file)
    out = console()
    src = graph.ops[0].inputs[0]
    out.print(printable(f"{graph_file.name}: {' + '.join(op.kind for op in graph.ops)}, src {src}"))
    try:
        used = graph.repaired() if repair else graph
        for change in used.changes:
            out.print(f"changed: {change}")
        compiled = used.compile()
    except UnsupportedError as error:
        out.print(printable(str(error)))
        if not repair and _can_be_repaired(graph):
            out.print(REPAIR_HINT)
        click.echo("UNSUPPORTED")
        return options.UNSUPPORTED
    for defect in compiled.defects:
        out.print(printable(f"known defect: {defect}"))
    with options.user_input(graph_file):
        inputs: dict[str, Any] = random_inputs(graph.inputs)
        expected = reference(graph, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OneDNNDefectWarning)  # they are printed
        results = compiled(**inputs)
        call = functools.partial(compiled, **inputs, out=results)
        times = time_calls({"": call}, seconds=seconds)
    passed = _show(graph, results, expected, times.seconds[""])
    if compiled.defects and not (passed or repair) and _can_be_repaired(graph):
        out.print(REPAIR_HINT)
    click.echo("PASS" if passed else "FAIL")
    if times.noisy:
        click.echo(noise_warning(), err=True)
    return 0 if passed else 1


def _read(path: Path) -> Graph:
    """Return a file's graph, which is valid."""
    with options.user_input(path), path.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError("graph must have at most 1 MiB: few graphs have that many ops")
        try:
            graph = Graph.from_json(content.decode())
        except UnicodeDecodeError:
            raise ValueError("graph must be a JSON text file, got binary data") from None
        if graph.engine_kind != "cpu":
            raise ValueError(f'engine_kind must be "cpu", got "{graph.engine_kind}"')
        check_graph(graph.ops)
        for index, op in enumerate(graph.ops):
            for name in op.attrs.keys() & PARSERS.keys():
                try:  # the reference needs more than oneDNN: epsilon must be positive
                    PARSERS[name](op.attrs[name])
                except ValueError as error:
                    raise ValueError(f"graph[{index}].attrs.{error}") from None
    return graph


def _can_be_repaired(graph: Graph) -> bool:
    """Return whether oneDNN runs the repaired graph, and another one than this."""
    try:
        repaired = graph.repaired()
        repaired.compile()
    except UnsupportedError:
        return False
    return bool(repaired.changes)


def random_inputs(tensors: Mapping[str, LogicalTensor]) -> dict[str, Array]:
    """Return random inputs for a graph, with the strides of its tensors.

    Tensors are correlated and have a mean, so that no sum cancels. Statistics are positive, because
    a variance may share its tensor with another port.
    """
    rng = np.random.default_rng(0)
    common: dict[tuple[int, ...], Any] = {}
    arrays = {}
    for name, tensor in tensors.items():
        array = arrays[name] = new_array(tensor)
        if array.ndim < 2:
            array[...] = rng.uniform(0.5, 2, array.shape)
            continue
        if array.shape not in common:
            common[array.shape] = rng.standard_normal(array.shape) + 1.5
        array[...] = rng.standard_normal(array.shape) + common[array.shape]
    return arrays


def reference(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[Any]]:
    """Return the outputs of a graph, which must be valid, in float64."""
    values: dict[int, npt.NDArray[Any]] = {
        tensor.id: inputs[name].astype(np.float64) for name, tensor in graph.inputs.items()
    }
    for op in graph.ops:
        results = documented(op, *(values[tensor.id] for tensor in op.inputs))
        values.update(zip((tensor.id for tensor in op.outputs), results, strict=False))
    return {name: values[tensor.id] for name, tensor in graph.outputs.items()}


def documented(op: GraphOp, *inputs: Any) -> Sequence[Any]:
    """Return the outputs of an op by oneDNN's documentation, in float64."""
    names = ("epsilon", "momentum", "data_format")
    attributes: dict[str, Any] = {name: op.attrs[name] for name in names if name in op.attrs}
    least: Any = op.attrs.get("min", 0)
    most: Any = op.attrs.get("max", np.inf)
    slope: Any = op.attrs.get("alpha")
    match op.kind:
        case "BatchNormTrainingBackward":
            used = inputs if len(op.outputs) > 1 else inputs[:4]  # diff_src alone ignores gamma
            return batch_norm_backward(*used, **attributes)
        case "BatchNormForwardTraining":
            return batch_norm_forward_training(*inputs, **attributes)
        case "Add":
            return [inputs[0] + inputs[1]]
        case "Clamp" | "ReLU":
            return [np.clip(inputs[0], least, most)]
        case "ClampBackward" | "ReLUBackward":
            dst, diff_dst = inputs
            return [np.where((least < dst) & (dst < most), diff_dst, 0)]
        case "GELU" | "HardSwish" | "LeakyReLU":
            return evaluate(op.kind.lower().replace("leaky", "leaky_"), inputs[0], slope)[:1]
        case "GELUBackward" | "HardSwishBackward":
            src, diff_dst = inputs
            return [diff_dst * evaluate(op.kind.removesuffix("Backward").lower(), src, None)[1]]
    raise NotImplementedError(f"no reference for {op.kind}")


def _show(
    graph: Graph, results: Mapping[str, Any], expected: Mapping[str, Any], seconds: float
) -> bool:
    """Print a table of the errors and the time, and return whether all outputs pass."""
    lines = []
    op = batch_norm_of(graph.ops)
    shape = op.inputs[0].shape or ()
    num_summed = math.prod(shape) // max(shape[op.data_format.channel_axis], 1)
    for i, (name, tensor) in enumerate(graph.outputs.items()):
        tolerances = TOLERANCES if len(tensor.shape or ()) > 1 else SUM_TOLERANCES
        tolerance = tolerances[tensor.dtype] + onednn_sum_error(num_summed)  # mean / deviation: 1
        tolerance *= len(graph.ops)
        error = relative_l2(results[name], expected[name])
        verdict = "PASS" if error <= tolerance else "FAIL"  # NaN fails
        time = microseconds(seconds) if i == 0 else ""
        lines.append((name, f"{error:.2e}", f"{tolerance:.1e}", verdict, time))
    titles = ("output", "relative L2 error", "tolerance", "result", "time (µs)")
    console().print(table(titles, [lines]))
    return all(line[3] == "PASS" for line in lines)
