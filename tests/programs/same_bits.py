"""Compares the bits of random problems over thread counts, addresses and in-place calls.

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

FORWARD = onedsl.BatchNormForwardTraining, onedsl.BatchNormReLUForwardTraining
THREADS = [1, 2, 3, 4, 7, 16]
MOST_ELEMENTS = 1 << 19
OPENMP = threadpoolctl.ThreadpoolController().select(user_api="openmp").lib_controllers

# Every tensor is a slice of it, because drawing new numbers would take longer than the calls.
NUMBERS = np.random.default_rng(0).standard_normal(4 * MOST_ELEMENTS)
# The last quarter contains a few infinities and NaN.
NUMBERS[3 * MOST_ELEMENTS :: 9973] = np.resize([np.inf, -np.inf, np.nan, -np.nan], 53)
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


def layer(rng: np.random.Generator) -> tuple[Any, list[np.ndarray]]:
    """Draw an operator of the forward pass or with a ReLU, and its inputs, starting with src."""
    shape = random_shape(rng)
    data_format = helpers.FORMATS[rng.integers(2)]
    dtype, stats = helpers.TYPES[rng.integers(len(helpers.TYPES))]
    channels = (shape[-1 if data_format == "NXC" else 1],)
    src, diff_dst, other = (some(rng, dtype, shape) for _ in range(3))
    mean, variance, gamma, beta = (some(rng, stats, channels) for _ in range(4))
    vectors = [mean, abs(variance), gamma, beta]
    clip = (None, 1.0)[rng.integers(2)]
    last = [other][: rng.integers(2)]  # a residual, or dst for the mask
    match rng.integers(3):
        case 0:
            op: Any = onedsl.BatchNormForwardTraining(1e-3, data_format=data_format)
            return op, [src, *vectors]
        case 1:
            op = onedsl.BatchNormReLUForwardTraining(1e-3, data_format=data_format, clip=clip)
            return op, [src, *vectors, *last]
    op = onedsl.BatchNormReLUTrainingBackward(1e-3, data_format=data_format, clip=clip)
    return op, [src, diff_dst, *vectors, *last]


def problem(rng: np.random.Generator) -> tuple[Any, list[np.ndarray]]:
    """Draw an operator and its inputs."""
    if rng.integers(2):
        return layer(rng)
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


def in_passes(op: Any, inputs: list[np.ndarray], out: Any, threads: int) -> Any:
    """Run `reduce` on the current number of threads, and `apply` on another."""
    totals = op.reduce(*inputs[: 1 if isinstance(op, FORWARD) else 4])
    for library in OPENMP:
        library.set_num_threads(threads)
    return op.apply(totals, *inputs, out=out)


def bits(result: Any) -> list[bytes]:
    """Return the bits of the results. All NaN count as equal: the compiler chooses their bits."""
    arrays = [array for array in result if array is not None]
    return [np.where(np.isnan(a), a.dtype.type(np.nan), a).tobytes() for a in arrays]


def differs(seed: int) -> bool:
    rng = np.random.default_rng(seed)
    op, inputs = problem(rng)
    expected = results = None
    for threads in THREADS:
        for library in OPENMP:
            library.set_num_threads(threads)
        given, out = inputs, None
        if expected is not None and rng.integers(2):
            tensor = inputs[0].shape
            items = int(rng.integers(64))
            given = [shifted(a, items) if a.shape == tensor else a for a in inputs]
            if rng.integers(2):
                # The first result may use the memory of src, or of diff_dst in a backward pass.
                over = given[0 if isinstance(op, FORWARD) else 1]
                out = (over, *(None if a is None else np.empty_like(a) for a in results[1:]))
        if hasattr(op, "reduce") and rng.integers(2):
            results = in_passes(op, given, out, int(rng.choice(THREADS)))
        else:
            results = op(*given, out=out)
        got = bits(results)
        if expected not in (None, got):
            src = inputs[0]
            print(f"seed {seed}: {op}, {src.dtype} {src.shape} by {src.strides}, {threads} threads")
            return True
        expected = got
    return False


def main(problems: int, first: int = 0) -> None:
    found = sum(differs(seed) for seed in range(first, first + problems))
    print(f"{problems} problems, {found} with other bits")
    sys.exit(found > 0)


main(*map(int, sys.argv[1:]))
