"""Run logging: one record for each run of onedsl's kernels or of a compiled graph."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, NamedTuple

from .. import _core

_LOG = logging.getLogger("onedsl")
_LOCK = threading.RLock()


class RunRecord(NamedTuple):
    """One run of onedsl's kernels or of a compiled graph."""

    operation: str
    dtype: str
    geometry: tuple[int, int, int]
    """The shape (outer, channels, inner) of src, viewed as a C-ordered array in memory order."""
    given: tuple[str, ...]
    """Names of the inputs that the call passed."""
    computed: tuple[str, ...]
    """Names of the outputs. Empty for the pass that computes sums."""
    backend: str
    implementation: str
    num_threads: int
    seconds: float

    def __str__(self) -> str:
        shape = "x".join(map(str, self.geometry))
        ports = f"{' '.join(self.given)} -> {' '.join(self.computed) or 'sums'}"
        return (
            f"{self.operation} {self.dtype} {shape} (outer x channels x inner), {ports}: "
            f"{self.implementation}, {self.num_threads} threads, {self.seconds * 1e6:.1f} us"
        )


def record(
    operation: str, dtype: _core.DataType, geometry: tuple[int, int, int], *rest: Any
) -> None:
    """Log a run of the kernels. The C++ core calls this function while logging is enabled."""
    log(RunRecord(operation, dtype.name, geometry, *rest))


def log(run: RunRecord, **changes: Any) -> None:
    """Log a run with some members changed, if `verbose` is in effect."""
    if _scopes:
        _LOG.info("%s", run._replace(**changes))


def record_fallback(reason: str, shape: tuple[int, ...]) -> None:
    """Log that PyTorch's own kernel computes a call, and why, if `verbose` is in effect."""
    if _scopes:
        size = "x".join(map(str, shape))
        _LOG.info("PyTorch's own batch norm of %s: onedsl does not support %s", size, reason)


_core.set_run_log(record)


_settings = contextlib.ExitStack()  # undoes what the first of the open scopes changed
_scopes: list[contextlib.ExitStack] = []  # that `verbose` returned and that have not ended


def _end(scope: contextlib.ExitStack) -> None:
    with _LOCK:
        _scopes.remove(scope)
        if not _scopes:
            _settings.close()


def verbose() -> contextlib.ExitStack:
    """Log operator, ports, implementation, threads and time of every run from now on.

    Every run is logged once, whichever thread calls it. The logger is ``onedsl`` and the level is
    INFO, which this function enables. The logger writes to stderr if the program has not configured
    logging.

    oneDNN's own verbose mode is independent of this: with the environment variable
    ``ONEDNN_VERBOSE=1``, oneDNN prints to stdout which kernels it runs.

    Returns
    -------
    contextlib.ExitStack
        A context manager: logging ends with the ``with`` block, or when its method ``close`` is
        called.

    Examples
    --------
    >>> with onedsl.verbose():
    ...     grads = op(src, diff_dst, mean, variance, gamma)  # doctest: +SKIP
    BatchNormTrainingBackward f32 100352x64x1 (outer x channels x inner), src diff_dst mean variance gamma -> diff_src diff_gamma diff_beta: onedsl two-pass kernel, avx512, 2 threads, 1640.2 us
    """  # noqa: E501 - a line of output
    scope = contextlib.ExitStack()
    with _LOCK:
        scope.callback(_end, scope)
        _scopes.append(scope)
        if len(_scopes) > 1:
            return scope
        if not _LOG.isEnabledFor(logging.INFO):
            _settings.callback(_LOG.setLevel, _LOG.level)
            _LOG.setLevel(logging.INFO)
        if not _LOG.hasHandlers():
            handler = logging.StreamHandler()
            _LOG.addHandler(handler)
            _settings.callback(_LOG.removeHandler, handler)
        _settings.callback(_core.enable_logging, False)
        _core.enable_logging(True)
    return scope
