"""Compares the bits of random calls over thread counts, addresses, passes and in-place calls.

    PYTHONPATH=tests OMP_WAIT_POLICY=passive python tests/programs/same_bits.py 10000

Command line: number of calls, and the seed of the first (0). Prints how many differed. The calls
are those of the fuzzer, with larger tensors.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any

import numpy as np
from fuzz import arrays, judge
from fuzz.case import Case, is_dense, random_case


def random_call(rng: np.random.Generator) -> Case:
    """Draw a valid call of the native kernels, sometimes with infinities and NaN.

    Parts of a batch have other bits than the whole.
    """
    while True:
        case = random_case(rng)
        if not case.mutations and case.mode != "in parts":
            break
    case.options["backend"] = "native"
    for value in case.inputs[:2]:
        if isinstance(value, np.ndarray) and value.flags.writeable and arrays.one_in(rng, 4):
            arrays.insert_special_values(rng, value)
    return case


def elsewhere(rng: np.random.Generator, value: Any) -> Any:
    """Return a copy of a dense array at another address, or the value."""
    if isinstance(value, np.ndarray) and value.flags.aligned and is_dense(value):
        return arrays.shifted_copy(rng, value)
    return value


def bits(result: Any) -> list[bytes]:
    """Return the bits of the results. All NaN count as equal: the compiler chooses their bits."""
    results = [arrays.to_numpy(array) for array in result if array is not None]
    return [np.where(np.isnan(a), a.dtype.type(np.nan), a).tobytes() for a in results]


def differs(seed: int) -> bool:
    rng = np.random.default_rng(seed)
    case = random_call(rng)
    plain = dataclasses.replace(case, out=None, guard=None, mode="direct")
    expected = bits(judge.run(plain, 1))
    calls = []
    for threads in judge.THREADS[1:]:
        moved = [elsewhere(rng, value) for value in case.inputs]
        calls.append((dataclasses.replace(plain, inputs=moved), threads))
    calls.append((case, int(rng.choice(judge.THREADS))))  # the last one, because it may be in place
    for call, threads in calls:
        if bits(judge.run(call, threads)) != expected:
            print(f"seed {seed}, {threads} threads: {call}")
            return True
    return False


def main(calls: int, first: int = 0) -> None:
    warnings.simplefilter("ignore")
    with np.errstate(all="ignore"):
        found = sum(differs(seed) for seed in range(first, first + calls))
    print(f"{calls} problems, {found} with other bits")
    sys.exit(found > 0)


if __name__ == "__main__":
    arrays.MAX_ELEMENTS = arrays.MAX_LARGE_ELEMENTS = 1 << 19
    arrays.SIZES = [1, 3, 8, 16, 17, 33, 64, 130, 511, 1024, 4099]
    main(*map(int, sys.argv[1:]))
