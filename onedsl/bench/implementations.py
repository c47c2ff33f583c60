"""The calls that are timed: onedsl's kernels, oneDNN's, PyTorch's, and the triad."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .. import TensorSpec, UnsupportedError, _core
from ..tensors.arrays import aligned_like
from ..tensors.dtypes import DTYPES
from ..testing import Problem
from .cases import OPERATIONS, Case
from .memory import EPSILON, Array, Memory, memory

Call = Callable[[], Any]

ALLOCATING = " (allocating)"
"""Suffix of an implementation's name, for a call that allocates its results."""

TRIAD = "triad"
BACKENDS: dict[str, Literal["native", "onednn"]] = {"onedsl": "native", "oneDNN": "onednn"}
MOMENTUM = 0.1


def implementations(case: Case, problem: Problem) -> dict[str, Call]:
    """Return the calls of all implementations and the triad, by name.

    onedsl, oneDNN if it supports the case, and PyTorch if it is installed have two calls each. One
    writes to given memory, which is out of cache. One allocates its results, often in memory that
    is still in cache.
    """
    tensors = memory(case, problem)
    triad = triad_call(tensors, uses_non_temporal_stores(case))
    return onedsl_calls(case, tensors) | pytorch_calls(case, tensors) | {TRIAD: triad}


def _compile(case: Case, backend: Literal["native", "onednn"]) -> Any:
    operation = OPERATIONS[case.operation]
    op = operation.operator(epsilon=EPSILON, data_format=case.data_format)
    spec = TensorSpec(case.tensor_shape, DTYPES[case.dtype])
    options = dict.fromkeys(operation.options, True)
    return op.compile(spec, **options, backend=backend)


def uses_non_temporal_stores(case: Case) -> bool:
    """Return whether onedsl's kernel writes the case's results with non-temporal stores."""
    info = _compile(case, "native")._core.kernel_info
    return info is not None and bool(info["non_temporal"])


def onedsl_calls(case: Case, tensors: Memory) -> dict[str, Call]:
    """Return the calls of onedsl's kernels, and of oneDNN's if it supports the case.

    A chain has no call that allocates, because the next layer reads the results.
    """
    operation = OPERATIONS[case.operation]
    number_of_outputs = len(operation.operator._schema.outputs)

    def arguments(layer: Mapping[str, Array]) -> tuple[Sequence[Any], Sequence[Any]]:
        arrays = {**tensors.vectors, **layer}
        out = [arrays[name] for name in operation.outputs]
        inputs = [arrays[name] for name in operation.inputs]
        return inputs, out + [None] * (number_of_outputs - len(out))

    prepared = [[arguments(layer) for layer in copy] for copy in tensors.copies]

    def call(compiled: Any) -> Any:
        for inputs, outputs in prepared[next(tensors.next_copy)]:
            results = compiled(*inputs, out=outputs)
        return results

    def call_allocating(compiled: Any) -> Any:
        ((inputs, _),) = prepared[next(tensors.next_copy)]
        return compiled(*inputs)

    calls: dict[str, Call] = {}
    for name, backend in BACKENDS.items():
        try:
            compiled = _compile(case, backend)
        except UnsupportedError:
            continue
        calls[name] = functools.partial(call, compiled)
        if operation.layers == 1:
            calls[name + ALLOCATING] = functools.partial(call_allocating, compiled)
    return calls


def triad_call(tensors: Memory, non_temporal: bool) -> Call:
    """Return a call of the triad ``out = a + 2 * b`` on the case's inputs.

    `out` is separate memory, with one copy for each copy of the inputs, so it is out of cache too.
    """

    def words(array: Array) -> Array:
        flat = array.reshape(-1).view(np.uint8)
        return flat[: flat.size // 16 * 16].view(np.float32)

    arguments = []
    for copy in tensors.copies:
        a, b, *_ = copy[0].values()
        arguments.append((words(aligned_like(a)), words(a), words(b)))

    def call() -> None:
        _core.triad(*arguments[next(tensors.next_copy)], non_temporal)

    return call


def pytorch_calls(case: Case, tensors: Memory) -> dict[str, Call]:
    """Return the calls of PyTorch's own kernels on the same memory, none without PyTorch.

    PyTorch runs one kernel for each of batch norm, addition and ReLU, in place where models do so.
    """
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {}

    def tensor(array: Array) -> Any:
        if array.dtype == DTYPES["bf16"]:
            result = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            result = torch.from_numpy(array)
        if array.ndim > 2 and case.data_format == "NXC":
            if array.ndim == 3:  # PyTorch's channels_last needs rank 4
                result = result.unsqueeze(1)
            result = result.movedim(-1, 1)
        return result

    copies = [
        [{name: tensor(array) for name, array in layer.items()} for layer in copy]
        for copy in tensors.copies
    ]
    kernels = _PyTorchKernels(
        torch, {name: torch.from_numpy(array) for name, array in tensors.vectors.items()}
    )
    method = case.operation.replace("-", "_").removeprefix("add_").replace("chain", "backward")

    def call(run_layer: Callable[[Mapping[str, Any]], Any]) -> Any:
        for layer in copies[next(tensors.next_copy)]:
            results = run_layer(layer)
        return results

    calls: dict[str, Call] = {"PyTorch": functools.partial(call, getattr(kernels, f"{method}_out"))}
    if OPERATIONS[case.operation].layers == 1:
        calls["PyTorch" + ALLOCATING] = functools.partial(call, getattr(kernels, method))
    return calls


class _PyTorchKernels:
    """PyTorch's kernels for each operation, on one layer's tensors."""

    def __init__(self, torch: Any, vectors: Mapping[str, Any]) -> None:
        aten = torch.ops.aten
        self._normalize, self._gradient = aten.native_batch_norm, aten.native_batch_norm_backward
        self._mask = aten.threshold_backward
        v = vectors
        running = v["mean"].clone(), v["variance"].clone()
        self._training = (v["gamma"], v["beta"], *running, True, MOMENTUM, EPSILON)
        invstd = (v["variance"] + EPSILON).rsqrt()
        self._saved = (v["gamma"], None, None, v["mean"], invstd, True, EPSILON, [True] * 3)
        self._sums = tuple(torch.empty_like(v["mean"]) for _ in range(2))

    def forward(self, t: Mapping[str, Any]) -> Any:
        return self._normalize(t["src"], *self._training)

    def forward_out(self, t: Mapping[str, Any]) -> Any:
        sums = {"save_mean": self._sums[0], "save_invstd": self._sums[1]}
        return self._normalize.out(t["src"], *self._training, out=t["dst"], **sums)

    def backward(self, t: Mapping[str, Any]) -> Any:
        return self._gradient(t["diff_dst"], t["src"], *self._saved)

    def backward_out(self, t: Mapping[str, Any]) -> Any:
        return self._gradient_into(t["diff_src"], t["diff_dst"], t)

    def _gradient_into(self, diff_src: Any, diff_dst: Any, t: Mapping[str, Any]) -> Any:
        sums = {"out1": self._sums[0], "out2": self._sums[1]}
        return self._gradient.out(diff_dst, t["src"], *self._saved, out0=diff_src, **sums)

    def relu_forward(self, t: Mapping[str, Any]) -> Any:
        return self._add_and_relu(self.forward(t), t)

    def relu_forward_out(self, t: Mapping[str, Any]) -> Any:
        return self._add_and_relu(self.forward_out(t), t)

    def _add_and_relu(self, normalized: Any, t: Mapping[str, Any]) -> Any:
        dst = normalized[0]
        if "residual" in t:
            dst.add_(t["residual"])
        return (dst.relu_(), *normalized[1:])

    def relu_backward(self, t: Mapping[str, Any]) -> Any:
        masked = self._mask(t["diff_dst"], t["dst"], 0)
        return (*self._gradient(masked, t["src"], *self._saved), masked)

    def relu_backward_out(self, t: Mapping[str, Any]) -> Any:
        masked = t.get("diff_residual", t["diff_src"])
        self._mask.grad_input(t["diff_dst"], t["dst"], 0, grad_input=masked)
        return (*self._gradient_into(t["diff_src"], masked, t), masked)
