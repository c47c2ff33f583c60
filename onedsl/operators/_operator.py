"""What every operator class does: take its arguments to the core, and see to what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .. import _core
from ..runtime.errors import GammaIgnoredWarning
from ..tensors.arrays import Array, as_numpy, buffers_for, mark_written
from ..tensors.spec import DataFormat, parse_data_format
from . import _attributes, _dense, _validation
from ._schema import OpSchema
from ._sums import Totals

Result = TypeVar("Result", bound=tuple[Any, ...])

Kind = TypeVar("Kind", bound=Totals)

Arrays = tuple[Any, ...]
"""One for each port, None where there is none."""

Run = Callable[[Arrays, Arrays | None], Arrays | None]
"""The core on inputs and out: the outputs, or None for arguments that it does not take."""


class Operator(Generic[Result]):
    """An epsilon, the shape of the statistics, and the way to the core."""

    __slots__ = ("_core", "_epsilon", "_statistics_shape")

    _schema: ClassVar[OpSchema]

    def __init__(
        self,
        epsilon: float,
        statistics_shape: _core.StatisticsShape,
        numbers: Mapping[str, float] = {},
    ) -> None:
        self._epsilon = _attributes.epsilon(epsilon)
        self._statistics_shape = statistics_shape
        self._core = self._schema.core_operator(self._epsilon, statistics_shape, numbers)

    @property
    def epsilon(self) -> float:
        """Added to the variance, inside the root."""
        return self._epsilon

    def _attributes(self) -> dict[str, Any]:
        return {"epsilon": self._epsilon}

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
        return _made, (type(self), self._attributes())

    def _call(self, inputs: Arrays, all_outputs: bool, out: Any, backend: str) -> Result:
        """Run what a subclass's ``__call__`` was called with; the warning counts on that."""
        schema = self._schema
        choice = _attributes.backend(backend)
        if schema.ignored and not all_outputs:
            inputs = self._without_ignored(inputs)
        run = self._core.run
        answer = run(inputs, all_outputs, out, choice)
        if answer is None:
            answer = self._answer_in_words(
                lambda inputs, out: run(inputs, all_outputs, out, choice), inputs, all_outputs, out
            )
        return self._result(answer, out)

    def _reduce(self, kind: type[Kind], inputs: Arrays) -> Kind:
        """Sum a part up: of the inputs, what that takes."""
        vector = self._core.reduce(inputs)
        if vector is None:
            _, dense = self._right_and_dense(self._schema.reduction(len(inputs)), inputs)
            vector = _taken(self._core.reduce(dense))
        return kind(vector)

    def _apply(
        self, kind: type[Totals], totals: object, inputs: Arrays, all_outputs: bool, out: Any
    ) -> Result:
        """Do for a part what is done for the whole, whose totals are given; see `_call`."""
        schema = self._schema
        given = _validation.totals(kind, totals)
        vector = given._vector
        if schema.ignored and not all_outputs:
            inputs = self._without_ignored(inputs)
        run = self._core.apply
        answer = run(vector, inputs, all_outputs, out)
        if answer is None:
            answer = self._answer_in_words(
                lambda inputs, out: run(vector, inputs, all_outputs, out),
                inputs,
                all_outputs,
                out,
                lambda arrays: _validation.not_totals_of(schema, given, arrays),
            )
        return self._result(answer, out)

    def _result(self, answer: Arrays, out: Any) -> Result:
        """Give what the core computed, or wrote to the caller's ``out``, under its names."""
        result = self._schema.result
        if type(out) is result:
            return out  # type: ignore[no-any-return]
        return result._make(answer if out is None else out)  # type: ignore[no-any-return]

    def _answer_in_words(
        self,
        run: Run,
        inputs: Arrays,
        all_outputs: bool,
        out: object,
        refuse: Callable[[Sequence[Array | None]], None] | None = None,
    ) -> Arrays:
        """Say what is wrong with arguments that the core did not take, or run on dense copies.

        `refuse` may refuse more than the operator does of itself.
        """
        arrays, dense = self._right_and_dense(self._schema, inputs, refuse)
        buffers = self._buffers(inputs, arrays, dense, all_outputs, out)
        answer = _taken(run(dense, buffers))
        if isinstance(out, tuple | list):  # the core saw NumPy's views of it
            mark_written(out)
        return tuple(a if a is None else _core.export_array(a, inputs[0]) for a in answer)

    def _right_and_dense(
        self,
        schema: OpSchema,
        inputs: Arrays,
        refuse: Callable[[Sequence[Array | None]], None] | None = None,
    ) -> tuple[list[Array | None], tuple[Array | None, ...]]:
        """Give the inputs as arrays, and dense ones, or say what is wrong with them."""
        arrays = [
            None if value is None and port.optional else as_numpy(port.label, value)
            for port, value in zip(schema.inputs, inputs, strict=True)
        ]
        _validation.arguments(schema, self._statistics_shape, arrays)
        if refuse is not None:
            refuse(arrays)
        return arrays, _dense.inputs(schema, self._statistics_shape, arrays)

    def _buffers(
        self,
        inputs: Arrays,
        arrays: Sequence[Array | None],
        dense: Sequence[Array | None],
        all_outputs: bool,
        out: object,
    ) -> Arrays | None:
        """Take the caller's ``out``, or memory that src's library can take over."""
        schema = self._schema
        if out is not None:
            members = _validation.members(schema, all_outputs, out)
            taken = tuple(
                None if value is None else as_numpy(f"out.{port.label}", value)
                for port, value in zip(schema.outputs, members, strict=True)
            )
            _validation.buffers(schema, arrays, dense, taken)
            return taken
        likes = {
            port.kind: array
            for port, array in reversed(list(zip(schema.inputs, dense, strict=True)))
            if array is not None
        }
        return buffers_for(
            inputs[0],
            [
                likes[port.kind] if all_outputs or port.name in schema.always else None
                for port in schema.outputs
            ],
        )

    def _without_ignored(self, inputs: Arrays) -> Arrays:
        """Leave out what the op's document has ignored, and say so; it must be right all the same.

        Called by what a public ``__call__`` calls: the warning is to name the line of its caller.
        """
        schema = self._schema
        position = schema.ignored_position
        if inputs[position] is None:
            return inputs
        _validation.arguments(schema, self._statistics_shape, inputs)
        warnings.warn(
            f"{schema.ignored} is ignored: oneDNN's document says so where "
            f"{', '.join(schema.always)} is the only output. Ask for {schema.ask[0]} to have it "
            f"used, or leave {schema.ignored} out.",
            GammaIgnoredWarning,
            stacklevel=4,
        )
        return (*inputs[:position], None, *inputs[position + 1 :])


Answer = TypeVar("Answer")


def _taken(answer: Answer | None) -> Answer:
    if answer is None:
        raise RuntimeError(
            "onedsl's core refused arguments that its checks had passed; please report this"
        )
    return answer


def _made(cls: type[Any], attributes: Mapping[str, Any]) -> Any:
    return cls(**attributes)


class ChannelOperator(Operator[Result]):
    """An operator whose attribute data_format says which axis of src has the channels."""

    __slots__ = ("_data_format",)

    def __init__(
        self, epsilon: float, data_format: DataFormat | str, numbers: Mapping[str, float] = {}
    ) -> None:
        self._data_format = parse_data_format(data_format)
        super().__init__(epsilon, self._data_format.statistics_shape_kind, numbers)

    @property
    def data_format(self) -> DataFormat:
        """Where the channels are in the shape of the input."""
        return self._data_format

    def _attributes(self) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "data_format": self._data_format.value}
