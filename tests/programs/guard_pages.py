"""Repeats random calls on arrays next to inaccessible pages.

Every NumPy array ends or begins at such a page, so a kernel that accesses memory beyond an array
crashes. The results must have the bits of those on ordinary arrays. The program prints each call
before it starts. Every 200th call has tensors that are large enough for non-temporal stores.

Command line: number of calls, and the seed of the first (0).
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import sys
import warnings
from typing import Any

import numpy as np
from fuzz import arrays, judge
from fuzz.case import is_dense
from same_bits import bits, random_call

SIZES = {False: (3000, arrays.SIZES), True: (1 << 22, [67, 1024, 4099])}
PROT_NONE = 0
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(value: Any, side: str) -> Any:
    """Return a copy of a dense array without accessible memory before its start or after its end.

    Return other values as they are.
    """
    if not (isinstance(value, np.ndarray) and value.flags.aligned and is_dense(value)):
        return value
    page = mmap.PAGESIZE
    size = -(-max(value.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (address, address + page + size):
        if _mprotect(guard, page, PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page + (0 if side == "start" else size - value.nbytes)
    strides = np.empty_like(value, order="K").strides
    copy = np.ndarray(value.shape, value.dtype, memory, offset, strides)
    copy[...] = value
    return copy


def check(seed: int) -> None:
    arrays.MAX_ELEMENTS, arrays.SIZES = SIZES[seed % 200 == 199]
    case = random_call(np.random.default_rng(seed))
    plain = dataclasses.replace(case, out=None, guard=None, mode="direct")
    results = [None if a is None else arrays.to_numpy(a) for a in judge.run(plain)]
    expected = bits(results)
    members = case.out or results
    for side in ("end", "start"):
        print(f"seed {seed}, guard page at the {side}: {case}", flush=True)
        moved = {id(value): guarded(value, side) for value in case.inputs}
        out = [None if result is None else guarded(result, side) for result in results]
        for i, member in enumerate(members):
            if moved.get(id(member), member) is not member:  # in place
                out[i] = moved[id(member)]
        inputs = [moved[id(value)] for value in case.inputs]
        got = judge.run(dataclasses.replace(case, inputs=inputs, out=tuple(out), guard=None))
        assert bits(got) == expected, "the results have other bits"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    calls, first = map(int, [*sys.argv[1:], 0][:2])
    with np.errstate(all="ignore"):
        for number in range(first, first + calls):
            check(number)
    print("done")
