"""What the implementations' calls work on, the same for all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import DataFormat, _core
from ..tensors.arrays import aligned_like
from ..testing import Problem
from .cases import Case
from .operations import OPERATIONS

Array = npt.NDArray[Any]

EPSILON = 1e-5
MAX_COPIES = 16


class Memory(NamedTuple):
    """Copies of a case's large tensors, and whose turn it is.

    All copies together are more than the last cache holds. Every call, of whichever contender,
    takes the next ones, so that nobody finds its tensors in the cache.
    """

    copies: Sequence[Sequence[Mapping[str, Array]]]
    """Each the layers of one call: what one writes, the next one reads."""
    vectors: Mapping[str, Array]
    """Those of one value a channel, for all copies."""
    turns: Iterator[int]


def memory(case: Case, problem: Problem) -> Memory:
    """Copy a problem's tensors, and make those that a case's operation has beside them."""
    operation = OPERATIONS[case.operation]
    vectors = problem._asdict()
    arrays = {name: vectors.pop(name) for name in ("src", "diff_dst")}
    vectors["beta"] = (problem.gamma / 8).astype(problem.gamma.dtype)
    results = set(operation.outputs) - set(operation.large)
    vectors |= {name: np.empty_like(problem.mean) for name in results}
    if "residual" in operation.inputs:
        arrays["residual"] = np.roll(problem.src, 1)
    names = operation.large + operation.needed_by_others
    if "dst" in names and "dst" not in operation.outputs:
        arrays["dst"] = _relu_dst(problem, vectors["beta"], case.data_format)
    bytes_of_all = operation.layers * len(names) * problem.src.nbytes
    number = copies_past_the_cache(bytes_of_all)

    def layers() -> Iterator[Mapping[str, Array]]:
        written = None
        for _ in range(operation.layers):
            layer = {name: _copy(arrays.get(name, problem.src)) for name in names}
            if written is not None:
                layer["diff_dst"] = written
            written = layer[operation.outputs[0]]
            yield layer

    copies = [list(layers()) for _ in range(number)]
    return Memory(copies, vectors, itertools.cycle(range(number)))


def copies_past_the_cache(bytes_of_one: int) -> int:
    """Count the copies that are more than the last cache holds, within reason."""
    number = math.ceil(2 * _core.last_cache_bytes() / max(bytes_of_one, 1))
    return min(max(number, 1), MAX_COPIES)


def _copy(array: Array) -> Array:
    """Copy to where a line of the cache begins, as tensors of PyTorch and JAX do."""
    copy = aligned_like(array)
    copy[...] = array
    return copy


def _relu_dst(problem: Problem, beta: Array, data_format: str) -> Array:
    """Give what the forward pass of batch norm with ReLU gave, about."""
    per_channel = DataFormat(data_format).statistics_shape_beside(problem.src.shape)
    scale = problem.gamma / np.sqrt(problem.variance + np.float32(EPSILON))
    mean, scale, beta = (v.reshape(per_channel) for v in (problem.mean, scale, beta))
    dst = (problem.src.astype(np.float32) - mean) * scale + beta
    return np.maximum(dst, 0).astype(problem.src.dtype)
