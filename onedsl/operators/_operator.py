"""Base classes of the operators: calls of the C++ core, and validation if it rejects a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .. import _core
from ..runtime.errors import GammaIgnoredWarning
from ..tensors.arrays import Array, as_numpy, buffers_for, mark_written
from ..tensors.spec import DataFormat, parse_data_format
from . import _attributes, _docstrings, _validation
from ._dense import dense_inputs
from ._schema import OpSchema
from ._sums import BatchNormSums, Totals

Result = TypeVar("Result", bound=tuple[Any, ...])

Arrays = tuple[Any, ...]
"""One array per port, or None."""

Run = Callable[[Arrays, Arrays | None], Arrays | None]
"""A call of the core with inputs and ``out``. Returns None if the core rejects an argument."""


class Operator(Generic[Result]):
    """An operator with an epsilon. Subclasses define the schema and the signatures."""

    __slots__ = ("_core", "_epsilon", "_statistics_shape")

    _schema: ClassVar[OpSchema]
    _totals: ClassVar[type[Totals]] = BatchNormSums
    """Class of the results of ``reduce``."""
    _attribute_names: ClassVar[tuple[str, ...]] = ("epsilon",)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "_schema" in vars(cls):
            _docstrings.fill(cls, cls._schema, cls._totals)

    def __init__(
        self,
        epsilon: float,
        statistics_shape: _core.StatisticsShape,
        numbers: Mapping[str, float | None] = {},
    ) -> None:
        self._epsilon = _attributes.parse_epsilon(epsilon)
        self._statistics_shape = statistics_shape
        given = {name: number for name, number in numbers.items() if number is not None}
        self._core = self._schema.core_operator(self._epsilon, statistics_shape, given)

    @property
    def epsilon(self) -> float:
        """Added to the variance under the square root."""
        return self._epsilon

    def _attributes(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self._attribute_names}
        return {n: str(v) if isinstance(v, DataFormat) else v for n, v in values.items()}

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={value!r}" for name, value in self._attributes().items())
        return f"onedsl.{type(self).__name__}({attributes})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._attributes() == other._attributes()

    def __hash__(self) -> int:
        return hash((type(self), *self._attributes().values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._attributes())

    def _call(self, inputs: Arrays, all_outputs: bool, out: Any, backend: str) -> Result:
        """Run the operator. Only public ``__call__`` methods may call this, see `_drop_ignored`."""
        choice = _attributes.parse_backend(backend)
        if not all_outputs and self._schema.ignored:
            inputs = self._drop_ignored(inputs)
        run = self._core.run
        results = run(inputs, all_outputs, out, choice)
        if results is None:
            results = self._validate_and_run(
                lambda inputs, out: run(inputs, all_outputs, out, choice), inputs, all_outputs, out
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
        buffers = self._buffers(inputs, arrays, dense, all_outputs, out)
        results = _accepted(run(dense, buffers))
        if isinstance(out, tuple | list):  # the core wrote to NumPy views of its arrays
            mark_written(out)
        return tuple(a if a is None else _core.export_array(a, inputs[0]) for a in results)

    def _validate(
        self,
        schema: OpSchema,
        inputs: Arrays,
        check: Callable[[Sequence[Array | None]], None] | None = None,
    ) -> tuple[list[Array | None], tuple[Array | None, ...]]:
        """Return the inputs as NumPy arrays and as dense arrays, or raise."""
        arrays = [
            None if value is None and port.optional else as_numpy(port.label, value)
            for port, value in zip(schema.inputs, inputs, strict=True)
        ]
        _validation.check_inputs(schema, self._statistics_shape, arrays)
        if check is not None:
            check(arrays)
        return arrays, dense_inputs(schema, self._statistics_shape, arrays)

    def _buffers(
        self,
        inputs: Arrays,
        arrays: Sequence[Array | None],
        dense: Sequence[Array | None],
        all_outputs: bool,
        out: object,
    ) -> Arrays | None:
        """Return the caller's ``out`` as NumPy arrays, or new memory of src's library."""
        schema = self._schema
        if out is not None:
            members = _validation.parse_out(schema, all_outputs, out)
            buffers = tuple(
                None if value is None else as_numpy(f"out.{port.label}", value)
                for port, value in zip(schema.outputs, members, strict=True)
            )
            _validation.check_out_memory(schema, arrays, dense, buffers)
            return buffers
        likes = {
            port.kind: array
            for port, array in reversed(list(zip(schema.inputs, dense, strict=True)))
            if array is not None
        }
        return buffers_for(
            inputs[0],
            [
                likes[port.kind] if all_outputs or not port.optional else None
                for port in schema.outputs
            ],
        )

    def _drop_ignored(self, inputs: Arrays) -> Arrays:
        """Validate the ignored input, warn and drop it.

        The stack level of the warning is that of the code that called the public method.
        """
        schema = self._schema
        position = schema.ignored_position
        if inputs[position] is None:
            return inputs
        _validation.check_inputs(schema, self._statistics_shape, inputs)
        warnings.warn(
            f"{schema.ignored} is ignored with {schema.options[1]}, as oneDNN documents it. Pass "
            f"{schema.options[0]} to use {schema.ignored}, or do not pass {schema.ignored}.",
            GammaIgnoredWarning,
            stacklevel=4,
        )
        return (*inputs[:position], None, *inputs[position + 1 :])


Value = TypeVar("Value")


def _accepted(results: Value | None) -> Value:
    if results is None:
        raise RuntimeError("onedsl's core rejected valid arguments; please report this bug")
    return results


def _restore(cls: type[Any], attributes: Mapping[str, Any]) -> Any:
    return cls(**attributes)


class ChannelOperator(Operator[Result]):
    """An operator whose attribute data_format names the channel axis of src."""

    __slots__ = ("_data_format",)

    _attribute_names: ClassVar[tuple[str, ...]] = ("epsilon", "data_format")

    def __init__(
        self,
        epsilon: float,
        data_format: DataFormat | str,
        numbers: Mapping[str, float | None] = {},
    ) -> None:
        self._data_format = parse_data_format(data_format)
        super().__init__(epsilon, self._data_format.statistics_shape_kind, numbers)

    @property
    def data_format(self) -> DataFormat:
        """Position of the channel axis in the shape of the input."""
        return self._data_format
