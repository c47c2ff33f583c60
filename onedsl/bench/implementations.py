"""Who is timed: onedsl's kernels, oneDNN's, and PyTorch's, on the same memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .. import TensorSpec, UnsupportedError, _core
from ..testing import Problem
from .cases import NEW, Case
from .memory import EPSILON, Array, Memory, memory
from .operations import OPERATIONS
from .torch_calls import torch_calls

Call = Callable[[], Any]
"""Computes the results, and gives them back."""

TRIAD = "triad"
BACKENDS: dict[str, Literal["native", "onednn"]] = {"onedsl": "native", "oneDNN": "onednn"}


def implementations(case: Case, problem: Problem) -> dict[str, Call]:
    """Make every contender's call, and the triad's, which says what the memory gives.

    onedsl, oneDNN where it can run, and PyTorch where it is installed, with two calls each: one is
    given its results, which nobody finds in the cache, and one allocates them, often where the last
    ones were.
    """
    taken = memory(case, problem)
    return onedsl_calls(case, taken) | torch_calls(case, taken) | {TRIAD: triad_call(taken)}


def onedsl_calls(case: Case, taken: Memory) -> dict[str, Call]:
    """Make the calls of onedsl's own kernels, and of oneDNN where it can run the type.

    A chain's are given their results, which the next layer reads.
    """
    operation = OPERATIONS[case.operation]
    op = operation.operator(epsilon=EPSILON, data_format=case.data_format)
    spec = TensorSpec.of(taken.copies[0][0]["src"])
    options = dict.fromkeys(operation.options, True)

    outputs = len(op._schema.outputs)

    def arguments(layer: Mapping[str, Array]) -> tuple[Sequence[Any], Sequence[Any]]:
        given = {**taken.vectors, **layer}
        out = [given[name] for name in operation.outputs]
        return [given[name] for name in operation.inputs], out + [None] * (outputs - len(out))

    prepared = [[arguments(layer) for layer in one] for one in taken.copies]

    def call(compiled: Any) -> Any:
        for inputs, outputs in prepared[next(taken.turns)]:
            results = compiled(*inputs, out=outputs)
        return results

    def call_new(compiled: Any) -> Any:
        ((inputs, _),) = prepared[next(taken.turns)]
        return compiled(*inputs)

    calls: dict[str, Call] = {}
    for name, backend in BACKENDS.items():
        try:
            compiled = op.compile(spec, **options, backend=backend)
        except UnsupportedError:
            continue
        calls[name] = functools.partial(call, compiled)
        if operation.layers == 1:
            calls[name + NEW] = functools.partial(call_new, compiled)
    return calls


def triad_call(taken: Memory) -> Call:
    """Make a call of the triad on as many bytes as three tensors of the case."""

    def words(array: Array) -> Array:
        flat = array.reshape(-1).view(np.uint8)
        return flat[: flat.size // 16 * 16].view(np.float32)

    # The case's own inputs, and an output of nobody: results are not overwritten.
    out = words(np.empty_like(taken.copies[0][0]["src"]))
    inputs = [tuple(map(words, list(one[0].values())[:2])) for one in taken.copies]

    def call() -> None:
        _core.triad(out, *inputs[next(taken.turns)])

    return call
