"""Times the training steps of a script that runs in this process, for ``--compare``."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ._report import report

WARM_UP = 3
"""How many steps of a process are not timed."""
MIN_STEPS = WARM_UP + 2


class Run(NamedTuple):
    """What a timed run has found."""

    seconds: float
    """Of a step, the median."""
    faults: float
    """Page faults of a step, the median."""
    steps: int
    """How many steps all optimizers made."""
    is_complete: bool
    """Whether the run was ended, because it had made all steps. Otherwise the script ended."""
    num_threads: int
    is_by_onedsl: bool
    """Whether onedsl computed a batch norm."""
    summary: str


def read_run(file: Path) -> Run | None:
    """Return what a `StepTimer` has written, or None if the script made no steps that are timed."""
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return Run(*found) if found else None


class StepTimer:
    """Times the steps from now on, ends the process after enough of them, and writes a file.

    The script calls the steps, so they are not timed as `onedsl.bench.time_calls` times calls. A
    step is the time between two calls of ``step`` of the same optimizer. The optimizers may change
    or alternate: the steps of all are one list. A forked process that makes steps is timed like its
    parent.

    Parameters
    ----------
    file : Path
        The file for the `Run`. It is written once, before the process ends.
    seconds, steps : float
        The process ends so long after its first step, or after so many steps.
    """

    def __init__(self, file: Path, seconds: float, steps: float) -> None:
        self._file, self._seconds, self._steps = file, seconds, steps
        self._exit: Callable[[int], NoReturn] = os._exit
        self._restart()
        os.register_at_fork(after_in_child=self._restart)
        register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._write, is_complete=False)
        # No exit handler runs before these.
        os._exit = self._written_before(os._exit)
        os.execv, os.execve = self._instead_of(os.execv), self._instead_of(os.execve)
        self._process = os.getpid()

    def _restart(self) -> None:
        self._lock = threading.RLock()  # new in a forked child, which does not have other threads
        self._count, self._begin, self._is_written = 0, 0.0, False
        # Time and page faults at the last step. Weak, because each fold of a cross-validation may
        # have a model and an optimizer of its own.
        self._last: WeakKeyDictionary[torch.optim.Optimizer, tuple[float, int]]
        self._last = WeakKeyDictionary()
        self._times: list[float] = []
        self._faults: list[int] = []
        self._summary: report | None = None

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        now = time.perf_counter()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with self._lock:
            if self._is_written:  # the script continues after SystemExit, or in other threads
                self._exit(0)
            self._count += 1
            if self._count == 1:
                self._begin, self._summary = now, report(_trained_by(optimizer))
            elif self._count == WARM_UP + 1 and self._summary:
                self._summary.__exit__()
            elif self._count >= MIN_STEPS and optimizer in self._last:
                before, faults_before = self._last[optimizer]
                self._times.append(now - before)
                self._faults.append(faults - faults_before)
            self._last[optimizer] = now, faults
            is_last = self._count >= self._steps or now - self._begin > self._seconds
            if self._count >= MIN_STEPS and is_last:
                self._write(is_complete=True)
                if threading.current_thread() is not threading.main_thread():
                    self._exit(0)  # SystemExit ends the main thread only
                sys.exit()

    def _write(self, *, is_complete: bool) -> None:
        """Write the file, unless this process has written it or made no step."""
        with self._lock:
            if self._is_written or self._count == 0:
                return
            found = None
            if self._times:
                counters = self._summary.calls().values() if self._summary else ()
                found = Run(
                    statistics.median(self._times),
                    statistics.median(self._faults),
                    self._count,
                    is_complete,
                    torch.get_num_threads(),
                    any(what.startswith("onedsl") for counts in counters for what in counts),
                    str(self._summary),
                )
            # The other process reads the file as soon as it exists.
            part = self._file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(found), encoding="utf-8")
            part.replace(self._file)
            self._is_written = True  # last, because a signal handler may make a step meanwhile

    def _written_before(self, function: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Return a function of `os` that ends the process, preceded by writing the file."""

        def write_and_end(*arguments: Any, **options: Any) -> NoReturn:
            self._write(is_complete=False)
            function(*arguments, **options)

        return write_and_end

    def _instead_of(self, execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Return a function that ends the process where it would become another program."""

        def end(*arguments: Any, **options: Any) -> NoReturn:
            if os.getpid() != self._process:  # a forked process starts a program
                execute(*arguments, **options)
            self._write(is_complete=True)
            if not self._times:
                sys.stderr.write(
                    "--compare cannot time a script whose process becomes another program by "
                    "os.exec: compare that program\n"
                )
                sys.stderr.flush()
            self._exit(0 if self._times else 1)

        return end


def _trained_by(optimizer: torch.optim.Optimizer) -> nn.Module:
    """Return the models whose parameters an optimizer trains."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = []
    for module in gc.get_objects():
        if issubclass(type(module), nn.Module):
            with contextlib.suppress(Exception):  # for example, one without super().__init__()
                found.append((module, list(module.parameters()), list(module.children())))
    inner = {id(child) for _, _, children in found for child in children}
    models = [
        module
        for module, owned, _ in found
        if id(module) not in inner and any(id(p) in trained for p in owned)
    ]
    return models[0] if len(models) == 1 else nn.ModuleList(models)
