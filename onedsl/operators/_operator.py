"""Base classes of the operators: calls of the C++ core, and validation if it rejects a call."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from .. import _core
from ..runtime.errors import GammaIgnoredWarning
from ..tensors.arrays import Array, aligned_like, as_numpy, is_contiguous, same_layout
from ..tensors.dtypes import CORE
from ..tensors.spec import DataFormat
from . import _attributes, _validation
from ._schema import OpSchema
from ._sums import BatchNormSums, BatchNormTotals

_log = logging.getLogger("onedsl")

Result = TypeVar("Result", bound=tuple[Any, ...])
Value = TypeVar("Value")

Arrays = tuple[Any, ...]
"""One array per port, or None."""

Run = Callable[[Arrays, Arrays | None], Arrays | None]
"""A call of the core with inputs and ``out``. Returns None if the core rejects an argument."""


class Operator(Generic[Result]):
    """Attributes, calls of the C++ core, and the errors of a rejected call.

    A subclass defines its schema, its result, the signatures of its methods and its formulas.
    """

    __slots__ = ("_attributes", "_core")

    _attributes: dict[str, Any]

    _schema: ClassVar[OpSchema]
    _totals: ClassVar[type[BatchNormTotals]] = BatchNormSums
    """Class of the results of ``reduce``."""

    def __init__(self, **attributes: object) -> None:
        """Validate the attributes, whose order is that of `repr`."""
        self._attributes = {n: _attributes.PARSERS[n](v) for n, v in attributes.items()}
        schema = self._schema
        self._core = _core.Operator(
            schema.operation,
            statistics=schema.statistics,
            channel_axis=self._channel_axis,
            types=[(CORE[data], CORE[s]) for data, row in schema.types.items() for s in row],
            ranks=schema.ranks,
            name=type(self).__name__,
            input_names=[port.name for port in schema.inputs],
            output_names=[port.name for port in schema.outputs],
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

    def _call(self, inputs: Arrays, all_outputs: bool, out: Any, backend: str) -> Result:
        """Run the operator. Only public ``__call__`` methods may call this, see `_drop_ignored`."""
        onednn = _attributes.parse_backend(backend)
        if not all_outputs and self._schema.ignored:
            inputs = self._drop_ignored(inputs)
        run = self._core.run
        results = run(inputs, all_outputs, out, onednn)
        if results is None:
            results = self._validate_and_run(
                lambda inputs, out: run(inputs, all_outputs, out, onednn), inputs, all_outputs, out
            )
        return self._result(results, out)

    def _reduce(self, inputs: Arrays) -> Any:
        """Run the first pass on a part of the batch."""
        vector = self._core.reduce(inputs)
        if vector is None:
            _, dense = self._validate(self._schema.reduction, inputs)
            vector = _accepted(self._core.reduce(dense))
        return self._totals._of(vector)

    def _apply(self, totals: object, inputs: Arrays, all_outputs: bool, out: Any) -> Result:
        """Run the second pass on a part of the batch, like `_call`."""
        schema = self._schema
        checked = _validation.check_totals(self._totals, totals)
        vector = checked._vector
        if not all_outputs and schema.ignored:
            inputs = self._drop_ignored(inputs)
        run = self._core.apply
        results = run(vector, inputs, all_outputs, out)
        if results is None:
            results = self._validate_and_run(
                lambda inputs, out: run(vector, inputs, all_outputs, out),
                inputs,
                all_outputs,
                out,
                lambda arrays: _validation.check_totals_include(schema, checked, arrays),
            )
        return self._result(results, out)

    def _result(self, results: Arrays, out: Any) -> Result:
        """Return the results, or the caller's ``out``, as the result class."""
        result = self._schema.result
        if type(out) is result:
            return out  # type: ignore[no-any-return]
        return result._make(results if out is None else out)  # type: ignore[no-any-return]

    def _validate_and_run(
        self,
        run: Run,
        inputs: Arrays,
        all_outputs: bool,
        out: object,
        check: Callable[[Sequence[Array | None]], None] | None = None,
    ) -> Arrays:
        """Raise for invalid arguments of a rejected call, or run it on dense copies.

        `check` may raise for inputs that are valid for the operator.
        """
        arrays, dense = self._validate(self._schema, inputs, check)
        buffers = self._buffers(arrays, dense, all_outputs, out)
        results = self._run_dense(run, dense, buffers)
        if isinstance(out, tuple | list):  # the core wrote to NumPy views of its arrays
            _core.mark_written(out)
        return tuple(a if a is None else _core.export_array(a, inputs[0]) for a in results)

    def _validate(
        self,
        schema: OpSchema,
        inputs: Arrays,
        check: Callable[[Sequence[Array | None]], None] | None = None,
    ) -> tuple[list[Array | None], tuple[Array | None, ...]]:
        """Return the inputs as NumPy arrays and as dense arrays, or raise."""
        arrays = [
            None if value is None and port.optional else as_numpy(port.name, value)
            for port, value in zip(schema.inputs, inputs, strict=True)
        ]
        _validation.check_inputs(schema, self._channel_axis, arrays)
        if check is not None:
            check(arrays)
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
            members = _validation.parse_out(schema, all_outputs, out)
            buffers = tuple(
                None if value is None else as_numpy(f"out.{port.name}", value)
                for port, value in zip(schema.outputs, members, strict=True)
            )
            _validation.check_out_memory(schema, arrays, dense, buffers)
            return buffers
        likes = _validation.first_of_each_kind(schema, dense)
        return tuple(
            aligned_like(likes[port.kind][1]) if all_outputs or not port.optional else None
            for port in schema.outputs
        )

    def _drop_ignored(self, inputs: Arrays) -> Arrays:
        """Validate the ignored input, warn at the caller of the public method, and drop it."""
        schema = self._schema
        position = schema.ignored_position
        if inputs[position] is None:
            return inputs
        _validation.check_inputs(schema, self._channel_axis, inputs)
        warnings.warn(
            f"{schema.ignored} is ignored with {schema.options[1]}, as oneDNN documents it. Pass "
            f"{schema.options[0]} (to compile, if the operator is compiled) to use "
            f"{schema.ignored}, or do not pass {schema.ignored}.",
            GammaIgnoredWarning,
            stacklevel=4,
        )
        return (*inputs[:position], None, *inputs[position + 1 :])


class ChannelOperator(Operator[Result]):
    """An operator with an attribute data_format."""

    __slots__ = ()

    @property
    def data_format(self) -> DataFormat:
        """Position of the channel axis in the shape of the tensors."""
        return self._attributes["data_format"]  # type: ignore[no-any-return]


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
