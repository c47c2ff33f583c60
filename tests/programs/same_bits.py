"""Compares the bits of random calls over thread counts, addresses, passes and in-place calls.

    PYTHONPATH=tests OMP_WAIT_POLICY=passive python tests/programs/same_bits.py 10000

The calls are those of the fuzzer. Each one is repeated on copies of its arrays that end or begin at
inaccessible pages, so a kernel that accesses memory beyond an array crashes. The program prints
each call before it starts. Every 20th has larger tensors, and of these every tenth has tensors that
are large enough for non-temporal stores.

Command line: number of calls, and the seed of the first (0).
"""

import ctypes
import dataclasses
import mmap
import sys
import warnings
from typing import Any

import numpy as np
from fuzz import arrays, judge
from fuzz.case import Case, is_dense, random_case

SMALL = (arrays.MAX_ELEMENTS, arrays.SIZES)
LARGE = (1 << 19, [1, 3, 8, 16, 17, 33, 64, 130, 511, 1024, 4099])
LARGEST = (1 << 22, [67, 1024, 4099])
PROT_NONE = 0
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def random_call(rng: np.random.Generator) -> Case:
    """Draw a valid call of the native kernels, sometimes with infinities and NaN.

    Parts of a batch have other bits than the whole.
    """
    while True:
        case = random_case(rng)
        if not case.mutations and case.mode != "in parts":
            break
    case.options["backend"] = "auto"
    for value in case.inputs[:2]:
        if isinstance(value, np.ndarray) and value.flags.writeable and arrays.one_in(rng, 4):
            arrays.insert_special_values(rng, value)
    return case


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


def bits(result: Any) -> list[bytes]:
    """Return the bits of the results. All NaN count as equal: the compiler chooses their bits."""
    results = [arrays.to_numpy(array) for array in result if array is not None]
    return [np.where(np.isnan(a), a.dtype.type(np.nan), a).tobytes() for a in results]


def check(seed: int) -> None:
    """Make the random call that a seed determines, and repeat it."""
    is_large = seed % 20 == 19
    sizes = SMALL if not is_large else LARGEST if seed % 200 == 199 else LARGE
    arrays.MAX_ELEMENTS, arrays.SIZES = sizes
    arrays.MAX_LARGE_ELEMENTS = max(arrays.MAX_ELEMENTS, 60_000)
    rng = np.random.default_rng(seed)
    case = random_call(rng)
    plain = dataclasses.replace(case, out=None, guard=None, mode="direct")
    results = [None if a is None else arrays.to_numpy(a) for a in judge.run(plain, 1)]
    expected = bits(results)

    def repeat(call: Case, threads: int, side: str) -> None:
        print(f"seed {seed}, {threads} threads, guard page at the {side}: {call}", flush=True)
        assert bits(judge.run(call, threads)) == expected, "the results have other bits"

    for threads in judge.THREADS[1:] if is_large else []:
        moved = [guarded(value, "end") for value in case.inputs]
        repeat(dataclasses.replace(plain, inputs=moved), threads, "end")
    for side in ("end", "start"):
        inputs = {id(value): guarded(value, side) for value in case.inputs}
        out = [None if result is None else guarded(result, side) for result in results]
        for i, member in enumerate(case.out or results):
            if inputs.get(id(member), member) is not member:  # in place
                out[i] = inputs[id(member)]
        moved = [inputs[id(value)] for value in case.inputs]
        call = dataclasses.replace(case, inputs=moved, out=tuple(out), guard=None)
        repeat(call, int(rng.choice(judge.THREADS)), side)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    calls, first = map(int, [*sys.argv[1:], 0][:2])
    with np.errstate(all="ignore"):
        for number in range(first, first + calls):
            check(number)
    print(f"{calls} calls have the same bits")
