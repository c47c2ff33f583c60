"""Base class of the compiled operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal

from .. import _core
from ..graph import Graph
from ..graph._repaired import repaired_graph
from ..tensors.arrays import Array
from ..tensors.dtypes import CORE, DTypeName, dtype_name
from ..tensors.spec import TensorSpec, integers
from . import _attributes, _validation
from ._operator import Arrays, Operator, Result


class Compiled(Generic[Result]):
    """An operator with a plan for one `TensorSpec` on one backend: the result of ``compile``.

    A call validates its arrays and runs the plan; a direct call looks for the plan in a cache,
    which takes about a fifth longer for tensors of a few elements. A call has the arrays of a
    direct call, in the same order and under the same names, and ``out``. Tensors must have the
    spec's shape, dtype and strides, and are never copied. Statistics must have `stats_shape` and
    `stats_dtype`; those that are not contiguous are copied. An optional input must be passed if and
    only if the operator was compiled for it; ``outputs="diff_src"`` ignores gamma in either case.
    An array that is not as compiled for raises TypeError or ValueError, and nothing is written.

    Many threads may make calls at once. After a fork, the first call in the child compiles again
    for one thread, because OpenMP's threads do not survive a fork.
    """

    __slots__ = (
        "_all_outputs",
        "_core",
        "_drops_ignored",
        "_given",
        "_operator",
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
        given: Mapping[str, object] = {},
        all_outputs: bool = True,
        backend: str,
    ) -> None:
        """Compile an operator, for its method ``compile``.

        `given` contains for each optional input whether calls pass it, and `all_outputs` is whether
        they compute the optional outputs. `stats_shape` matters only if statistics broadcast.
        """
        schema = operator._schema
        self._operator = operator
        self._spec = _validation.check_spec(spec)
        self._given = 0
        for i, port in enumerate(schema.inputs):
            passed = not port.optional or _validation.check_bool(port.name, given[port.name])
            self._given |= passed << i
        _validation.check_rank(schema, spec.shape)
        axis = operator._channel_axis
        statistics = dtype_name(stats_dtype, "stats_dtype")
        _validation.check_dtypes(schema, spec.dtype, statistics, "stats_dtype")
        shape = integers("stats_shape", stats_shape) if axis is None else (spec.shape[axis],)
        _validation.check_statistic_shape(schema, axis, spec.shape, "stats_shape", shape)
        self._statistics = TensorSpec(shape, statistics)
        self._all_outputs = all_outputs
        self._drops_ignored = schema.ignored != "" and not all_outputs
        if self._drops_ignored:
            self._given &= ~(1 << schema.ignored_position)

        self._core = _core.Compiled(
            operator._core,
            data=CORE[self._spec.dtype],
            shape=self._spec.shape,
            strides=self._spec.byte_strides,
            statistics=CORE[self._statistics.dtype],
            stats_shape=self._statistics.shape,
            given=self._given,
            all_outputs=all_outputs,
            onednn=_attributes.parse_backend(backend),
        )

    def _call(self, inputs: Arrays, out: Any) -> Result:
        """Validate and run a call, from the ``__call__`` of a class, which a user calls."""
        operator = self._operator
        if self._drops_ignored:
            inputs = operator._drop_ignored(inputs)
        results = self._core.run(inputs, out)
        if results is None:
            results = operator._validate_and_run(
                self._core.run, inputs, self._all_outputs, out, self._check
            )
        return operator._result(results, out)

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and strides of src."""
        return self._spec

    @property
    def stats_dtype(self) -> DTypeName:
        """Dtype of mean, variance, gamma and their gradients."""
        return self._statistics.dtype

    @property
    def stats_shape(self) -> tuple[int, ...]:
        """Shape of mean, variance, gamma and their gradients."""
        return self._statistics.shape

    @property
    def outputs(self) -> str:
        """The outputs that calls compute: ``"all"``, or the names of the required ones."""
        return "all" if self._all_outputs else ", ".join(self._operator._schema.required)

    @property
    def backend(self) -> Literal["native", "onednn"]:
        """The backend that runs: ``"onednn"`` or ``"native"``."""
        return self._core.backend

    @property
    def implementation(self) -> str:
        """A description of the implementation that runs."""
        return self._core.implementation

    @property
    def num_threads(self) -> int:
        """Number of OpenMP threads of every call."""
        return self._core.num_threads

    @property
    def graph(self) -> Graph:
        """The graph that oneDNN compiled, and in `Graph.changes` how it differs from the call's.

        ``print(compiled.graph)`` shows it as text, and ``compiled.graph.draw(path)`` draws it.
        Shapes are those that onedsl passes to oneDNN; ``op.graph`` returns the graph of the call
        itself. Only ``backend="onednn"`` has a graph.
        """
        nodes = self._core.graph
        if not nodes:
            raise AttributeError(
                f"{self!r} has no graph: onedsl's own kernels run it. Only plans of "
                'backend="onednn" have one'
            )
        ports = _core.signature(self._operator._schema.operation)
        return repaired_graph(
            nodes,
            self.spec,
            self.stats_dtype,
            self._operator.data_format,  # type: ignore[attr-defined]  # of all classes with graphs
            [name for i, (name, *_) in enumerate(ports["inputs"]) if self._given >> i & 1],
            [name for name, _, always, _ in ports["outputs"] if always or self._all_outputs],
        )

    def _check(self, arrays: Sequence[Array | None]) -> None:
        _validation.check_compiled_for(
            self._operator._schema, arrays, self._spec, self._statistics, self._given
        )

    def __repr__(self) -> str:
        given = "".join(
            f"{port.name}={bool(self._given >> i & 1)}, "
            for i, port in enumerate(self._operator._schema.inputs)
            if port.optional
        )
        return (
            f"<{self._operator!r} compiled for {self.spec!r}, stats_dtype={self.stats_dtype!r}, "
            f"{given}outputs={self.outputs!r}: {self.implementation}, {self.num_threads} threads>"
        )
