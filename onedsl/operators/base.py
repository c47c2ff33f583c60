"""Base classes of the operators: calls of the C++ core, and validation if it rejects a call."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .. import _core
from .._core import Rejection
from ..graph import Graph
from ..graph.check import check_graph
from ..graph.compiled_graph import compile_graph, keep_outcomes, run_record
from ..runtime.errors import GammaIgnoredWarning, UnsupportedError
from ..runtime.run_log import RunRecord, publish
from ..tensors.arrays import as_numpy
from ..tensors.dtypes import DTYPES, DTypeName, dtype_name
from ..tensors.options import Activation
from ..tensors.ports import signature
from ..tensors.spec import DataFormat, TensorSpec
from . import validation
from ._graph_of import OpRow, batch_norm, graph_of
from .attributes import PARSERS, parameter_of, parse_backend, parse_statistics
from .schema import OpSchema
from .totals import BatchNormSums, BatchNormTotals
from .validation import ArrayInfo

Result = TypeVar("Result", bound=tuple[Any, ...])

Arrays = tuple[Any, ...]
"""One array per port, or None."""

Run = Callable[[Arrays, bool, Any, object], Any]
"""A call of the core.

Its arguments are the inputs, whether to compute all outputs, ``out``, and the array whose library
is that of the results. It returns the results or a `_core.Rejection`.
"""


class Operator(Generic[Result]):
    """Attributes, calls of the C++ core, and the errors of a rejected call.

    A subclass defines its schema, the signatures of its methods and its formulas.
    """

    __slots__ = ("_attributes", "_core", "_schema", "_statistics")

    _totals: ClassVar[type[BatchNormTotals]] = BatchNormSums
    """Class of the results of ``reduce``."""

    def __init__(
        self, schema: OpSchema, statistics: object = "batch", **attributes: object
    ) -> None:
        """Validate the attributes. The order of the others than `statistics` is that of `repr`."""
        self._schema = schema
        self._statistics = parse_statistics(statistics)
        self._attributes = {n: PARSERS[n](v) for n, v in attributes.items()}
        data_format = self._data_format
        self._core = _core.make_operator(
            schema,
            "" if type(self) is ChannelOperator else type(self).__name__,
            self.epsilon,
            self._statistics == "frozen",
            None if data_format is None else data_format.channel_axis,
            self._attributes.get("momentum"),
            *self._activation,
        )

    @property
    def _data_format(self) -> DataFormat | None:
        """Position of the channel axis, or None if the statistics broadcast."""
        return self._attributes.get("data_format")

    @property
    def _activation(self) -> tuple[str, float | None]:
        """The activation after batch norm, or "none", and its parameter, or None."""
        return "none", None

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
        own = self._schema, self._statistics, self._attributes
        return own == (other._schema, other._statistics, other._attributes)

    def __hash__(self) -> int:
        return hash((type(self), *self._attributes.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._attributes), ()

    def _call(self, inputs: Arrays, outputs: object, out: Any, backend: object) -> Result:
        """Run the operator. A warning names the caller of the method that calls this.

        `outputs` is the caller's option, or whether to compute all outputs.
        """
        all_outputs = validation.parse_outputs(outputs, self._schema)
        run: Run = self._run_onednn if parse_backend(backend) else self._core.run
        results = run(inputs, all_outputs, out, None)
        if type(results) is not Rejection:
            return results  # type: ignore[no-any-return]
        return self._repair(results, run, inputs, all_outputs, out)  # type: ignore[no-any-return]

    def _run_onednn(self, inputs: Arrays, all_outputs: bool, out: Any, results_like: object) -> Any:
        """Run a call on oneDNN, or return the core's `_core.Rejection`."""
        raise UnsupportedError(
            'oneDNN\'s Graph API has no op for frozen statistics; use backend="auto"',
            "unimplemented",
        )

    def _check_shapes(
        self,
        infos: Sequence[ArrayInfo | None],
        stats_argument: str = "",
        size_of: Callable[[Any], int] = int,
    ) -> None:
        """Raise for arrays whose dtypes or shapes are invalid. None is an absent input.

        `stats_argument` is the name of the argument for the dtype of statistics, if there is one.
        `size_of` returns a number for a size, which may be symbolic.
        """
        described = [
            None
            if info is None
            else (info.dtype if info.dtype in DTYPES else "other", [*map(size_of, info.shape)])
            for info in infos
        ]
        rejection = self._core.check_shapes(described)
        if rejection is not None:
            argument = stats_argument if rejection.reason == "statistics_type" else ""
            call = self._data_format, rejection, infos
            raise validation.RejectedCall(self._schema, *call).error(argument)

    def _reduce(self, inputs: Arrays) -> Any:
        """Run the first pass on a part of the batch."""
        vector = self._core.reduce(inputs)
        if type(vector) is Rejection:
            vector = self._repair(
                vector, lambda inputs, *_: self._core.reduce(inputs), inputs, False
            )
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

        all_outputs = validation.parse_outputs(outputs, self._schema)
        run: Run = functools.partial(self._core.apply, totals._vector)
        results = run(inputs, all_outputs, out, None)
        if type(results) is not Rejection:
            return results  # type: ignore[no-any-return]
        return self._repair(results, run, inputs, all_outputs, out, totals)  # type: ignore[no-any-return]

    def _repair(
        self,
        results: Any,
        run: Run,
        inputs: Arrays,
        all_outputs: bool,
        out: Any = None,
        totals: BatchNormTotals | None = None,
    ) -> Any:
        """Convert what a rejected call cannot use and run it again, or raise.

        `results` are those of the call, or the `_core.Rejection`. Warns of an ignored input at the
        caller of the public method.
        """
        schema, ports = self._schema, self._schema.inputs
        results_like, given = inputs[0], out
        # Repairs that were made. Copies may come again: once src is copied, other tensors are
        # compared with the copy.
        repaired = set()
        while type(results) is Rejection:
            reason = results.reason
            is_new = (reason, *results.to_copy) not in repaired
            repaired.add((reason, *results.to_copy))
            match reason if is_new else "":
                case "not_an_array":
                    inputs = tuple(
                        None if value is None and port.optional else as_numpy(port.name, value)
                        for port, value in zip(ports, inputs, strict=False)
                    )
                case "ignored":
                    warnings.warn(
                        f"{schema.ignored} is ignored with {schema.options[1]}, as oneDNN "
                        f"documents it. Pass {schema.options[0]} to use {schema.ignored}, or do "
                        f"not pass {schema.ignored}.",
                        GammaIgnoredWarning,
                        stacklevel=4,
                    )
                    inputs = tuple(
                        None if port.name == schema.ignored else value
                        for port, value in zip(ports, inputs, strict=True)
                    )
                case "outputs":
                    out = validation.parse_out(schema, all_outputs, out)
                case "layout" | "not_aligned" if results.to_copy:
                    inputs = validation.dense_copies(results.to_copy, ports, inputs)
                case _:
                    call = self._data_format, results, inputs, out, totals
                    raise validation.RejectedCall(schema, *call).error()
            results = run(inputs, all_outputs, out, results_like)
        if out is given:
            return results
        _core.mark_written(given)  # the core wrote to NumPy views of its arrays
        return given if type(given) is schema.result else schema.result._make(given)


class ChannelOperator(Operator[Result]):
    """An operator with an attribute data_format, which oneDNN can run too."""

    __slots__ = ()

    def _ops(self, absent: set[str]) -> list[OpRow]:
        """Return the ops of the graph of a call without some ports. The default is the op alone."""
        return [batch_norm(self, self._schema.operation)]

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

    def _check_spec(self, spec: TensorSpec, stats_dtype: object) -> DTypeName:
        """Return the short name of the dtype of statistics, or raise for an invalid description."""
        spec = validation.check_spec_type(spec)
        statistics_type = dtype_name(stats_dtype, "stats_dtype")
        channels = self.data_format.channels_of(spec.shape)
        self._check_shapes(
            [
                None
                if port.name == "dst"  # the description has the residual instead
                else ArrayInfo(spec.shape, spec.dtype)
                if port.kind == "tensor"
                else ArrayInfo(channels, statistics_type)
                for port in self._schema.inputs
            ],
            "stats_dtype",
        )
        return statistics_type

    def _run_onednn(self, inputs: Arrays, all_outputs: bool, out: Any, results_like: object) -> Any:
        """Run the repaired graph of a call, or return the core's `_core.Rejection`."""
        description = self._core.describe(inputs, all_outputs, out)
        if description is None:
            return self._core.run(inputs, all_outputs, out, results_like)
        if isinstance(description, Rejection):
            return description
        graph, record = _compile_call(self, description, all_outputs, _core.max_threads())
        begin = time.perf_counter()
        results = self._core.run_graph(graph, description, inputs, all_outputs, out, results_like)
        if type(results) is not Rejection:
            publish(record, seconds=time.perf_counter() - begin)
        return results


class ActOperator(ChannelOperator[Result]):
    """An operator with the attribute activation, and those of activations."""

    __slots__ = ()

    @property
    def activation(self) -> Activation:
        """The activation after batch norm."""
        return self._attributes["activation"]  # type: ignore[no-any-return]

    @property
    def clip(self) -> float | None:
        """Upper bound of "relu", or None."""
        return self._attributes["clip"]  # type: ignore[no-any-return]

    @property
    def negative_slope(self) -> float | None:
        """Slope of "leaky_relu" below zero; None means the default."""
        return self._attributes["negative_slope"]  # type: ignore[no-any-return]

    @property
    def _activation(self) -> tuple[str, float | None]:
        parameters = {"clip": self.clip, "negative_slope": self.negative_slope}
        return self.activation, parameter_of(self.activation, **parameters)


def kernel_info(
    operator: ChannelOperator[Any],
    spec: TensorSpec,
    stats_dtype: object = "f32",
    num_threads: int | None = None,
) -> dict[str, Any]:
    """Return how the kernels run a call that passes all inputs and computes all outputs.

    The members are ``geometry`` (outer size, channels, inner size), ``implementation``,
    ``num_threads`` (by default those of the next call), and, unless the tensor is empty, the order
    of summation and the schedule.
    """
    statistics_type = operator._check_spec(spec, stats_dtype)
    return operator._core.kernel_info(  # type: ignore[return-value]
        spec.dtype, spec.shape, spec.strides, statistics_type, num_threads
    )


@keep_outcomes
def _compile_call(
    operator: ChannelOperator[Any],
    description: tuple[Any, ...],
    all_outputs: bool,
    num_threads: int,
) -> tuple[_core.RunnableGraph, RunRecord]:
    """Compile the repaired graph of calls of the core's description, for a number of threads."""
    dtype, shape, strides, stats_dtype, given = description
    schema = operator._schema
    ports = signature(schema.operation)
    # oneDNN ignores gamma if diff_src is the only output of its gradient. For operators that do
    # not, the graph has all outputs.
    in_graph = all_outputs or (schema.single_output != "" and not schema.ignored)
    # Pairs of the core's port, which names a tensor of the graph, and the operator's.
    pairs = zip(ports.inputs, schema.inputs, strict=True)
    inputs = [pair for pair, passed in zip(pairs, given, strict=True) if passed]
    pairs = zip(ports.outputs, schema.outputs, strict=True)
    outputs = [pair for pair in pairs if all_outputs or not pair[0].optional]
    spec = TensorSpec(shape, dtype, strides)
    try:
        requested, tensors = graph_of(operator, spec, stats_dtype, given, in_graph)
        graph = requested.repaired()
        check_graph(graph.ops)
        compiled, _ = compile_graph(
            graph,
            [tensors[port.name] for port, _ in inputs],
            [tensors[port.name] for port, _ in outputs],
            num_threads,
        )
    except UnsupportedError as error:
        remedy = '. Use backend="auto", which runs on any x86-64 CPU'
        raise UnsupportedError(f"{error}{remedy}", error.status) from None
    record = run_record(
        type(operator).__name__,
        graph,
        [own.name for _, own in inputs],
        [own.name for _, own in outputs],
        num_threads,
    )
    return compiled, record
