"""Arrays that end, or begin, where memory does.

Every input and output lies flush against a page that may not be touched. A kernel that reads or
writes beyond an array's end dies of it, so the runs have a process of their own (this file as a
script), which says beforehand what it is about to run.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import signal
from collections.abc import Iterator
from typing import Any

import helpers
import numpy as np
import pytest
from helpers import EPSILON
from test_isa import CAPS, environment

import onedsl
from onedsl import _core, testing

CHANNELS = [1, 3, 8, 17, 31, 64, 130]
INNER = [1, 3, 7, 17, 49, 100]
BATCHES = [1, 2, 9, 65]
MOST_ELEMENTS = 12_000

# What BatchNormalizationGrad's statistics keep of an input of rank 4.
KEPT = [(), (0,), (1,), (3,), (0, 1), (1, 3), (0, 2), (0, 1, 2, 3)]

_PROTECTED = 0  # PROT_NONE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(like: np.ndarray, side: str) -> np.ndarray:
    """Make an array of the same bytes: no byte of memory before its start, or behind its end."""
    page = mmap.PAGESIZE
    body = -(-max(like.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, body + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (address, address + page + body):
        if _mprotect(guard, page, _PROTECTED) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page if side == "start" else page + body - like.nbytes
    array = np.ndarray(like.shape, like.dtype, memory, offset)
    array[...] = like
    return array


def poisoned(like: np.ndarray, side: str) -> np.ndarray:
    return guarded(np.full_like(like, np.nan), side)


def shapes() -> Iterator[tuple[int, int, tuple[int, ...]]]:
    for batch, channels, inner in itertools.product(BATCHES, CHANNELS, INNER):
        if batch * channels * inner <= MOST_ELEMENTS:
            yield batch, channels, (inner,)
    for spatial in ((), (7, 7)):
        yield 33, 24, spatial


def large_shapes(itemsize: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """More than stays in the last cache: other stores are used there, and several threads."""
    elements = _core.last_cache_bytes() // 8 // itemsize
    for channels, inner in ((3, 3), (67, 7), (32, 49), (5, 4099), (1, elements)):
        yield math.ceil(elements / (channels * inner)), channels, (inner,)


def run(name: str, call: Any, inputs: tuple[np.ndarray, ...], wanted: Any, in_place: bool) -> None:
    """Run one call on guarded arrays of both sides, and compare."""
    for side in ("end", "start"):
        print(f"{name}, nothing at the {side}{', in place' if in_place else ''}", flush=True)
        src, diff_dst, *statistics = (guarded(array, side) for array in inputs)
        sums = poisoned(inputs[2], side), poisoned(inputs[2], side)
        out = (diff_dst if in_place else poisoned(src, side), *sums)
        call(src, diff_dst, *statistics, out=out)
        testing.assert_gradients_close(out, wanted)


def run_batch_statistics(dtype: str, stats: str, data_format: str) -> None:
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    itemsize = helpers.NUMPY[dtype].itemsize
    for sizes in itertools.chain(shapes(), large_shapes(itemsize)):
        shape = helpers.shape_of(data_format, *sizes)
        problem = testing.random_problem(shape, dtype, stats, data_format=data_format)
        # With one element a channel's own statistics, nothing but rounding would be left.
        moved = {
            name: (getattr(problem, name) + 1).astype(problem.mean.dtype)
            for name in ("mean", "variance")
        }
        problem = problem._replace(**moved)
        wanted = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)

        def call(*inputs: np.ndarray, out: Any) -> None:
            op(*inputs, out=out, backend="native")

        name = f"batch statistics, {dtype}/{stats}, {data_format}, {shape}"
        for in_place in (False, True):
            run(name, call, problem, wanted, in_place)


def run_frozen_statistics(dtype: str) -> None:
    op = onedsl.BatchNormalizationGrad(EPSILON)
    cases = [((9, 5, 6, 17), kept) for kept in KEPT]
    for batch, channels, spatial in itertools.chain(
        shapes(), large_shapes(helpers.NUMPY[dtype].itemsize)
    ):
        cases.append(((batch, channels, *spatial), (1,)))
        cases.append(((batch, *spatial, channels), (1 + len(spatial),)))
    rng = np.random.default_rng(0)
    for shape, kept in cases:
        small = [size if axis in kept else 1 for axis, size in enumerate(shape)]
        inputs = (
            rng.uniform(0.5, 1.5, shape),
            # Its sums are to stay in f16.
            rng.uniform(0.5, 1.5, shape) * min(1, 10_000 * math.prod(small) / math.prod(shape)),
            rng.uniform(-1, 0, small),
            *(rng.uniform(0.5, 1.5, small) for _ in range(2)),
        )
        narrow = tuple(array.astype(helpers.NUMPY[dtype]) for array in inputs)
        wanted = testing.batch_normalization_grad(*narrow, epsilon=EPSILON)
        for in_place in (False, True):
            run(f"frozen statistics, {dtype}, {shape}, {kept}", op, narrow, wanted, in_place)


FROZEN = "frozen"
WORK = [
    *((dtype, stats, form) for dtype, stats in helpers.TYPES for form in helpers.FORMATS),
    ("f32", FROZEN, ""),
    ("f16", FROZEN, ""),
]


@pytest.mark.parametrize("work", WORK, ids=lambda work: "-".join(filter(None, work)))
@pytest.mark.parametrize("cap", [cap for cap, *_ in CAPS])
def test_nothing_beyond_an_array_is_touched(cap, work):
    child = helpers.run_python(
        "-m",
        "test_guard_pages",
        *work,
        environment=environment(ONEDSL_MAX_CPU_ISA=cap),
        cwd=helpers.TESTS,
    )
    last = child.stdout.splitlines()[-1] if child.stdout else "nothing"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        pytest.fail(f"{name}: memory beyond an array was touched in {last}", pytrace=False)
    assert child.returncode == 0, f"in {last}:\n{child.stderr}"
    assert last == "done"


def main(dtype: str, stats: str, data_format: str = "") -> None:
    if stats == FROZEN:
        run_frozen_statistics(dtype)
    else:
        run_batch_statistics(dtype, stats, data_format)
    print("done")


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
