"""Graphs of one op, compiled and run by oneDNN as they are."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from ..runtime.capabilities import onednn_version
from ..runtime.errors import OneDNNDefectWarning, OneDNNError, UnsupportedError
from ..runtime.run_log import RunRecord, log
from ..tensors.arrays import AnyArray, Array, check_like, may_overlap, new_array, same_memory
from ._check import check_graph
from ._convert import ops_to_core, partitions_from_core
from ._parts import GraphOp, LogicalTensor

_GRADIENT = "BatchNormTrainingBackward"
_IN_PLACE = {_GRADIENT: ("diff_src", "diff_dst"), "BatchNormForwardTraining": ("dst", "src")}
"""For each kind that can be compiled: the output that may be the memory of an input."""

_MAX_ELEMENTS = 2**31 - 1


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Convert oneDNN's errors about a graph to UnsupportedError, with its message and status."""
    try:
        yield
    except OneDNNError as error:
        if error.status == "out_of_memory" or isinstance(error, UnsupportedError):
            raise
        raise UnsupportedError(str(error), error.status) from error


_refused: dict[str, tuple[str, str]] = {}
"""Message and status of graphs that oneDNN refused: it leaks 6 KiB for each attempt."""
_MAX_REFUSED = 1024


def _compile(nodes: Sequence[_core.Node]) -> _core.CompiledGraph:
    key = repr(nodes)
    if key not in _refused:
        try:
            with refusals():
                return _core.CompiledGraph(nodes)
        except UnsupportedError as error:
            if len(_refused) == _MAX_REFUSED:
                _refused.clear()
            _refused[key] = str(error), error.status
    raise UnsupportedError(*_refused[key])


class CompiledGraph:
    """A graph of one op that oneDNN compiled as it is. `Graph.compile` returns it.

    Attributes
    ----------
    partition : Partition
        The partition with its tensors as compiled.
    num_threads : int
        Number of OpenMP threads of every call, except in a forked child, which runs one.
    defects : tuple of str
        Known differences between the results and oneDNN's documentation. If there are any, a call
        warns with OneDNNDefectWarning.
    """

    def __init__(self, ops: Sequence[GraphOp]) -> None:
        if len(ops) != 1 or ops[0].kind not in _IN_PLACE:
            raise ValueError(
                f"graph must be one op of the kind {' or '.join(_IN_PLACE)} to be compiled, got "
                f"{', '.join(op.kind for op in ops) or 'none'}"
            )
        check_graph(ops)
        _check_limits(ops[0])
        self._core = _compile(ops_to_core(ops))
        (op,) = ops
        (self.partition,) = partitions_from_core(ops, self._core.partitions)
        self.num_threads = self._core.num_threads
        self.defects = _defects(op)
        self._kind = op.kind
        self._inputs = {name: tensor for side, name, tensor in op.ports if side == "in"}
        self._outputs = {name: tensor for side, name, tensor in op.ports if side == "out"}
        self._record = RunRecord(
            op.kind,
            op.inputs[0].dtype,
            _geometry(op),
            tuple(self._inputs),
            tuple(self._outputs),
            "onednn",
            f"oneDNN {onednn_version()}, as written",
            self.num_threads,
            0.0,
        )

    def __call__(
        self, *, out: Mapping[str, AnyArray] | None = None, **inputs: AnyArray
    ) -> dict[str, Any]:
        """Run the graph on the caller's memory.

        Parameters
        ----------
        out : mapping of str to array, optional
            Arrays for outputs, by port name. New arrays are made for the others. diff_src may be
            diff_dst itself, and dst may be src.
        **inputs : array
            The inputs by port name. Shapes, dtypes and strides must be those of the graph's
            tensors.

        Returns
        -------
        dict of str to array
            All outputs of the graph by port name. New arrays have the array type of the first
            input.

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
        if not isinstance(out, Mapping | None):
            got = type(out).__name__
            raise TypeError(f"out must be a mapping of port names to arrays, got {got}")
        given = dict(out or {})
        _check_names("the graph's inputs", inputs, self._inputs, missing=True)
        _check_names("out", given, self._outputs, missing=False)
        arrays = {
            name: check_like(name, inputs[name], tensor, "as in the graph")
            for name, tensor in self._inputs.items()
        }
        buffers = {
            name: check_like(f"out[{name!r}]", given[name], tensor, "as in the graph")
            if name in given
            else new_array(tensor)
            for name, tensor in self._outputs.items()
        }
        self._check_memory(arrays, {name: buffers[name] for name in given})
        for defect in self.defects:
            warnings.warn(defect, OneDNNDefectWarning, stacklevel=2)
        begin = time.perf_counter()
        if not self._core.run(tuple(arrays.values()), tuple(buffers.values())):
            raise RuntimeError("onedsl's core rejected valid arguments; please report this bug")
        log(self._record, seconds=time.perf_counter() - begin)
        _core.mark_written(list(given.values()))
        first = inputs[next(iter(self._inputs))]
        return {
            name: given[name] if name in given else _core.export_array(buffer, first)
            for name, buffer in buffers.items()
        }

    def _check_memory(self, inputs: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Raise ValueError if an output is read-only or shares memory with another array."""
        others = dict(inputs)
        for name, array in out.items():
            if not array.flags.writeable:
                raise ValueError(f"out[{name!r}] must be writable, got a read-only array")
            for other, memory in others.items():
                in_place = (name, other) == _IN_PLACE[self._kind] and same_memory(array, memory)
                if not in_place and may_overlap(array, memory):
                    raise ValueError(f"out[{name!r}] must not overlap {other}")
            others[f"out[{name!r}]"] = array

    def __repr__(self) -> str:
        return f"<onedsl.graph.CompiledGraph: {self.partition}, {self.num_threads} threads>"


def _geometry(op: GraphOp) -> tuple[int, int, int]:
    """Return the outer size, the channels and the inner size of src."""
    shape = op.inputs[0].shape or ()
    axis = 1 if op.attrs.get("data_format", "NXC") == "NCX" else len(shape) - 1
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _check_limits(op: GraphOp) -> None:
    """Raise UnsupportedError for graphs that must not reach oneDNN's compiler."""
    version = onednn_version()
    shape = op.inputs[0].shape or ()
    reason = ""
    if any(map(_is_far, (*op.inputs, *op.outputs))):
        reason = "onedsl does not pass tensors of 2^31 elements or more to oneDNN"
    elif op.kind == _GRADIENT and len(shape) < 4 and op.attrs.get("data_format", "NXC") == "NXC":
        reason = (
            f"oneDNN {version} fails with std::bad_alloc, which ends a C++ program, for {op.kind} "
            f"in NXC with fewer than 4 dimensions, got shape {shape}. Reshape to 4 dimensions, for "
            'example (N, 1, X, C), or call the operator with backend="onednn", which does so'
        )
    elif op.kind == _GRADIENT and len(op.inputs) == 4 and len(op.outputs) == 3:
        reason = (
            f"oneDNN {version} fails with std::out_of_range, which ends a C++ program, for "
            f"{op.kind} with three outputs and no gamma. Pass gamma = 1, or call the operator with "
            'backend="onednn", which does so'
        )
    if reason:
        raise UnsupportedError(reason, "unimplemented")


def _is_far(tensor: LogicalTensor) -> bool:
    """Return whether a tensor spans 2^31 elements or more."""
    steps = zip(tensor.shape or (), tensor.strides or (), strict=True)
    return sum((size - 1) * stride for size, stride in steps if size > 1) >= _MAX_ELEMENTS


def _defects(op: GraphOp) -> tuple[str, ...]:
    """Return the known differences between oneDNN's results for an op and its documentation."""
    defects = []
    if op.kind == _GRADIENT and len(op.outputs) == 1:
        defects.append(
            "oneDNN computes diff_src = diff_dst / sqrt(variance + epsilon), as if mean and "
            "variance were constants, because diff_src is the only output. Its documentation says "
            "only that gamma is ignored. Request all three outputs for the gradient"
        )
    is_empty = 0 in (op.inputs[0].shape or ())
    if is_empty and op.kind == _GRADIENT and _core.onednn_version() >= (3, 3):
        defects.append("oneDNN leaves diff_gamma and diff_beta unwritten if src is empty")
    if is_empty and op.kind != _GRADIENT:
        defects.append("oneDNN leaves batch_variance unwritten if src is empty, and uses it")
    return tuple(defects)


def _check_names(
    owner: str, given: Mapping[str, Any], tensors: Mapping[str, LogicalTensor], *, missing: bool
) -> None:
    names = ", ".join(tensors)
    for name in given:
        if name not in tensors:
            raise TypeError(f"{owner} must be among {names}, got {name}")
    if missing and (absent := [name for name in tensors if name not in given]):
        raise TypeError(f"{owner} must be {names}; {', '.join(absent)} missing")
