"""Fuzzer of the operators: random valid and invalid calls of every class, in child processes.

    python tests/fuzz --calls 1000000

A number, the seed, determines each call. The results of a valid call are compared with float64
formulas; programs/same_bits.py compares their bits. An invalid call must raise a suitable error and
write nothing. Each violation is printed with its seed; `--seed N --calls 1` repeats it. The exit
status is 1 if there are violations.
"""

import argparse
import collections
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # replaces this folder, so that `fuzz` can be imported as a package

from fuzz.workers import make_calls, run_children  # noqa: E402

CALLS_PER_CHILD = 1000


def main() -> int:
    """Run the fuzzer with the options of the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python tests/fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=20_000, help="number of calls")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first call")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="number of child processes"
    )
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from fuzz import judge

        make_calls(judge.check, *options.child)
        return 0

    command = [sys.executable, "-W", "error", str(HERE), "--child"]
    start, end = time.monotonic(), options.seed + options.calls

    def run(first: int) -> tuple[collections.Counter[str], int]:
        outcomes, found = run_children(command, first, min(CALLS_PER_CHILD, end - first))
        for violation in found:
            print(violation, flush=True)
        return outcomes, len(found)

    outcomes: collections.Counter[str] = collections.Counter()
    violations = 0
    with ThreadPoolExecutor(options.workers) as pool:
        for counted, found in pool.map(run, range(options.seed, end, CALLS_PER_CHILD)):
            outcomes += counted
            violations += found
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    seconds = time.monotonic() - start
    print(f"{outcomes.total()} calls from seed {options.seed} in {seconds:.0f} s ({counts})")
    print(f"violations: {violations}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
