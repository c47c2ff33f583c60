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
    library computes it. After this call, malloc keeps the memory of arrays up to 32 MB: a step has
    page faults for larger arrays only.

    The setting is for all threads and all libraries of the process that use malloc, among them
    NumPy, PyTorch and JAX. Processes that are forked later inherit it, those that are spawned do
    not. Call the function at the start of the program: threads that have allocated before may keep
    heaps of their own, which malloc returns to the system. In a program with many of them, new
    threads may use these, too.

    Nothing in onedsl calls this function. It is for programs whose memory does not grow with it,
    and that cannot have huge pages, which save most page faults with less memory: with PyTorch by
    `onedsl.torch.enable`, with JAX by ``GLIBC_TUNABLES=glibc.malloc.hugetlb=1`` in the environment.
    JAX allocates the memory of a step as one block, usually of more than 32 MB, so this function
    saves it no page faults.

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
        ``MALLOC_...`` or by ``glibc.malloc`` in ``GLIBC_TUNABLES``. A limit of the number of arenas
        is no such setting, and remains. The logger ``onedsl`` states the reason at level INFO.

    Notes
    -----
    The process needs more memory than without the call:

    - It stays as large as its peak, except for arrays larger than 32 MB.
    - It may grow over time if it frees arrays of a few MB, and keeps small ones, such as a mean of
      each layer's result. PyTorch aligns tensors to 64 bytes, and glibc cannot use the memory of
      such a tensor for another one of the same size if a small block lies next to it. glibc has
      this limit without the call, too.
    - Each process that is forked later, such as a DataLoader's worker, keeps memory of its own.

    These are three parameters of ``mallopt(3)``: ``M_MMAP_THRESHOLD`` is 32 MB, its maximum,
    ``M_TRIM_THRESHOLD`` is -1 and ``M_ARENA_MAX`` is 1. A program without onedsl can set them by
    ``ctypes``, or by the environment variables ``MALLOC_MMAP_THRESHOLD_=33554432
    MALLOC_TRIM_THRESHOLD_=18446744073709551615 MALLOC_ARENA_MAX=1``.

    Examples
    --------
    >>> onedsl.keep_memory()  # doctest: +SKIP
    True
    """
    settings = _settings_of_the_user()
    others = [name for name, is_limit_of_arenas in settings.items() if not is_limit_of_arenas]
    reason = f"the environment sets {', '.join(others)}" if others else ""
    if not _core.malloc_is_glibcs():
        reason = "malloc is not glibc's"
    if not reason and not _core.keep_memory(keep, not settings):
        reason = "malloc rejects the setting"
    if reason:
        run_log.info(_logger, "keep_memory has no effect: %s", reason)
    return not reason


def _settings_of_the_user() -> dict[str, bool]:
    """Return malloc's settings in the environment, and whether each limits the number of arenas."""
    names = [name for name in os.environ if name.startswith("MALLOC_")]
    tunables = os.environ.get("GLIBC_TUNABLES", "").split(":")
    names += [one.partition("=")[0] for one in tunables if one.startswith("glibc.malloc.")]
    return {name: "arena" in name.lower() for name in names}
