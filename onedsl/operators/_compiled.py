"""What every operator class compiles to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from .. import _core
from ..graph import Graph, of_core
from ..tensors.arrays import Array
from ..tensors.dtypes import CORE, DTYPES, dtype_name
from ..tensors.spec import TensorSpec
from . import _attributes, _validation, _validation_compiled
from ._autotune import fastest
from ._operator import Arrays, Operator, Result
from ._schema import channel_axis


class Compiled(Generic[Result]):
    """An operator compiled for one `TensorSpec`: no look-up and no decision is left for the call.

    This is what the operators' ``compile`` has in common. What it gives is called with the arrays
    of a direct call, under the operator's own names for them, and ``out``. It may be called from
    many threads at once. In a process that was forked off after compiling, the first call compiles
    anew, for one thread: OpenMP's threads do not survive a fork.
    """

    __slots__ = (
        "_all_outputs",
        "_core",
        "_given",
        "_ignores",
        "_operator",
        "_run",
        "_spec",
        "_statistics",
    )

    def __init__(
        self,
        operator: Operator[Result],
        spec: TensorSpec,
        *,
        stats_dtype: object,
        stats_shape: Sequence[int] = (),
        gives: Mapping[str, object],
        all_outputs: bool,
        backend: str,
        autotune: bool,
    ) -> None:
        """Compile; the operators' ``compile`` calls this.

        Parameters
        ----------
        operator : Operator
        spec : TensorSpec
            Of the tensors.
        stats_dtype : str or dtype
            Of the statistics.
        stats_shape : sequence of int, optional
            Of the statistics, where that does not follow from the tensors'.
        gives : mapping of str to bool
            For each optional input, whether calls will pass it.
        all_outputs : bool
            Whether calls compute all outputs, or only those that every call computes.
        backend, autotune
            As in the operators' ``compile``.
        """
        schema = operator._schema
        self._operator = operator
        self._spec = _validation.spec(spec)
        given = 0
        for i, port in enumerate(schema.inputs):
            passed = not port.optional or _validation.given(port.name, gives[port.name])
            given |= passed << i
        _validation.rank(schema, spec.shape)
        axis = channel_axis(operator._statistics_shape)
        self._statistics = TensorSpec(
            stats_shape if axis is None else (spec.shape[axis],),
            DTYPES[dtype_name(stats_dtype, "stats_dtype")],
        )
        _validation.types(schema, spec.dtype, self._statistics.dtype, "stats_dtype")
        first = next(port.label for port in schema.inputs if port.kind == "statistic")
        shape_kind = operator._statistics_shape
        _validation.statistic_shape(schema, shape_kind, spec.shape, first, self._statistics.shape)
        self._all_outputs = all_outputs
        self._ignores = schema.ignored != "" and not all_outputs
        if self._ignores:
            given &= ~(1 << schema.ignored_position)  # the plan is made without
        self._given = given

        def make(choice: _core.Backend) -> _core.Compiled:
            return _core.Compiled(
                operator._core,
                data=CORE[self._spec.dtype],
                shape=self._spec.shape,
                strides=self._spec.byte_strides,
                statistics=CORE[self._statistics.dtype],
                stats_shape=self._statistics.shape,
                given=self._given,
                all_outputs=self._all_outputs,
                backend=choice,
            )

        choice = _attributes.backend(backend)
        if autotune and choice is _core.Backend.auto:
            specs = {"tensor": self._spec, "statistic": self._statistics}
            inputs = [
                specs[port.kind] if given >> i & 1 else None for i, port in enumerate(schema.inputs)
            ]
            self._core = fastest(make, inputs)
        else:
            self._core = make(choice)
        self._run = self._core.run

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and strides of src."""
        return self._spec

    @property
    def stats_dtype(self) -> str:
        """Type of mean, variance, gamma and their gradients."""
        return self._statistics.dtype

    @property
    def stats_shape(self) -> tuple[int, ...]:
        """Shape of mean, variance, gamma and their gradients."""
        return self._statistics.shape

    @property
    def gamma(self) -> bool:
        """Whether calls take gamma, whatever the operator calls it."""
        inputs, _ = _core.ports(self._operator._schema.operation)
        return bool(self._given >> inputs.index("gamma") & 1)

    @property
    def outputs(self) -> str:
        """What calls compute."""
        schema = self._operator._schema
        return "all" if self._all_outputs else ", ".join(schema.always)

    @property
    def backend(self) -> str:
        """What runs: ``"onednn"`` or ``"native"``."""
        return self._core.backend

    @property
    def implementation(self) -> str:
        """What runs, for people to read."""
        return self._core.implementation

    @property
    def num_threads(self) -> int:
        """OpenMP threads of every call, fixed when this was compiled."""
        return self._core.num_threads

    @property
    def graph(self) -> Graph:
        """What oneDNN made of the operator: ops, logical tensors, partitions.

        Its shapes are those that onedsl shows to oneDNN. There is one with ``backend="onednn"``,
        but for `BatchNormalizationGrad`, which oneDNN has no graph for.
        """
        parts = self._core.graph
        if parts is None:
            why = (
                "oneDNN runs it as a primitive"
                if self.backend == "onednn"
                else 'onedsl\'s own kernels run it; compile with backend="onednn" for one'
            )
            raise AttributeError(f"{self!r} has no graph: {why}")
        return of_core(parts)

    def draw(self, path: str | Path) -> None:
        """Draw `graph`; ``print(compiled.graph)`` has it in words.

        Parameters
        ----------
        path : str or Path
            Where the picture goes; .png, .pdf or .svg.

        Raises
        ------
        AttributeError
            If there is no graph.
        ValueError
            If the path ends in another way.
        ImportError
            If matplotlib is not installed.
        """
        self.graph.draw(path)

    def _call(self, inputs: Arrays, out: Any) -> Result:
        """Run what a subclass's ``__call__`` was called with; the warning counts on that."""
        operator = self._operator
        if self._ignores:
            inputs = operator._without_ignored(inputs)
        answer = self._run(inputs, out)
        if answer is None:
            answer = operator._answer_in_words(
                self._run, inputs, self._all_outputs, out, self._refuse_others
            )
        return operator._result(answer, out)

    def _refuse_others(self, arrays: Sequence[Array | None]) -> None:
        _validation_compiled.not_compiled_for(
            self._operator._schema, arrays, self._spec, self._statistics, self._given
        )

    def __repr__(self) -> str:
        passed = "".join(
            f"{port.name}={bool(self._given >> i & 1)}, "
            for i, port in enumerate(self._operator._schema.inputs)
            if port.optional
        )
        return (
            f"<{self._operator!r} compiled for {self.spec!r}, stats_dtype={self.stats_dtype!r}, "
            f"{passed}outputs={self.outputs!r}: {self.implementation}, {self.num_threads} threads>"
        )
