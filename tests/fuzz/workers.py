"""Children that make the calls and may die of them, and who looks after them."""

from __future__ import annotations

import collections
import os
import queue
import select
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence

CORPUS = (-1, 1)
"""A range of seeds that stands for the past faults."""


def make_calls(first: int, count: int) -> None:
    """Make calls, and say before each which it is: nobody else could, if it kills this process."""
    from fuzz import judge
    from fuzz.corpus import FAULTS

    if (first, count) == CORPUS:
        for fault in FAULTS:
            _make(fault.__name__, lambda fault=fault: fault() or "corpus")
        return
    for seed in range(first, first + count):
        _make(str(seed), lambda seed=seed: judge.check(seed))


def _make(name: str, call: Callable[[], str]) -> None:
    print("at", name, flush=True)
    try:
        word = call()
    except Exception as error:
        print("found", f"{name}: {' '.join(repr(error).split())[:1500]}", flush=True)
        word = "wrong"
    print("did", word, flush=True)


class Worker(threading.Thread):
    """Takes ranges of seeds and has a child run each, another one from where one has died."""

    def __init__(
        self,
        ranges: queue.SimpleQueue[tuple[int, int]],
        command: Sequence[str],
        seconds_a_call: float = 120,
    ) -> None:
        """Take the command of a child, which is given a range's first seed and count."""
        super().__init__()
        self._ranges, self._command, self._seconds = ranges, command, seconds_a_call
        self.words: collections.Counter[str] = collections.Counter()
        self.found: list[str] = []

    def run(self) -> None:
        """Go on until there are no ranges left."""
        while True:
            try:
                first, count = self._ranges.get_nowait()
            except queue.Empty:
                return
            end = first + count
            while first < end:
                first = self._run_child(first, end - first)

    def _run_child(self, first: int, count: int) -> int:
        """Run one child, and give the seed to go on from."""
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                [*self._command, str(first), str(count)],
                stdout=subprocess.PIPE,
                stderr=errors,
                # With more threads than cores, waiting ones are not to keep the others from work.
                env=os.environ | {"OMP_WAIT_POLICY": "passive", "PYTHONFAULTHANDLER": "1"},
            ) as child,
        ):
            at, how = "the start", ""
            for line in self._lines(child):
                kind, _, text = line.partition(" ")
                if kind == "at":
                    at = text
                elif kind == "did":
                    self.words[text] += 1
                elif kind == "found":
                    self._report(text)
                else:
                    how = "a hang"
            how = how or (f"death with {child.wait()}" if child.wait() else "")
            if not how:
                return first + count
            errors.seek(0)
            self._report(f"{at}: {how}\n{errors.read()[:3000].decode()}")
            return int(at) + 1 if at.isdigit() else first + count

    def _lines(self, child: subprocess.Popen[bytes]) -> Iterator[str]:
        """Give what a child says; it is killed when it says nothing for too long."""
        assert child.stdout is not None
        pending = b""
        while select.select([child.stdout], [], [], self._seconds)[0]:
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            yield from (line.decode() for line in lines)
        child.kill()
        yield "hung"

    def _report(self, text: str) -> None:
        self.found.append(text)
        print(text, flush=True)
