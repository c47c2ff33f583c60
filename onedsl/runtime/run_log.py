"""Run logging: one stream of records of runs of the kernels and of compiled graphs."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, NamedTuple

from .. import _core

_logger = logging.getLogger("onedsl")


class RunRecord(NamedTuple):
    """One run of onedsl's kernels or of a compiled graph."""

    operation: str
    dtype: str
    geometry: tuple[int, int, int]
    """The shape (outer, channels, inner) of src, viewed as a C-ordered array in memory order."""
    given: tuple[str, ...]
    """Names of the inputs that the call passed."""
    computed: tuple[str, ...]
    """Names of the outputs. Empty for the pass that computes totals."""
    implementation: str
    num_threads: int
    """How many threads had work. For a compiled graph, how many oneDNN may use."""
    seconds: float
    copied: tuple[str, ...] = ()
    """Names of the arrays of which copies were made, because of their memory layout."""

    def __str__(self) -> str:
        shape = "x".join(map(str, self.geometry))
        ports = f"{' '.join(self.given)} -> {' '.join(self.computed) or 'sums'}"
        copies = f", copied {' '.join(self.copied)}" if self.copied else ""
        return (
            f"{self.operation} {self.dtype} {shape} (outer x channels x inner), {ports}: "
            f"{self.implementation}, {self.num_threads} threads, {self.seconds * 1e6:.1f} us"
            f"{copies}"
        )


class CallRecord(NamedTuple):
    """One call of batch norm by PyTorch. Calls that onedsl computes are runs, too."""

    pass_: str
    """"forward" or "gradient"."""
    computed: str | None
    """What onedsl computed, or None."""
    reason: str | None
    """Why PyTorch's own kernel computes the call instead, or None."""
    shape: tuple[int, ...]
    """The shape of src."""
    addresses: list[int]
    """Addresses of the call's tensors, which identify the layer."""
    source: int
    """Address of the mean that a gradient gets, of the running mean that a forward pass gets. 0 if
    there is none."""
    results: list[int]
    """The address of a forward pass's mean, which is the source of its gradient."""

    @property
    def what(self) -> str:
        """What computed the call."""
        return self.computed or f"PyTorch, for {self.reason}"

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"PyTorch's own batch norm of {shape}: onedsl does not support {self.reason}"


Record = RunRecord | CallRecord

Subscription = _core.Subscription

subscribe = _core.subscribe
"""Pass all records to a function until the scope is closed or deleted: `with subscribe(function):`.

A function with several subscriptions gets each record once."""


def publish(record: Record, **changes: Any) -> None:
    """Pass a record, with some members changed, to all subscribers."""
    if subscribers := dict.fromkeys(_core.subscribers()):
        changed = record._replace(**changes)
        for subscriber in subscribers:
            subscriber(changed)


def record_run(*members: Any) -> None:
    """Publish a run of the kernels. The C++ core calls this while there are subscribers."""
    publish(RunRecord(*members))


def record_call(*members: Any) -> None:
    """Publish a call of PyTorch. The C++ core calls this while there are subscribers."""
    publish(CallRecord(*members))


_core.set_run_log(record_run, record_call)


def is_logged(logger: logging.Logger) -> bool:
    """Return whether a logger logs messages of level INFO, which `verbose` enables."""
    return _log in _core.subscribers() or logger.isEnabledFor(logging.INFO)


def info(logger: logging.Logger, message: str, *arguments: object) -> None:
    """Log at level INFO, with `verbose` whatever the logger's level is."""
    if _log not in _core.subscribers():
        logger.info(message, *arguments)
    elif logger.manager.disable < logging.INFO:
        record = logger.makeRecord(
            logger.name, logging.INFO, __file__, 0, message, arguments, None, "info"
        )
        # Not by handle(): logging.config's functions disable all loggers that exist, by default.
        if not logger.filter(record):
            return
        if logger.hasHandlers():
            logger.callHandlers(record)
        elif logging.lastResort and not getattr(sys.stderr, "closed", True):
            logging.lastResort.handle(record)


def _log(record: Record) -> None:
    """Log a run, or that PyTorch's own kernel computes a call."""
    if isinstance(record, RunRecord) or record.reason is not None:
        info(_logger, "%s", record)


def verbose() -> Subscription:
    """Log operator, ports, implementation, threads and time of every run from now on.

    Every run is logged once, whichever thread calls it. The logger is ``onedsl`` and the level is
    INFO, which this function enables, also if logging.config has disabled the logger. The logger
    writes to stderr if the program has not configured logging. Its handlers run inside the call. In
    a call of PyTorch, autograd is off there, also in signal handlers that run meanwhile.

    The environment variable ``ONEDSL_VERBOSE=1`` does the same in every process that inherits it,
    workers and ranks included, from ``import onedsl`` on. Other values have no effect.

    oneDNN's own verbose mode is independent of this: with the environment variable
    ``ONEDNN_VERBOSE=1``, oneDNN prints to stdout which kernels it runs.

    Returns
    -------
    Subscription
        A context manager: logging ends with the ``with`` block, or when its method ``close`` is
        called.

    Examples
    --------
    >>> with onedsl.verbose():
    ...     grads = op(src, diff_dst, mean, variance, gamma)  # doctest: +SKIP
    BatchNormTrainingBackward f32 100352x64x1 (outer x channels x inner), src diff_dst mean variance gamma -> diff_src diff_gamma diff_beta: onedsl two-pass kernel, avx512, 2 threads, 1640.2 us
    """  # noqa: E501 - a line of output
    scope = subscribe(_log)
    scope.until_closed = True  # the last step: an interrupt before it ends the subscription
    return scope


if os.environ.get("ONEDSL_VERBOSE") == "1":
    verbose()
