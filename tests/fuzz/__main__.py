"""Fuzzer of the operators: random valid and invalid calls of every class, in child processes.

    python tests/fuzz --calls 1000000

The corpus of past bugs runs first. A number, the seed, determines each call. Results of valid
calls are compared with float64 formulas, and bit by bit with those on other threads and at other
addresses. Invalid calls must raise a suitable error and write nothing. Each violation is printed
with its seed; `--seed N --calls 1` repeats it. The exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import collections
import os
import queue
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # Python puts this folder there, but the package is `fuzz`

from fuzz.workers import CORPUS, Worker, make_calls  # noqa: E402

CALLS_PER_CHILD = 5000


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python tests/fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--torch", action="store_true", help="also use PyTorch tensors")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.torch:
            from fuzz import arrays

            arrays.use_torch()
        make_calls(*options.child)
        return 0

    ranges: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    ranges.put(CORPUS)
    end = options.seed + options.calls
    for first in range(options.seed, end, CALLS_PER_CHILD):
        ranges.put((first, min(CALLS_PER_CHILD, end - first)))
    torch = ["--torch"] if options.torch else []
    command = [sys.executable, "-W", "error", str(HERE), *torch, "--child"]
    start = time.monotonic()
    workers = [Worker(ranges, command) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    outcomes = sum((worker.outcomes for worker in workers), collections.Counter())
    violations = sum(len(worker.violations) for worker in workers)
    calls = outcomes.total() - outcomes["corpus"]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    seconds = time.monotonic() - start
    print(f"{calls} calls from seed {options.seed} in {seconds:.0f} s ({counts})")
    print(f"violations: {violations}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
