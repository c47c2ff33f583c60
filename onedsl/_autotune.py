"""Choosing a backend by timing it."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core, _timing
from ._errors import UnsupportedError
from ._spec import TensorSpec

ROUNDS = 7


def fastest(
    make: Callable[[_core.Backend], _core.Compiled],
    spec: TensorSpec,
    statistics_: TensorSpec,
    gamma: bool,
) -> _core.Compiled:
    """Make both backends' plans, time them in turns, and give the faster."""
    candidates = []
    for choice in (_core.Backend.onednn, _core.Backend.native):
        try:
            candidates.append(make(choice))
        except UnsupportedError:
            continue
    if len(candidates) == 1 or 0 in spec.shape:
        return candidates[-1]

    src, diff_dst = ones(spec), ones(spec)
    vector = ones(statistics_)
    arguments = (src, diff_dst, vector, vector, vector if gamma else None)
    times: list[list[float]] = [[] for _ in candidates]
    for turn in range(ROUNDS):
        for candidate, samples in zip(candidates, times, strict=True):
            out = candidate.run(*arguments, None)  # wakes its threads, and touches the memory
            took = _timing.seconds(functools.partial(candidate.run, *arguments, out))
            if turn:
                samples.append(took)
    return min(zip(candidates, times, strict=True), key=lambda pair: statistics.median(pair[1]))[0]


def ones(spec: TensorSpec) -> npt.NDArray[Any]:
    """Make an array as a spec describes it."""
    slowest_first = sorted(range(len(spec.shape)), key=lambda axis: -spec.strides[axis])
    array = np.ones([spec.shape[axis] for axis in slowest_first], spec.numpy_dtype)
    return array.transpose(np.argsort(slowest_first))
