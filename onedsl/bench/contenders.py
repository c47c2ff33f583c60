"""Who is timed: onedsl's kernels, oneDNN's, and PyTorch's, on the same memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import BatchNormTrainingBackward, DataFormat, TensorSpec, UnsupportedError, _core
from .._types import DTYPES
from ..testing import Problem

Array = npt.NDArray[Any]
Call = Callable[[], Any]
"""Computes the gradients, and gives them back."""

EPSILON = 1e-5
BACKENDS: dict[str, Literal["native", "onednn"]] = {"onedsl": "native", "oneDNN": "onednn"}
MAX_COPIES = 16


class Tensors(NamedTuple):
    """The large ones of a call."""

    src: Any
    diff_dst: Any
    diff_src: Any


class Rotation(NamedTuple):
    """Copies of a problem's tensors, and whose turn it is.

    All copies together are more than the last cache holds. Every call, of whichever contender,
    takes the next ones, so that nobody finds its tensors in the cache.
    """

    copies: Sequence[Tensors]
    turns: Iterator[int]


def rotation(problem: Problem) -> Rotation:
    """Copy a problem's tensors."""
    number = math.ceil(2 * _core.last_cache_bytes() / max(3 * problem.src.nbytes, 1))
    number = min(max(number, 1), MAX_COPIES)
    copies = [
        Tensors(problem.src.copy(), problem.diff_dst.copy(), np.ones_like(problem.src))
        for _ in range(number)
    ]
    return Rotation(copies, itertools.cycle(range(number)))


def contenders(problem: Problem, data_format: str) -> dict[str, Call]:
    """Make every contender's call: onedsl, oneDNN where it can run, PyTorch where it is installed.

    PyTorch comes with two calls: one allocates its results, and one is given them.
    """
    memory = rotation(problem)
    return onedsl_calls(problem, data_format, memory) | torch_calls(problem, data_format, memory)


def onedsl_calls(problem: Problem, data_format: str, memory: Rotation) -> dict[str, Call]:
    """Make the calls of onedsl's own kernels, and of oneDNN where it can run the type."""
    op = BatchNormTrainingBackward(EPSILON, DataFormat(data_format))
    vectors = problem.mean, problem.variance, problem.gamma
    sums = np.empty_like(problem.mean), np.empty_like(problem.mean)
    copies, turns = memory

    def call(compiled: Any) -> Any:
        src, diff_dst, diff_src = copies[next(turns)]
        return compiled(src, diff_dst, *vectors, out=(diff_src, *sums))

    calls: dict[str, Call] = {}
    for name, backend in BACKENDS.items():
        try:
            compiled = op.compile(TensorSpec.of(problem.src), backend=backend)
        except UnsupportedError:
            continue
        calls[name] = functools.partial(call, compiled)
    return calls


def torch_calls(problem: Problem, data_format: str, memory: Rotation) -> dict[str, Call]:
    """Make PyTorch's calls on the same memory, in the memory format that it has for it."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {}

    def tensor(array: Array) -> Any:
        if array.dtype == DTYPES["bf16"]:
            made = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            made = torch.from_numpy(array)
        if array.ndim > 2 and data_format == "NXC":
            if array.ndim == 3:  # torch's channels_last has rank 4
                made = made.unsqueeze(1)
            made = made.movedim(-1, 1)
        return made

    copies = [tuple(map(tensor, arrays)) for arrays in memory.copies]
    turns = memory.turns
    mean, variance, gamma = map(torch.from_numpy, problem[2:])
    invstd = (variance + EPSILON).rsqrt()
    sums = torch.empty_like(mean), torch.empty_like(mean)
    backward = torch.ops.aten.native_batch_norm_backward
    options = (gamma, None, None, mean, invstd, True, EPSILON, [True, True, True])

    def allocating() -> Any:
        src, diff_dst, _ = copies[next(turns)]
        return backward(diff_dst, src, *options)

    def preallocated() -> Any:
        src, diff_dst, diff_src = copies[next(turns)]
        return backward.out(diff_dst, src, *options, out0=diff_src, out1=sums[0], out2=sums[1])

    return {"torch": allocating, "torch out": preallocated}
