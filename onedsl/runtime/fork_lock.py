"""A lock that survives forks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from types import TracebackType


class ForkLock:
    """A reentrant lock that a fork waits for, so that it is free in the child.

    If a signal handler raises during that wait, the child does not have the thread that holds the
    lock. It then gets a new lock, and calls `abandoned`.
    """

    def __init__(self, abandoned: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.RLock()
        self._abandoned = abandoned
        os.register_at_fork(
            before=lambda: self._lock.acquire(),  # noqa: PLW0108 - the lock may be another one
            after_in_parent=self._after_in_parent,
            after_in_child=self._after_in_child,
        )

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def _after_in_parent(self) -> None:
        with contextlib.suppress(RuntimeError):  # the wait was interrupted
            self._lock.release()

    def _after_in_child(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # another thread holds it, which is not in this process
            self._lock = threading.RLock()
            self._abandoned()
