"""Random problems on any number of threads, in place, elsewhere in memory: always the same bits.

    PYTHONPATH=tests OMP_WAIT_POLICY=passive python tests/programs/same_bits.py 10000

Command line: number of problems, and the seed of the first (0). Prints how many differed.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import helpers
import numpy as np
import threadpoolctl

import onedsl

THREADS = [1, 2, 3, 4, 7, 16]
MOST_ELEMENTS = 1 << 19
OPENMP = threadpoolctl.ThreadpoolController().select(user_api="openmp").lib_controllers

# Every tensor is a piece of it: fresh numbers would cost more than the calls.
NUMBERS = np.random.default_rng(0).standard_normal(4 * MOST_ELEMENTS)
POOL = {name: NUMBERS.astype(dtype) for name, dtype in helpers.NUMPY.items()}


def some(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    start = int(rng.integers(3 * MOST_ELEMENTS))
    return POOL[dtype][start : start + math.prod(shape)].reshape(shape)


def random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    left = int(2 ** rng.uniform(6, math.log2(MOST_ELEMENTS)))
    sizes = []
    for _ in range(int(rng.integers(2, 6)) - 1):
        size = int(2 ** rng.uniform(0, math.log2(left) * 0.8)) if left > 1 else 1
        sizes.append(min(size, left) // 8 * 8 if rng.integers(3) == 0 and size >= 8 else size)
        left //= sizes[-1]
    sizes.append(max(1, left))
    return tuple(sizes[i] for i in rng.permutation(len(sizes)))


def problem(rng: np.random.Generator) -> tuple[Any, list[np.ndarray]]:
    """Draw an operator, and inputs for it."""
    shape = random_shape(rng)
    if rng.integers(3) == 0:
        op: Any = onedsl.BatchNormalizationGrad(1e-3)
        dtype = stats = ("f32", "f16")[rng.integers(2)]
        kept = tuple(n if rng.integers(2) else 1 for n in shape)
    else:
        data_format = helpers.FORMATS[rng.integers(2)]
        op = onedsl.BatchNormTrainingBackward(1e-3, data_format)
        dtype, stats = helpers.TYPES[rng.integers(len(helpers.TYPES))]
        kept = (shape[-1 if data_format == "NXC" else 1],)
    mean, variance, gamma = (some(rng, stats, kept) for _ in range(3))
    tensors = [some(rng, dtype, shape), some(rng, dtype, shape)]
    if len(kept) == 1 and rng.integers(3) == 0:  # in another order in memory
        order = rng.permutation(len(shape))
        back = np.argsort(order)
        tensors = [np.ascontiguousarray(a.transpose(order)).transpose(back) for a in tensors]
    return op, [*tensors, mean, abs(variance), gamma]


def shifted(array: np.ndarray, items: int) -> np.ndarray:
    memory = np.empty(array.nbytes + items * array.itemsize, np.uint8)[items * array.itemsize :]
    copy = np.lib.stride_tricks.as_strided(memory.view(array.dtype), array.shape, array.strides)
    copy[...] = array
    return copy


def bits(result: Any) -> list[bytes]:
    return [array.tobytes() for array in result]


def differs(seed: int) -> bool:
    rng = np.random.default_rng(seed)
    op, inputs = problem(rng)
    wanted = None
    for threads in THREADS:
        for library in OPENMP:
            library.set_num_threads(threads)
        src, diff_dst, *statistics = inputs
        out = None
        if wanted is not None and rng.integers(2):
            src, diff_dst = (shifted(a, int(rng.integers(64))) for a in (src, diff_dst))
            if rng.integers(2):
                out = (diff_dst, *(np.empty_like(statistics[0]) for _ in range(2)))
        got = bits(op(src, diff_dst, *statistics, out=out))
        if wanted not in (None, got):
            print(f"seed {seed}: {op}, {src.dtype} {src.shape} by {src.strides}, {threads} threads")
            return True
        wanted = got
    return False


def main(problems: int, first: int = 0) -> None:
    found = sum(differs(seed) for seed in range(first, first + problems))
    print(f"{problems} problems, {found} with other bits")
    sys.exit(found > 0)


main(*map(int, sys.argv[1:]))
