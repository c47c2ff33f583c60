"""Graphs compiled and run by oneDNN."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .. import _core
from ..runtime import onednn
from ..runtime.errors import OneDNNDefectWarning, OneDNNError, UnsupportedError
from ..runtime.run_log import RunRecord, publish
from ..runtime.text import printable
from ..runtime.versions import onednn_version
from ..tensors import messages
from ..tensors.arrays import AnyArray, Array, as_numpy, new_array
from ..tensors.dtypes import short_name
from ._defects import check_supported, wrong_results
from ._parts import KINDS, GraphOp, LogicalTensor, Partition
from .check import DUMP_ATTRIBUTES, check_graph

if TYPE_CHECKING:
    from ._graph import Graph

P = ParamSpec("P")
T = TypeVar("T")


def compile_graph(
    graph: Graph,
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    num_threads: int,
    *,
    try_anyway: bool = False,
) -> tuple[onednn.CompiledGraph, tuple[Partition, ...]]:
    """Compile a valid graph for calls that pass these tensors, or raise UnsupportedError."""
    check_supported(graph.ops, try_anyway)
    sides = tensors_to_core(inputs), tensors_to_core(outputs)
    compiled = _compile(ops_to_core(graph.ops), *sides, graph.constants, num_threads)
    partitions = _partitions(graph.ops, compiled.partitions())
    written = {tensor.id for partition in partitions for tensor in partition.outputs}
    if inner := [tensor.id for tensor in outputs if tensor.id not in written]:
        raise UnsupportedError(
            f"oneDNN does not write the outputs {inner}, because it computes them and the ops that "
            "read them together. Remove them from the outputs",
            "unimplemented",
        )
    return compiled, partitions


def divide_graph(ops: Sequence[GraphOp]) -> tuple[Partition, ...]:
    """Return the partitions of a graph, or raise UnsupportedError."""
    check_graph(ops)
    return _partitions(ops, _divide(ops_to_core(ops)))


def ops_to_core(ops: Sequence[GraphOp]) -> tuple[onednn.Node, ...]:
    """Return valid ops as the tuples of the core."""
    return tuple(
        (
            op.id,
            op.name,
            op.kind,
            tuple(
                (name, value if isinstance(value, bool | str) else float(value))  # type: ignore[arg-type]
                for name, value in op.attrs.items()
                if name not in DUMP_ATTRIBUTES
            ),
            tensors_to_core(op.inputs),
            tensors_to_core(op.outputs),
        )
        for op in ops
    )


def tensors_to_core(tensors: Sequence[LogicalTensor]) -> tuple[onednn.TensorTuple, ...]:
    """Return tensors as the tuples of the core, which are their fields."""
    return tuple(map(dataclasses.astuple, tensors))


def _partitions(
    ops: Sequence[GraphOp], partitions: Sequence[onednn.PartitionTuple]
) -> tuple[Partition, ...]:
    """Return the core's partitions of a graph with these ops."""
    kinds = {op.id: op.kind for op in ops}
    return tuple(
        Partition(
            number,
            " + ".join(kinds[i] for i in op_ids),
            tuple(op_ids),
            supported,
            tuple(LogicalTensor(*fields) for fields in inputs),  # type: ignore[arg-type]
            tuple(LogicalTensor(*fields) for fields in outputs),  # type: ignore[arg-type]
        )
        for number, op_ids, supported, inputs, outputs in partitions
    )


def keep_outcomes(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to keep its latest results, and each UnsupportedError.

    oneDNN leaks memory for each graph that it rejects. Other errors are not kept: a later call may
    have the memory.
    """

    @functools.lru_cache(maxsize=256)  # oneDNN holds some 90 KiB for each graph
    def kept(*args: Any, **kwargs: Any) -> T | UnsupportedError:
        try:
            return function(*args, **kwargs)
        except UnsupportedError as error:
            return UnsupportedError(str(error), error.status)  # without its traceback

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        result = kept(*args, **kwargs)  # type: ignore[arg-type]
        if isinstance(result, UnsupportedError):
            raise UnsupportedError(str(result), result.status)
        return result

    call.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
    return call


@keep_outcomes
def _compile(
    nodes: tuple[onednn.Node, ...],
    inputs: tuple[onednn.TensorTuple, ...],
    outputs: tuple[onednn.TensorTuple, ...],
    constants: tuple[tuple[int, float], ...],
    num_threads: int,
) -> onednn.CompiledGraph:
    onednn.make_engine()  # without an engine, raise instead of rejecting the graph
    with _refusals():
        return onednn.compile_graph(nodes, inputs, outputs, dict(constants), num_threads)


@keep_outcomes
def _divide(nodes: tuple[onednn.Node, ...]) -> list[onednn.PartitionTuple]:
    with _refusals():
        return onednn.graph_partitions(nodes)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OneDNNError as error:
        if error.status == "out_of_memory":
            raise
        raise UnsupportedError(str(error), error.status) from None


def batch_norm_of(ops: Sequence[GraphOp]) -> GraphOp:
    """Return the first batch norm of a valid graph, or its first op if it has none."""
    return next((op for op in ops if KINDS[op.kind].is_batch_norm), ops[0])


def run_record(
    operation: str, graph: Graph, given: Sequence[str], computed: Sequence[str], num_threads: int
) -> RunRecord:
    """Return the log record of a run of a compiled graph, without its time."""
    kinds = " + ".join(op.kind for op in graph.ops)
    norm = batch_norm_of((graph.requested or graph).ops)
    shape = norm.inputs[0].shape or ()
    axis = norm.data_format.channel_axis % len(shape)
    by_shape = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    written = "" if graph.requested else ", as written"
    return RunRecord(
        operation or kinds,
        norm.inputs[0].dtype,
        norm.geometry or by_shape,
        tuple(given),
        tuple(computed),
        f"oneDNN {onednn_version()} {kinds}, {onednn.cpu_isa()}{written}",
        num_threads,
        0.0,
    )


class CompiledGraph:
    """A graph that oneDNN compiled. `Graph.compile` returns it.

    It is pickled as its graph, which is compiled again.

    Attributes
    ----------
    graph : Graph
    partitions : tuple of Partition
        The partitions with their tensors as compiled, in the order in which they run.
    defects : tuple of str
        Known differences between the results and oneDNN's documentation. If there are any, a call
        warns with OneDNNDefectWarning.
    """

    def __init__(self, graph: Graph, *, try_anyway: bool = False) -> None:
        for each in filter(None, (graph, graph.requested)):
            check_graph(each.ops)  # its ports follow from valid ops only
        self.graph, self._try_anyway = graph, try_anyway
        self._inputs, self._outputs = graph.inputs, graph.outputs
        sides = list(self._inputs.values()), list(self._outputs.values())
        self._core, self.partitions = compile_graph(
            graph, *sides, _core.max_threads(), try_anyway=try_anyway
        )
        self.defects = wrong_results(graph.ops)
        self._in_place = _in_place_inputs(graph)
        self._record = run_record(
            "", graph, tuple(self._inputs), [*self._outputs], self.num_threads
        )

    @property
    def num_threads(self) -> int:
        """Number of OpenMP threads of the latest call, at most as many as at compilation.

        A call for which OpenMP has fewer (in a forked child, one), or more again, compiles the
        graph again.
        """
        return self._core.num_threads

    def __call__(
        self, *arrays: object, out: Mapping[str, AnyArray] | None = None, **inputs: AnyArray
    ) -> dict[str, Any]:
        """Run the graph on the caller's memory.

        Parameters
        ----------
        out : mapping of str to array, optional
            Arrays for outputs, by port name. New arrays are made for the others. In a graph of one
            op, diff_src may be diff_dst itself, and dst may be src.
        **inputs : array
            The inputs by port name. Shapes, dtypes and strides must be those of `Graph.inputs`.

        Returns
        -------
        dict of str to array
            The outputs by port name. New arrays have the array type of the first input.

        Raises
        ------
        TypeError, ValueError
            If an array is missing, unknown, read-only or not as the graph's tensor, or if an output
            overlaps another array. Nothing was written.
        OneDNNError
            If oneDNN fails.

        Warns
        -----
        OneDNNDefectWarning
            If `defects` has entries.
        """
        if arrays:
            names = ", ".join(f"{name}=..." for name in self._inputs)
            raise TypeError(
                f"the graph's inputs must be passed by name ({names}), got {len(arrays)} without"
            )
        if not isinstance(out, Mapping | None):
            got = type(out).__name__
            raise TypeError(f"out must be a mapping of port names to arrays, got {got}")
        given = dict(out or {})
        _check_names("the graph's inputs", inputs, self._inputs, missing=True)
        _check_names("out", given, self._outputs, missing=False)
        passed = [as_numpy(name, inputs[name]) for name in self._inputs]
        first = inputs[next(iter(self._inputs))]
        results = {
            name: given[name] if name in given else new_array(tensor, first)
            for name, tensor in self._outputs.items()
        }
        passed += [
            as_numpy(f"out[{name!r}]", array, is_output=True) for name, array in results.items()
        ]
        for defect in self.defects:
            warnings.warn(defect, OneDNNDefectWarning, stacklevel=2)
        begin = time.perf_counter()
        result = self._core.run(tuple(passed), self._in_place)
        seconds = time.perf_counter() - begin
        if isinstance(result, tuple):
            raise self._error(passed, *result)
        _core.mark_written(list(given.values()))  # first, because a handler of the log may raise
        publish(self._record, seconds=seconds, num_threads=result)
        return {
            name: array if name in given else _core.export_array(array, first)
            for name, array in results.items()
        }

    def _error(self, arrays: Sequence[Array], reason: str, index: int, other: int) -> Exception:
        """Return the exception for a call that the core rejects."""
        names = [*self._inputs, *(f"out[{name!r}]" for name in self._outputs)]
        tensors = [*self._inputs.values(), *self._outputs.values()]
        array, tensor, in_place = arrays[index], tensors[index], self._in_place[index]
        match reason:
            case "like_type":
                text = messages.dtype(tensor.dtype, "the graph", short_name(array.dtype))
            case "like_shape":
                text = messages.shape(tensor.shape or (), "the graph", array.shape)
            case "layout":
                item = array.itemsize or 1
                strides = tuple(s / item if s % item else s // item for s in array.strides)
                expected = f"must have strides {tensor.strides} (in elements) as in the graph"
                text = f"{expected}, got {strides}"
            case "not_aligned":
                text = messages.aligned(array)
            case "read_only":
                text = messages.READ_ONLY
            case _:
                text = messages.separate(
                    names[other], None if in_place is None else names[in_place]
                )
        return messages.error(reason, f"{names[index]} {text}")

    def __reduce__(self) -> Any:
        return functools.partial(type(self), try_anyway=self._try_anyway), (self.graph,)

    def __repr__(self) -> str:
        parts = "; ".join(map(str, self.partitions))
        return f"<onedsl.graph.CompiledGraph: {parts}, {self.num_threads} threads>"


def _in_place_inputs(graph: Graph) -> tuple[int | None, ...]:
    """Return for each input and output the index of the input whose memory it may use, or None."""
    inputs, ops = list(graph.inputs), (graph.requested or graph).ops
    ports = KINDS[ops[0].kind].ports.outputs if len(ops) == 1 else ()  # others may read it later
    found = {port.name: inputs.index(port.in_place) for port in ports if port.in_place in inputs}
    return (*(None for _ in inputs), *map(found.get, graph.outputs))


def _check_names(
    owner: str, given: Mapping[str, Any], tensors: Mapping[str, LogicalTensor], *, missing: bool
) -> None:
    names = ", ".join(tensors)
    for name in given:
        if name not in tensors:
            raise TypeError(f"{owner} must be among {names}, got {printable(str(name))}")
    if missing and (absent := [name for name in tensors if name not in given]):
        raise TypeError(f"{owner} must be {names}; {', '.join(absent)} missing")
