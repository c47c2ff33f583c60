"""The calls that are timed: onedsl's kernels, oneDNN's, PyTorch's, and triads."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import DataFormat, UnsupportedError, _core, testing
from ..tensors.arrays import aligned_like
from ..tensors.dtypes import DTYPES
from ..testing import Problem
from .cases import OPERATIONS, Case

Array = npt.NDArray[Any]
Call = Callable[[], Any]
Tensors = Mapping[str, Array]

# Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = {"PyTorch": "#8a8a8a", "oneDNN": "#0072B2", "onedsl": "#D55E00"}
"""Colors of the implementations in pictures."""
BACKENDS: dict[str, Literal["auto", "onednn"]] = {"onedsl": "auto", "oneDNN": "onednn"}
EPSILON = 1e-5
MAX_COPIES = 64
MOMENTUM = 0.1
TRIADS = {"triad": False, "triad (non-temporal)": True}
"""Whether the triad of this name uses non-temporal stores."""

ALLOCATING = " (allocating)"
"""Suffix of an implementation's name, for a call that allocates its results."""


def implementations(case: Case, problem: Problem | None = None) -> dict[str, Call]:
    """Return the calls of all implementations and the triads, by name.

    The implementations are onedsl, oneDNN if it supports the case, and PyTorch if it is installed.
    `problem` contains inputs in the case's data format, by default random ones. Every call uses the
    next of several copies of them.
    """
    copies = [onedsl_calls(case, t) | pytorch_calls(case, t) for t in memory(case, problem)]
    next_copy = itertools.cycle(copies)

    def call(name: str) -> Any:
        return next(next_copy)[name]()

    return {name: partial(call, name) for name in copies[0]}


def random_inputs(case: Case) -> Problem:
    """Return random inputs of a case. mean and variance are not computed from src."""
    rng = np.random.default_rng(0)
    src = rng.standard_normal(case.tensor_shape, dtype=np.float32).astype(DTYPES[case.dtype])
    statistics = rng.uniform(0.5, 1.5, (3, case.shape[-1])).astype(DTYPES[case.stats_dtype])
    return Problem(src, src[::-1].copy(), *statistics)


def memory(case: Case, problem: Problem | None = None) -> list[Tensors]:
    """Return copies of the tensors that the case needs, aligned to cache lines.

    They share the arrays of one value per channel.
    """
    operation = OPERATIONS[case.operation]
    problem = random_inputs(case) if problem is None else problem
    src, _, mean, variance, gamma = problem
    arrays = problem._asdict() | {"residual": np.roll(src, 1)}
    affine = {"mean": mean, "variance": variance, "gamma": gamma}
    affine["beta"] = (gamma / 8).astype(gamma.dtype)
    names = {"src", *operation.inputs}
    if case.operation.endswith("relu-backward"):  # PyTorch's kernels compute the mask from dst
        names.add("dst")
        data_format = DataFormat(case.data_format)
        dst = testing.batch_norm(src, **affine, epsilon=EPSILON, data_format=data_format)
        arrays["dst"] = np.maximum(dst, 0).astype(src.dtype)
    invstd = (1 / np.sqrt(variance + EPSILON)).astype(variance.dtype)
    running = {"running_mean": mean.copy(), "running_variance": variance.copy()}
    shared = affine | running | {"invstd": invstd}
    bytes_of_one = (len(names) + operation.written) * src.nbytes
    number = min(1 + 2 * _core.last_cache_bytes() // bytes_of_one, MAX_COPIES)
    return [shared | {name: _aligned_copy(arrays[name]) for name in names} for _ in range(number)]


def _aligned_copy(array: Array) -> Array:
    copy = aligned_like(array)
    copy[...] = array
    return copy


def onedsl_calls(case: Case, tensors: Tensors) -> dict[str, Call]:
    """Return the calls of onedsl's kernels, of oneDNN's if it supports the case, and the triads."""
    operation = OPERATIONS[case.operation]
    names = [*operation.inputs, "mean", "variance", "gamma"]
    names += [] if case.operation == "backward" else ["beta"]
    op = operation.operator(epsilon=EPSILON, data_format=case.data_format)
    run = partial(op, **{name: tensors[name] for name in names}, **operation.options)
    results = run()
    out = results._make(a if a is None else aligned_like(a) for a in results)
    arrays = _triad_arrays(tensors["src"])
    calls: dict[str, Call] = {
        name: partial(_core.triad, *arrays, non_temporal) for name, non_temporal in TRIADS.items()
    }
    for name, backend in BACKENDS.items():
        with contextlib.suppress(UnsupportedError):
            run(backend=backend)
            calls[name] = partial(run, backend=backend, out=out)
            calls[name + ALLOCATING] = partial(run, backend=backend)
    return calls


def _triad_arrays(src: Array) -> tuple[Array, Array, Array]:
    """Return the arrays of a triad ``out = a + 2 * b``: a is src, out and b are like it."""

    def words(array: Array) -> Array:
        flat = array.reshape(-1).view(np.uint8)
        return flat[: flat.size // 16 * 16].view(np.float32)

    return words(aligned_like(src)), words(src), words(_aligned_copy(src))


def pytorch_calls(case: Case, tensors: Tensors) -> dict[str, Call]:
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
    t = {name: tensor(array) for name, array in tensors.items()}
    src, relu = t["src"], "relu" in case.operation

    def forward(**out: Any) -> Any:
        function = aten.native_batch_norm.out if out else aten.native_batch_norm
        results = function(
            *(src, t["gamma"], t["beta"], t["running_mean"], t["running_variance"]),
            *(True, MOMENTUM, EPSILON),
            **out,
        )
        if "residual" in t:
            results[0].add_(t["residual"])
        if relu:
            results[0].relu_()
        return results

    def backward(**out: Any) -> Any:
        diff_dst = t["diff_dst"]
        if relu:
            function = aten.threshold_backward.grad_input if out else aten.threshold_backward
            diff_dst = function(diff_dst, t["dst"], 0, **out)
        # The variant of this op with given memory computes in new memory, and copies.
        saved = t["gamma"], None, None, t["mean"], t["invstd"], True, EPSILON, [True] * 3
        return (*aten.native_batch_norm_backward(diff_dst, src, *saved), diff_dst)

    if case.operation.endswith("forward"):
        sums = {name: torch.empty_like(t["mean"]) for name in ("save_mean", "save_invstd")}
        into = partial(forward, out=torch.empty_like(src), **sums)
        return {"PyTorch": into, "PyTorch" + ALLOCATING: forward}
    into = partial(backward, grad_input=torch.empty_like(src))
    return {"PyTorch": into, "PyTorch" + ALLOCATING: backward}
