"""Child processes that make the calls, which may crash or hang."""

import collections
import faulthandler
import os
import subprocess
from collections.abc import Callable, Sequence

TIMEOUT = 120
"""Seconds after which a call counts as hanging. The child then ends with a traceback."""


def make_calls(check: Callable[[int], str], first: int, count: int) -> None:
    """Make the random calls of a range of seeds.

    Each seed is printed before the call, because the call may end this process. After it, the
    outcome that `check` returned is printed, and a violation if it raised an error.
    """
    for seed in range(first, first + count):
        print("start", seed, flush=True)
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        try:
            outcome = check(seed)
        except Exception as error:
            print("violation", f"{seed}: {' '.join(repr(error).split())[:1500]}", flush=True)
            outcome = "wrong"
        print("done", outcome, flush=True)
    faulthandler.cancel_dump_traceback_later()


def run_children(
    command: Sequence[str], first: int, count: int
) -> tuple[collections.Counter[str], list[str]]:
    """Run a range of seeds in a child process, and the rest of it in a new one after a crash.

    The first seed and the count are added to the command line. Return how many calls had which
    outcome, and the violations.
    """
    outcomes: collections.Counter[str] = collections.Counter()
    violations = []
    # There are more threads than cores, so waiting threads must not spin.
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "PYTHONFAULTHANDLER": "1"}
    end = first + count
    while first < end:
        child = subprocess.run(
            [*command, str(first), str(end - first)],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        name = "startup"
        for line in child.stdout.splitlines():
            kind, _, text = line.partition(" ")
            if kind == "start":
                name = text
            elif kind == "done":
                outcomes[text] += 1
            else:
                violations.append(text)
        first = end
        if child.returncode:
            violations.append(f"{name}: exit status {child.returncode}\n{child.stderr[:3000]}")
            first = int(name) + 1 if name.isdigit() else end
    return outcomes, violations
