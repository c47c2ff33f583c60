"""Tensors of a case, and the float64 results of the first call on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import DataFormat, _core, testing
from ..tensors.arrays import aligned_like
from ..tensors.dtypes import DTYPES
from ..testing import Problem
from .cases import OPERATIONS, Case

Array = npt.NDArray[Any]

EPSILON = 1e-5
MAX_COPIES = 16


class Memory(NamedTuple):
    """Copies of a case's tensors that together exceed the last-level cache.

    Every call, of any implementation, uses the next copy, so that no call finds its tensors in
    cache.

    Attributes
    ----------
    copies : sequence of sequence of mapping of str to array
        For each copy, the large tensors of each layer by name.
    vectors : mapping of str to array
        Arrays of one value per channel, shared by all copies.
    next_copy : iterator of int
        Index of the copy that the next call uses.
    """

    copies: Sequence[Sequence[Mapping[str, Array]]]
    vectors: Mapping[str, Array]
    next_copy: Iterator[int]


def random_problem(case: Case) -> Problem:
    """Return random inputs of a case. mean and variance are not computed from src."""
    rng = np.random.default_rng(0)
    src = rng.standard_normal(case.tensor_shape, dtype=np.float32).astype(DTYPES[case.dtype])
    mean, variance, gamma = rng.uniform(0.5, 1.5, (3, case.shape[1])).astype(np.float32)
    return Problem(src, src[::-1].copy(), mean, variance, gamma)


def memory(case: Case, problem: Problem) -> Memory:
    """Copy a problem's tensors, and allocate the other tensors of the case's operation."""
    operation = OPERATIONS[case.operation]
    vectors = problem._asdict()
    arrays = {name: vectors.pop(name) for name in ("src", "diff_dst")}
    vectors["beta"] = (problem.gamma / 8).astype(problem.gamma.dtype)
    small_outputs = set(operation.outputs) - set(operation.large)
    vectors |= {name: np.empty_like(problem.mean) for name in small_outputs}
    if "residual" in operation.inputs:
        arrays["residual"] = np.roll(problem.src, 1)
    names = operation.large + operation.only_pytorch
    if "dst" in names and "dst" not in operation.outputs:
        arrays["dst"] = _relu_dst(problem, vectors["beta"], case.data_format)
    number = copies_beyond_cache(operation.layers * len(names) * problem.src.nbytes)

    def layers() -> Iterator[Mapping[str, Array]]:
        written = None
        for _ in range(operation.layers):
            layer = {name: _aligned_copy(arrays.get(name, problem.src)) for name in names}
            if written is not None:
                layer["diff_dst"] = written
            written = layer[operation.outputs[0]]
            yield layer

    copies = [list(layers()) for _ in range(number)]
    return Memory(copies, vectors, itertools.cycle(range(number)))


def copies_beyond_cache(bytes_of_one: int) -> int:
    """Return the number of copies that fill twice the last-level cache, at most `MAX_COPIES`."""
    number = math.ceil(2 * _core.last_cache_bytes() / max(bytes_of_one, 1))
    return min(max(number, 1), MAX_COPIES)


def _aligned_copy(array: Array) -> Array:
    """Copy an array to memory aligned to a cache line, as PyTorch and JAX align tensors."""
    copy = aligned_like(array)
    copy[...] = array
    return copy


def _relu_dst(problem: Problem, beta: Array, data_format: str) -> Array:
    """Compute the result of the forward pass with ReLU in float32."""
    per_channel = DataFormat(data_format).statistics_shape_beside(problem.src.shape)
    scale = problem.gamma / np.sqrt(problem.variance + np.float32(EPSILON))
    mean, scale, beta = (v.reshape(per_channel) for v in (problem.mean, scale, beta))
    dst = (problem.src.astype(np.float32) - mean) * scale + beta
    return np.maximum(dst, 0).astype(problem.src.dtype)


def expected(case: Case, tensors: Memory) -> dict[str, Array]:
    """Compute the float64 results of a call on the first copy of the tensors.

    The result maps names of outputs to arrays. For a forward pass, it contains only dst. For a
    chain, it contains the results of the last layer.
    """
    options: dict[str, Any] = {"epsilon": EPSILON, "data_format": case.data_format}
    results: dict[str, Array] = {}
    for layer in tensors.copies[0]:
        inputs = {**tensors.vectors, **layer}
        if results:  # the previous layer of a chain rounded its result
            inputs["diff_dst"] = results["diff_src"].astype(layer["src"].dtype)
        results = _expected_of_layer(case.operation, inputs, options)
    return results


def _expected_of_layer(
    operation: str, inputs: Mapping[str, Array], options: Mapping[str, Any]
) -> dict[str, Array]:
    src, gamma, beta = inputs["src"], inputs["gamma"], inputs["beta"]
    if operation.endswith("forward"):
        dst = testing.batch_norm(src, gamma, beta, **options)
        if "residual" in OPERATIONS[operation].inputs:
            dst = dst + inputs["residual"].astype(np.float64)
        return {"dst": np.maximum(dst, 0) if "relu" in operation else dst}
    arguments = src, inputs["diff_dst"], inputs["mean"], inputs["variance"], gamma
    if "relu" not in operation:
        return testing.batch_norm_backward(*arguments, **options)._asdict()
    gradients = testing.batch_norm_relu_backward(*arguments, dst=inputs["dst"], **options)._asdict()
    return {name: gradients[name] for name in OPERATIONS[operation].outputs}
