"""The calls that are timed: onedsl's kernels, oneDNN's, PyTorch's, and triads."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import DataFormat, UnsupportedError, _core, testing
from ..tensors.arrays import aligned_like
from ..tensors.dtypes import DTYPES
from ..testing import Problem
from .cases import OPERATIONS, Case

Array = npt.NDArray[Any]
Call = Callable[[], Any]

# Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = {"PyTorch": "#8a8a8a", "oneDNN": "#0072B2", "onedsl": "#D55E00"}
"""Colors of the implementations in pictures."""
BACKENDS: dict[str, Literal["native", "onednn"]] = {"onedsl": "native", "oneDNN": "onednn"}
EPSILON = 1e-5
MAX_COPIES = 64
MOMENTUM = 0.1
TRIADS = {"triad": False, "triad (non-temporal)": True}
"""Whether the triad of this name uses non-temporal stores."""
_VECTORS = ("mean", "variance", "gamma", "beta")

ALLOCATING = " (allocating)"
"""Suffix of an implementation's name, for a call that allocates its results."""


class Memory(NamedTuple):
    """Copies of a case's tensors that together exceed the last-level cache.

    Every call, of any implementation, uses the next copy, which is not in cache.
    """

    copies: Sequence[Mapping[str, Array]]
    """For each copy, the large tensors by name."""
    vectors: Mapping[str, Array]
    """Arrays of one value per channel, shared by all copies."""
    next_copy: Iterator[int]
    """Index of the copy that the next call uses."""

    def cycled(self, calls: Sequence[Call]) -> Call:
        """Return a call that runs one of the calls: that for the next copy."""

        def call() -> Any:
            return calls[next(self.next_copy)]()

        return call


def implementations(case: Case, problem: Problem | None = None) -> dict[str, Call]:
    """Return the calls of all implementations and the triads, by name.

    onedsl, oneDNN if it supports the case, and PyTorch if it is installed have two calls each. One
    writes to given memory, which is out of cache, where the library can. One allocates its results,
    often in memory that is still in cache. `problem` contains inputs in the case's data format, by
    default random ones.
    """
    tensors = memory(case, problem)
    return onedsl_calls(case, tensors) | pytorch_calls(case, tensors)


def random_problem(case: Case) -> Problem:
    """Return random inputs of a case. mean and variance are not computed from src."""
    rng = np.random.default_rng(0)
    src = rng.standard_normal(case.tensor_shape, dtype=np.float32).astype(DTYPES[case.dtype])
    statistics = rng.uniform(0.5, 1.5, (3, case.shape[-1])).astype(DTYPES[case.stats_dtype])
    return Problem(src, src[::-1].copy(), *statistics)


def memory(case: Case, problem: Problem | None = None) -> Memory:
    """Copy a problem's tensors, aligned to cache lines, and add those that the case needs."""
    operation = OPERATIONS[case.operation]
    problem = random_problem(case) if problem is None else problem
    arrays = problem._asdict()
    arrays["beta"] = (problem.gamma / 8).astype(problem.gamma.dtype)
    arrays["residual"] = np.roll(problem.src, 1)
    names = set(operation.inputs)
    if case.operation.endswith("relu-backward"):  # PyTorch's kernels compute the mask from dst
        names.add("dst")
        affine = {name: arrays[name] for name in ("src", *_VECTORS)}
        data_format = DataFormat(case.data_format)
        dst = testing.batch_norm(**affine, epsilon=EPSILON, data_format=data_format)
        arrays["dst"] = np.maximum(dst, 0).astype(problem.src.dtype)
    bytes_of_one = (len(names) + operation.written) * problem.src.nbytes
    number = min(1 + 2 * _core.last_cache_bytes() // bytes_of_one, MAX_COPIES)
    copies = [{name: _aligned_copy(arrays[name]) for name in names} for _ in range(number)]
    vectors = {name: arrays[name] for name in _VECTORS}
    return Memory(copies, vectors, itertools.cycle(range(number)))


def _aligned_copy(array: Array) -> Array:
    copy = aligned_like(array)
    copy[...] = array
    return copy


def onedsl_calls(case: Case, tensors: Memory) -> dict[str, Call]:
    """Return the calls of onedsl's kernels, of oneDNN's if it supports the case, and the triads."""
    operation = OPERATIONS[case.operation]
    op = partial(
        operation.operator(epsilon=EPSILON, data_format=case.data_format), **operation.options
    )
    vectors = _VECTORS[:3] if case.operation == "backward" else _VECTORS
    inputs = [
        {name: copy[name] for name in operation.inputs}
        | {name: tensors.vectors[name] for name in vectors}
        for copy in tensors.copies
    ]
    like = op(**inputs[0])
    results = [like._make(a if a is None else aligned_like(a) for a in like) for _ in inputs]
    arrays = [_triad_arrays(copy["src"]) for copy in tensors.copies]
    calls = {
        name: tensors.cycled([partial(_core.triad, *a, non_temporal) for a in arrays])
        for name, non_temporal in TRIADS.items()
    }
    for name, backend in BACKENDS.items():
        call = partial(op, backend=backend)
        with contextlib.suppress(UnsupportedError):
            call(**inputs[0])
            calls[name] = tensors.cycled(
                [partial(call, **a, out=out) for a, out in zip(inputs, results, strict=True)]
            )
            calls[name + ALLOCATING] = tensors.cycled([partial(call, **a) for a in inputs])
    return calls


def _triad_arrays(src: Array) -> tuple[Array, Array, Array]:
    """Return the arrays of a triad ``out = a + 2 * b``: a is src, out and b are like it."""

    def words(array: Array) -> Array:
        flat = array.reshape(-1).view(np.uint8)
        return flat[: flat.size // 16 * 16].view(np.float32)

    return words(aligned_like(src)), words(src), words(_aligned_copy(src))


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

    aten = torch.ops.aten
    v = {name: tensor(array) for name, array in tensors.vectors.items()}
    copies = [{name: tensor(array) for name, array in copy.items()} for copy in tensors.copies]
    sums = torch.empty_like(v["mean"]), torch.empty_like(v["mean"])
    running = v["mean"].clone(), v["variance"].clone()
    training = (v["gamma"], v["beta"], *running, True, MOMENTUM, EPSILON)
    invstd = (v["variance"] + EPSILON).rsqrt()
    saved = (v["gamma"], None, None, v["mean"], invstd, True, EPSILON, [True] * 3)

    def forward(t: Mapping[str, Any], out: Any = None) -> Any:
        if out is None:
            results = aten.native_batch_norm(t["src"], *training)
        else:
            results = aten.native_batch_norm.out(
                t["src"], *training, out=out, save_mean=sums[0], save_invstd=sums[1]
            )
        if "residual" in t:
            results[0].add_(t["residual"])
        if "relu" in case.operation:
            results[0].relu_()
        return results

    def backward(t: Mapping[str, Any], out: Any = None) -> Any:
        diff_dst = t["diff_dst"]
        if "relu" in case.operation and out is None:
            diff_dst = aten.threshold_backward(diff_dst, t["dst"], 0)
        elif "relu" in case.operation:
            diff_dst = aten.threshold_backward.grad_input(diff_dst, t["dst"], 0, grad_input=out)
        # The variant of this op with given memory computes in new memory, and copies.
        return (*aten.native_batch_norm_backward(diff_dst, t["src"], *saved), diff_dst)

    run = forward if case.operation.endswith("forward") else backward
    return {
        "PyTorch": tensors.cycled([partial(run, t, torch.empty_like(t["src"])) for t in copies]),
        "PyTorch" + ALLOCATING: tensors.cycled([partial(run, t) for t in copies]),
    }
