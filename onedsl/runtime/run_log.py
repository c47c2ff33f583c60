"""What runs, told to those who listen."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .. import _core

_LOG = logging.getLogger("onedsl")
_LOCK = threading.Lock()
_LISTENERS: list[Callable[[Run], object]] = []


class Run(NamedTuple):
    """One plan's run."""

    operation: str
    dtype: str
    geometry: tuple[int, int, int]
    """The tensor as its memory lies: outer, channels, inner."""
    backend: str
    implementation: str
    num_threads: int
    seconds: float
    printed: str
    """oneDNN's own lines."""

    @property
    def kernels(self) -> list[str]:
        """What oneDNN calls the kernels that it ran, as ``bnorm_jit:avx512_core``."""
        return re.findall(r"exec,cpu,[^,]+,([^,]+),", self.printed)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.geometry))
        kernels = "".join(f", {kernel}" for kernel in self.kernels)
        return (
            f"{self.operation} {self.dtype} {shape} (outer x channels x inner): "
            f"{self.implementation}{kernels}, {self.num_threads} threads, "
            f"{self.seconds * 1e6:.1f} us"
        )


@contextlib.contextmanager
def log_runs_to(listener: Callable[[Run], object]) -> Iterator[None]:
    """Have a function called with each `Run`, whichever thread it is of."""
    with _LOCK:
        _LISTENERS.append(listener)
        _core.enable_logging(True)
    try:
        yield
    finally:
        with _LOCK:
            _LISTENERS.remove(listener)
            _core.enable_logging(bool(_LISTENERS))


def tell(
    operation: str, dtype: _core.DataType, geometry: tuple[int, int, int], *rest: str | int | float
) -> None:
    """Tell all listeners of a run; the core calls this."""
    run = Run(operation, dtype.name, geometry, *rest)  # type: ignore[arg-type]
    for listener in tuple(_LISTENERS):
        listener(run)


@contextlib.contextmanager
def verbose() -> Iterator[None]:
    """Have every call logged in this scope: what ran, with which kernel, and how long it took.

    The logger is ``onedsl``: a line at level INFO for each run of a plan, of whichever thread, and
    oneDNN's own lines at level DEBUG. In this scope it lets INFO through, and writes to stderr if
    the program has set up no logging. Outside of it, calls pay for one look at a flag.

    oneDNN knows no place for its lines but C's stdout, which goes elsewhere while oneDNN runs.
    What other threads print in that moment is printed afterwards. If ONEDNN_VERBOSE is set, it
    decides which lines there are, else those of ``ONEDNN_VERBOSE=1``.

    Examples
    --------
    >>> with onedsl.verbose():
    ...     grads = op(src, diff_dst, mean, variance, gamma)  # doctest: +SKIP
    BatchNormTrainingBackward f32 100352x64x1 (outer x channels x inner): onedsl two-pass kernel, avx512, 2 threads, 1640.2 us
    """  # noqa: E501 - a line of output
    with contextlib.ExitStack() as undo:
        if not _LOG.isEnabledFor(logging.INFO):
            undo.callback(_LOG.setLevel, _LOG.level)
            _LOG.setLevel(logging.INFO)
        if not _LOG.hasHandlers():
            handler = logging.StreamHandler()
            _LOG.addHandler(handler)
            undo.callback(_LOG.removeHandler, handler)
        undo.enter_context(log_runs_to(_log))
        yield


def _log(run: Run) -> None:
    _LOG.info("%s", run)
    for line in run.printed.splitlines():
        _LOG.debug("%s", line)
