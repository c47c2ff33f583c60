"""Memory that malloc keeps for the next allocations."""

from __future__ import annotations

import logging
import os

from .. import _core
from . import run_log

_logger = logging.getLogger("onedsl")


def keep_memory(keep: bool = True) -> bool:
    """Let this process keep memory that it frees, for its next allocations.

    By default, glibc's malloc returns the memory of large arrays to the system when they are freed.
    A training step then takes all of its memory from the system again, page by page, whichever
    library computes it. After this call malloc keeps it, and a step has no page faults. In return,
    **the process stays as large as its peak**.

    The setting is for all threads and all libraries of the process that use malloc, among them
    NumPy, PyTorch and JAX. Processes that are forked later inherit it, those that are spawned do
    not. Call the function at the start of the program: threads that have allocated before may keep
    heaps of their own, which malloc returns to the system. In a program with many of them, new
    threads may use these, too.

    `onedsl.torch.enable` and ``python -m onedsl.torch`` call this function by default.

    Parameters
    ----------
    keep : bool, default True
        False returns to the system what is free, and later memory that is freed, too. malloc's
        thresholds then no longer adapt to the program, as they do without any call, and threads
        that share one heap continue to share it.

    Returns
    -------
    bool
        Whether the setting is in effect. False, and nothing has changed, if malloc is not glibc's
        (jemalloc, tcmalloc, mimalloc, musl), or if the user has set glibc's by a variable
        ``MALLOC_...`` or by ``glibc.malloc`` in ``GLIBC_TUNABLES``. The logger ``onedsl`` states
        the reason at level INFO.

    Notes
    -----
    These are three parameters of ``mallopt(3)``: ``M_MMAP_MAX = 0``, ``M_TRIM_THRESHOLD = -1`` and
    ``M_ARENA_MAX = 1``. A program without onedsl can set them by ``ctypes``, or by the environment
    variables ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=18446744073709551615 MALLOC_ARENA_MAX=1``.

    Examples
    --------
    >>> onedsl.keep_memory()  # doctest: +SKIP
    True
    """
    reason = _why_not()
    if not reason and not _core.keep_memory(keep):
        reason = "malloc rejects the setting"
    if reason:
        run_log.info(_logger, "keep_memory has no effect: %s", reason)
    return not reason


def _why_not() -> str:
    """Return why malloc's settings are left alone, or an empty string."""
    if not _core.malloc_is_glibcs():
        return "malloc is not glibc's"
    names = [name for name in os.environ if name.startswith("MALLOC_")]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        names.append("GLIBC_TUNABLES")
    return f"the environment sets {', '.join(names)}" if names else ""
