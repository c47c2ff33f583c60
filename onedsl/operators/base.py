"""Base classes of the operators: calls of the C++ core, and validation if it rejects a call."""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from .. import _core
from ..graph import Graph
from ..graph.compiled_graph import compile_graph, keep_results, run_record
from ..runtime.errors import GammaIgnoredWarning, UnsupportedError
from ..runtime.run_log import RunRecord, publish
from ..tensors.arrays import Array, aligned_like, as_numpy, is_contiguous, same_layout
from ..tensors.dtypes import CORE, DTypeName
from ..tensors.ports import signature
from ..tensors.spec import DataFormat, TensorSpec
from . import validation
from ._graph_of import graph_of
from .attributes import PARSERS, parse_backend
from .schema import OpSchema
from .totals import BatchNormSums, BatchNormTotals

_log = logging.getLogger("onedsl")

Result = TypeVar("Result", bound=tuple[Any, ...])
Value = TypeVar("Value")

Arrays = tuple[Any, ...]
"""One array per port, or None."""

Run = Callable[[Arrays, Arrays | None], Arrays | None]
"""A call of the core with inputs and ``out``. Returns None if the core rejects an argument."""


class Operator(Generic[Result]):
    """Attributes, calls of the C++ core, and the errors of a rejected call.

    A subclass defines its schema, the signatures of its methods and its formulas.
    """

    __slots__ = ("_attributes", "_core", "_schema")

    _totals: ClassVar[type[BatchNormTotals]] = BatchNormSums
    """Class of the results of ``reduce``."""

    def __init__(self, schema: OpSchema, **attributes: object) -> None:
        """Validate the attributes, whose order is that of `repr`."""
        self._schema = schema
        self._attributes = {n: PARSERS[n](v) for n, v in attributes.items()}
        self._core = _core.Operator(
            schema.operation,
            statistics=schema.statistics,
            channel_axis=self._channel_axis,
            types=[(CORE[data], CORE[s]) for data, row in schema.types.items() for s in row],
            ranks=schema.ranks,
            name=type(self).__name__.removeprefix("_"),
            input_names=[port.name for port in schema.inputs],
            output_names=[port.name for port in schema.outputs],
            ignored=schema.ignored,
            result=schema.result,
            **{n: v for n, v in self._attributes.items() if isinstance(v, float)},
        )

    @property
    def _channel_axis(self) -> int | None:
        """Index of the channel axis, or None if the statistics broadcast."""
        data_format = self._attributes.get("data_format")
        return data_format and data_format.channel_axis

    @property
    def epsilon(self) -> float:
        """Added to the variance under the square root."""
        return self._attributes["epsilon"]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={value!r}" for name, value in self._attributes.items())
        return f"onedsl.{type(self).__name__}({attributes})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._attributes == other._attributes

    def __hash__(self) -> int:
        return hash((type(self), *self._attributes.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._attributes), ()

    def _call(self, inputs: Arrays, outputs: object, out: Any, backend: object) -> Result:
        """Run the operator. Only public ``__call__`` methods may call this, see `_run_rejected`.

        `outputs` is the caller's option, or whether to compute all outputs.
        """
        results = self._core.run(inputs, outputs, out, backend)
        if results is not None:
            return results  # type: ignore[no-any-return]
        all_outputs = validation.parse_outputs(outputs, self._schema)
        onednn = parse_backend(backend)

        def run(inputs: Arrays, out: Arrays | None) -> Any:
            if onednn:
                return self._run_onednn(inputs, outputs, all_outputs, out)
            return self._core.run(inputs, outputs, out, "native")

        return self._run_rejected(run, inputs, all_outputs, out)

    def _run_onednn(self, inputs: Arrays, outputs: object, all_outputs: bool, out: Any) -> Any:
        """Run a call on oneDNN. Return None if the core rejects an argument."""
        raise UnsupportedError(
            'oneDNN\'s Graph API has no op for frozen statistics; use backend="native" or "auto"',
            "unimplemented",
        )

    def _reduce(self, inputs: Arrays) -> Any:
        """Run the first pass on a part of the batch."""
        vector = self._core.reduce(inputs)
        if vector is None:
            _, dense = self._validate(self._schema.reduction, inputs)
            vector = _accepted(self._core.reduce(dense))
        # Moments do not depend on epsilon.
        return self._totals._of(vector, self.epsilon if self._totals is BatchNormSums else None)

    def _apply(self, totals: object, inputs: Arrays, outputs: object, out: Any) -> Result:
        """Run the second pass on a part of the batch, like `_call`."""
        kind = self._totals
        if not isinstance(totals, kind):
            got = type(totals).__name__
            raise TypeError(f"{kind._argument} must be {kind.__name__} from reduce, got {got}")
        if totals._epsilon not in (None, self.epsilon):
            raise ValueError(
                f"{kind._argument} must be from reduce of an operator with the same epsilon, "
                f"{self.epsilon}, got {totals._epsilon}"
            )

        def run(inputs: Arrays, out: Arrays | None) -> Any:
            return self._core.apply(totals._vector, inputs, outputs, out)

        results = run(inputs, out)
        if results is not None:
            return results  # type: ignore[no-any-return]
        all_outputs = validation.parse_outputs(outputs, self._schema)
        return self._run_rejected(run, inputs, all_outputs, out, totals)

    def _run_rejected(
        self,
        run: Run,
        inputs: Arrays,
        all_outputs: bool,
        out: Any,
        totals: BatchNormTotals | None = None,
    ) -> Result:
        """Raise for invalid arguments of a rejected call, or run it on dense copies.

        Warns of an ignored input at the caller of the public method.
        """
        schema = self._schema
        if not all_outputs and schema.ignored and inputs[schema.ignored_position] is not None:
            validation.check_inputs(schema, self._channel_axis, inputs)
            warnings.warn(
                f"{schema.ignored} is ignored with {schema.options[1]}, as oneDNN documents it. "
                f"Pass {schema.options[0]} to use {schema.ignored}, or do not pass "
                f"{schema.ignored}.",
                GammaIgnoredWarning,
                stacklevel=4,
            )
            position = schema.ignored_position
            inputs = (*inputs[:position], None, *inputs[position + 1 :])
        results = run(inputs, out)
        if results is not None:
            return results  # type: ignore[return-value]
        arrays, dense = self._validate(schema, inputs)
        if totals is not None:
            validation.check_totals_include(schema, totals, arrays)
        results = self._run_dense(run, dense, self._buffers(arrays, dense, all_outputs, out))
        make: Callable[[Any], Result] = schema.result._make
        if out is None:
            return make(a if a is None else _core.export_array(a, inputs[0]) for a in results)
        _core.mark_written(out)  # the core wrote to NumPy views of its arrays
        return make(out) if type(out) is not schema.result else out

    def _validate(
        self, schema: OpSchema, inputs: Arrays
    ) -> tuple[list[Array | None], tuple[Array | None, ...]]:
        """Return the inputs as NumPy arrays and as dense arrays, or raise."""
        arrays = [
            None if value is None and port.optional else as_numpy(port.name, value)
            for port, value in zip(schema.inputs, inputs, strict=True)
        ]
        validation.check_inputs(schema, self._channel_axis, arrays)
        return arrays, _dense(schema, arrays)

    def _run_dense(self, run: Run, inputs: Arrays, out: Any) -> Arrays:
        """Run a call with valid and dense arrays."""
        return _accepted(run(inputs, out))

    def _buffers(
        self,
        arrays: Sequence[Array | None],
        dense: Sequence[Array | None],
        all_outputs: bool,
        out: object,
    ) -> Arrays:
        """Return the caller's ``out`` as NumPy arrays, or new arrays."""
        schema = self._schema
        if out is not None:
            members = validation.parse_out(schema, all_outputs, out)
            buffers = tuple(
                None if value is None else as_numpy(f"out.{port.name}", value, is_output=True)
                for port, value in zip(schema.outputs, members, strict=True)
            )
            validation.check_out_memory(schema, arrays, dense, buffers)
            return buffers
        likes = validation.first_of_each_kind(schema, dense)
        return tuple(
            aligned_like(likes[port.kind][1]) if all_outputs or not port.optional else None
            for port in schema.outputs
        )


class ChannelOperator(Operator[Result]):
    """An operator with an attribute data_format, which oneDNN can run too."""

    __slots__ = ()

    @property
    def data_format(self) -> DataFormat:
        """Position of the channel axis in the shape of the tensors."""
        return self._attributes["data_format"]  # type: ignore[no-any-return]

    def _graph(
        self, spec: TensorSpec, stats_dtype: object, given: Mapping[str, object], outputs: object
    ) -> Graph:
        """Return the graph of a call. `given` says of each optional input whether it is passed."""
        schema = self._schema
        passed = [
            not port.optional or validation.check_bool(port.name, given[port.name])
            for port in schema.inputs
        ]
        all_outputs = validation.parse_outputs(outputs, schema)
        return graph_of(self, spec, stats_dtype, passed, all_outputs)[0]

    def _run_onednn(self, inputs: Arrays, outputs: object, all_outputs: bool, out: Any) -> Any:
        """Run the repaired graph of a call. Return None if the core rejects an argument."""
        call = self._core.describe(inputs, all_outputs)
        if call is None:
            return None
        dtype, shape, strides, stats_dtype, given = call
        if 0 in shape:  # oneDNN does not write all outputs of empty tensors
            return self._core.run(inputs, outputs, out, "native")
        spec = dtype, shape, strides, stats_dtype
        graph, record = _compile_call(self, *spec, given, all_outputs, _core.max_threads())
        begin = time.perf_counter()
        results = self._core.run_graph(graph, inputs, all_outputs, out)
        publish(record, seconds=time.perf_counter() - begin)
        return results


def kernel_info(
    operator: ChannelOperator[Any], spec: TensorSpec, stats_dtype: object = "f32"
) -> dict[str, Any]:
    """Return how the kernels run a call that passes all inputs and computes all outputs.

    The members are ``geometry`` (outer size, channels, inner size), ``implementation``,
    ``num_threads``, and, unless the tensor is empty, the order of summation and the schedule.
    """
    statistics = validation.check_spec(operator._schema, spec, stats_dtype)
    info = operator._core.kernel_info(
        data=CORE[spec.dtype],
        shape=spec.shape,
        strides=spec.strides,
        statistics=CORE[statistics],
    )
    return _accepted(info)  # the spec is dense


@keep_results
def _compile_call(
    operator: ChannelOperator[Any],
    dtype: DTypeName,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    stats_dtype: DTypeName,
    given: tuple[bool, ...],
    all_outputs: bool,
    num_threads: int,
) -> tuple[_core.CompiledGraph, RunRecord]:
    """Compile the repaired graph of calls with such arrays, for a number of threads."""
    schema = operator._schema
    ports = signature(schema.operation)
    # oneDNN ignores gamma if diff_src is the only output of its gradient, some operators do not.
    is_gradient = schema.operation is _core.Operation.training_backward
    in_graph = all_outputs or (is_gradient and not schema.ignored)
    # Pairs of the core's port, which names a tensor of the graph, and the operator's.
    pairs = zip(ports.inputs, schema.inputs, strict=True)
    inputs = [pair for pair, passed in zip(pairs, given, strict=True) if passed]
    pairs = zip(ports.outputs, schema.outputs, strict=True)
    outputs = [pair for pair in pairs if all_outputs or not pair[0].optional]
    spec = TensorSpec(shape, dtype, strides)
    try:
        requested, tensors = graph_of(operator, spec, stats_dtype, given, in_graph)
        graph = requested.repaired()
        compiled = compile_graph(
            graph,
            [tensors[port.name] for port, _ in inputs],
            [tensors[port.name] for port, _ in outputs],
            num_threads,
        )
    except UnsupportedError as error:
        remedy = '. Use backend="native" or "auto", which run on any x86-64 CPU'
        raise UnsupportedError(f"{error}{remedy}", error.status) from None
    record = run_record(
        type(operator).__name__,
        graph,
        [own.name for _, own in inputs],
        [own.name for _, own in outputs],
        num_threads,
    )
    return compiled, record


def _accepted(results: Value | None) -> Value:
    """Return the results of the core for valid arguments."""
    if results is None:
        raise RuntimeError("onedsl's core rejected valid arguments; please report this bug")
    return results


def _dense(schema: OpSchema, arrays: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """Return the arrays that are dense like the first tensor, and dense copies of the others."""
    dense: list[Array | None] = []
    for port, array in zip(schema.inputs, arrays, strict=True):
        if array is None:
            dense.append(None)
            continue
        if port.kind == "statistic":
            like, is_usable = array, is_contiguous(array)
        else:
            like = dense[0] if dense and dense[0] is not None else array
            is_usable = _core.is_dense(array) and same_layout(array, like)
        if not is_usable:
            _log.info("%s copied: shape %s, strides %s", port.name, array.shape, array.strides)
            copy = np.empty_like(like, order="C" if port.kind == "statistic" else "K")
            copy[...] = array
        dense.append(array if is_usable else copy)
    return tuple(dense)
