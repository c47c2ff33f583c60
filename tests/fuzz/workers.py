"""Child processes that make the calls and may crash, and threads that supervise them."""

from __future__ import annotations

import collections
import os
import queue
import select
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence


def make_calls(first: int, count: int) -> None:
    """Make the random calls of a range of seeds.

    Each seed is printed before the call, because the call may crash this process. After it, the
    outcome is printed, and a violation if it raised an error.
    """
    from fuzz import judge

    for seed in range(first, first + count):
        print("start", seed, flush=True)
        try:
            outcome = judge.check(seed)
        except Exception as error:
            print("violation", f"{seed}: {' '.join(repr(error).split())[:1500]}", flush=True)
            outcome = "wrong"
        print("done", outcome, flush=True)


class Worker(threading.Thread):
    """A thread that runs ranges of seeds in child processes, one after the other.

    If a child crashes, a new child runs the rest of its range.
    """

    def __init__(
        self,
        ranges: queue.SimpleQueue[tuple[int, int]],
        command: Sequence[str],
        timeout: float = 120,
    ) -> None:
        """Store the queue of ranges and the command line of a child.

        The first seed and the count of a range are added to the command line.
        """
        super().__init__()
        self._ranges, self._command, self._timeout = ranges, command, timeout
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.violations: list[str] = []

    def run(self) -> None:
        """Run ranges until the queue is empty."""
        while True:
            try:
                first, count = self._ranges.get_nowait()
            except queue.Empty:
                return
            end = first + count
            while first < end:
                first = self._run_child(first, end - first)

    def _run_child(self, first: int, count: int) -> int:
        """Run one child, and return the first seed that it did not run."""
        with (
            tempfile.TemporaryFile() as stderr,
            subprocess.Popen(
                [*self._command, str(first), str(count)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                # There are more threads than cores, so waiting threads must not spin.
                env=os.environ | {"OMP_WAIT_POLICY": "passive", "PYTHONFAULTHANDLER": "1"},
            ) as child,
        ):
            name, failure = "startup", ""
            for line in self._lines(child):
                kind, _, text = line.partition(" ")
                if kind == "start":
                    name = text
                elif kind == "done":
                    self.outcomes[text] += 1
                elif kind == "violation":
                    self._report(text)
                else:
                    failure = "timeout"
            status = child.wait()
            if not failure and not status:
                return first + count
            stderr.seek(0)
            failure = failure or f"exit status {status}"
            self._report(f"{name}: {failure}\n{stderr.read()[:3000].decode()}")
            return int(name) + 1 if name.isdigit() else first + count

    def _lines(self, child: subprocess.Popen[bytes]) -> Iterator[str]:
        """Yield the lines that a child prints. After a timeout, kill it and yield "timeout"."""
        assert child.stdout is not None
        pending = b""
        while select.select([child.stdout], [], [], self._timeout)[0]:
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            yield from (line.decode() for line in lines)
        child.kill()
        yield "timeout"

    def _report(self, text: str) -> None:
        """Print a violation and store it."""
        self.violations.append(text)
        print(text, flush=True)
