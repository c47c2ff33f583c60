"""Calls of the operators' classes."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dlpack_producers as dlpack
import helpers
import numpy as np
from cases.calls import EMPTY, Call
from cases.faults import FAULTS
from fuzz import arrays
from fuzz.targets import TARGETS

import onedsl
from doors.base import Door
from onedsl.operators._graph_of import ACTIVATION_KINDS

EVERY_OPERATOR = tuple(target.cls.__name__ for target in TARGETS)


class NumPy(Door):
    """NumPy's arrays."""

    name = "numpy"
    has_words = True
    options: Mapping[str, Any] = {}
    has_options = True
    accepted: Mapping[str, str] = {"out has other strides": "Each tensor may have its own strides."}

    def run(self, call: Call) -> dict[str, Any]:
        inputs = call.inputs
        if call.out == "in place":
            inputs = [None if array is None else np.copy(array, "K") for array in inputs]
        guard = self._guard(call) if call.out else None
        out = None if guard is None else self._out(call, guard, inputs)
        inputs = [self.convert(array) for array in inputs]
        result = call.operator(*inputs, **call.options, **self.options, out=out)
        if guard is not None:
            assert result is out
            guard.check_walls()
        return {name: arrays.to_numpy(array) for name, array in call.named(result).items()}

    def convert(self, array: Any) -> Any:
        """Convert an argument to an array of the door's library."""
        return array

    def operations(self, call: Call) -> list[str]:
        return [call.target.cls.__name__]

    def _guard(self, call: Call) -> helpers.Guarded:
        """Return memory for the requested results of a call."""
        valid = replace(call, fault="")
        inputs = dict(zip(valid.values, valid.inputs, strict=True))
        models = {"tensor": np.empty_like(inputs["src"]), "channel vector": inputs["mean"]}
        ports = zip(call.fields, call.target.schema.outputs, strict=True)
        return helpers.Guarded(*(models[p.kind] for name, p in ports if name in call.results))

    def _out(self, call: Call, guard: helpers.Guarded, inputs: list[Any]) -> Any:
        """Return the argument `out`, with the fault of the call."""
        schema, buffers = call.target.schema, iter(guard.buffers)
        out: list[Any] = [next(buffers) if n in call.results else None for n in call.fields]
        names = [port.name for port in schema.inputs]
        for i, port in enumerate(schema.outputs):
            if call.out == "in place" and port.in_place:
                out[i] = inputs[names.index(port.in_place)]
        if call.fault and (change := FAULTS[call.fault].change_out):
            out = change(out, inputs)
        self._writes(*(array for array in out if array is not None))
        out = [self.convert(array) for array in out]
        return schema.result._make(out) if len(out) == len(schema.outputs) else tuple(out)


class Twin(NumPy):
    """The base class of doors whose results have the bits of those of NumPy's arrays."""

    limit = 60
    has_words = False
    same_bits = EVERY_OPERATOR
    threads = "They are tested with NumPy's arrays."


class DLPack(Twin):
    """Arrays of a library that supports DLPack."""

    name = "dlpack"
    options: Mapping[str, Any] = {"backend": "auto"}

    def convert(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype not in helpers.NUMPY.values():
            return array  # with a fault
        return dlpack.Foreign(array, flags=0 if array.flags.writeable else dlpack.READ_ONLY)


class TorchTensor(Twin):
    """PyTorch's tensors, in calls of the operators' classes."""

    name = "torch_tensor"
    library = "torch"

    def convert(self, array: Any) -> Any:
        return arrays.to_torch(array) if isinstance(array, np.ndarray) else array


class Parts(Door):
    """The methods reduce and apply, on three parts of the batch."""

    name = "parts"
    has_words = True

    def unsupported(self, call: Call) -> str:
        return "" if call.target.reduce_inputs else "The class has no method reduce."

    def run(self, call: Call) -> dict[str, Any]:
        operator, ports = call.operator, call.target.schema.inputs
        parts = [
            [
                array[where] if port.kind == "tensor" and isinstance(array, np.ndarray) else array
                for port, array in zip(ports, call.inputs, strict=True)
            ]
            for where in (slice(1), slice(1, 4), slice(4, None))
        ]
        totals = sum(operator.reduce(*part[: call.target.reduce_inputs]) for part in parts)
        results = [call.named(operator.apply(totals, *part)) for part in parts]
        kinds = dict(zip(call.fields, call.target.schema.outputs, strict=True))
        whole = dict(results[-1])
        for name in whole:
            if kinds[name].kind == "tensor":
                whole[name] = np.concatenate([result[name] for result in results])
        return whole

    def operations(self, call: Call) -> list[str]:
        return [call.target.cls.__name__] * 6


class OneDNN(NumPy):
    """oneDNN's kernels."""

    name = "onednn"
    backend = "onednn"
    limit = 50  # each call compiles a graph
    has_words = False
    options: Mapping[str, Any] = {"backend": "onednn"}
    threads = "The order of oneDNN's sums depends on the number of threads."

    def unsupported(self, call: Call) -> str:
        if call.target.broadcast:
            return "oneDNN has no op for frozen statistics."
        if call.activation and call.is_forward and call.activation.name not in ACTIVATION_KINDS:
            return "oneDNN has no op for the activation."
        if call.activation and not call.is_forward:
            if call.activation.name != "relu":
                return "The gradient with oneDNN's op for the activation is not implemented."
            if call.omits("dst"):
                return "oneDNN's ReLUBackward needs dst."
        return ""

    def runs_here(self, call: Call) -> bool:
        return helpers.runs("onednn", call.dtype)


class Graph(OneDNN):
    """Compiled graphs of the operators."""

    name = "graph"
    limit = 10
    has_words = True
    has_options = False
    accepted: Mapping[str, str] = {"residual and dst are given": "The graph has one of them."}

    def unsupported(self, call: Call) -> str:
        if call.problem.endswith("with gaps"):
            return "Tensors of graphs are dense."
        if call.problem in EMPTY:
            return "oneDNN does not write the statistics of empty tensors."
        if not hasattr(call.target.cls, "graph"):
            return "The class has no method graph."
        return super().unsupported(call)

    def run(self, call: Call) -> dict[str, Any]:
        graph, names = self._graph(call), [port.name for port in call.target.schema.inputs]
        inputs = {n: a for n, a in zip(names, call.inputs, strict=True) if n in graph.inputs}
        results = graph.repaired().compile()(**inputs)
        ports = zip(call.fields, call.target.schema.outputs, strict=True)
        return {name: results[port.name] for name, port in ports if port.name in results}

    def operations(self, call: Call) -> list[str]:
        return [" + ".join(op.kind for op in self._graph(call).ops)]

    def _graph(self, call: Call) -> Any:
        """Return the graph of a valid call."""
        valid = replace(call, fault="")
        spec = onedsl.TensorSpec.of(valid.values["src"])
        options = inspect.signature(call.target.cls.graph).parameters
        given = {n: a is not None for n, a in valid.values.items() if n in options}
        return call.operator.graph(spec, stats_dtype=call.stats, **given)
