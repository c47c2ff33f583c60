"""A fuzzer of the operators: right and wrong calls of every class, in processes that may die.

    python tests/fuzz --calls 1000000

The faults of the past come first. Then each call is drawn from a number, its seed, and judged:
right calls by the formulas in float64 and by their bits on other threads and elsewhere in memory,
wrong ones by a refusal in words that has written nothing. What is found is printed with its seed,
and `--seed N --calls 1` does it again.
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
sys.path[0] = str(HERE.parent)  # as a folder that is run, this one is there itself

from fuzz.workers import CORPUS, Worker, make_calls  # noqa: E402

PER_CHILD = 5000


def main() -> int:
    """Do what the command line says, and give the exit status: 1 if anything was found."""
    parser = argparse.ArgumentParser(
        prog="python tests/fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--torch", action="store_true", help="with PyTorch's tensors too")
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
    for first in range(options.seed, end, PER_CHILD):
        ranges.put((first, min(PER_CHILD, end - first)))
    torch = ["--torch"] if options.torch else []
    command = [sys.executable, "-W", "error", str(HERE), *torch, "--child"]
    start = time.monotonic()
    workers = [Worker(ranges, command) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    words = sum((worker.words for worker in workers), collections.Counter())
    found = sum(len(worker.found) for worker in workers)
    calls = words.total() - words["corpus"]
    came = ", ".join(f"{count} {word}" for word, count in words.most_common())
    seconds = time.monotonic() - start
    print(f"{calls} calls from seed {options.seed} in {seconds:.0f} s ({came}); found: {found}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
