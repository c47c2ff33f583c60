"""PyTorch's huge pages: the switch, and whether it has an effect.

PyTorch's CPU allocator reads a variable of the environment at the first tensor of the process. If
it is set, PyTorch aligns tensors of 2 MB and more to pages, and asks the kernel for huge pages.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import warnings
from pathlib import Path

import torch

from ..runtime import run_log
from . import _context

VARIABLE = "THP_MEM_ALLOC_ENABLE"
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage")
# Size of the tensor that is made to see whether huge pages are used. PyTorch does from 2 MB on.
# glibc gives a mapping of its own to each tensor that is at least as large as any it has freed. A
# mapping begins anywhere, so that often none of 4 MB is a huge page, and each such tensor has a
# thousand page faults. Once this larger tensor is freed, those of up to 4 MB come from the heap.
# Making it larger where the program's tensors are was tried: four convolutions with tensors of 6 MB
# took 0.73 of the time, but loops that keep nothing took 1.6 times PyTorch's memory, and grew,
# because malloc cannot use the memory of an aligned block again beside a small one.
_BYTES = (4 << 20) + (64 << 10)
_TOO_LATE = (
    "a tensor was made before. Call onedsl.torch.enable() before the first tensor, or set "
    f"{VARIABLE}=1 in the environment: steps are up to 1.4 times as fast with them. "
    "enable(huge_pages=False) trains without them, and without this warning"
)

_logger = logging.getLogger("onedsl.torch")
_requested = False


@functools.cache  # once in a process: PyTorch reads the variable once
def request() -> None:
    """Let PyTorch use huge pages, unless the user has decided, and warn or log if it does not."""
    global _requested  # noqa: PLW0603
    _requested = True
    if not is_set() and not why_unavailable():
        os.environ[VARIABLE] = "1"
    reason = why_unused()
    if reason.endswith(_TOO_LATE):
        warnings.warn(reason, RuntimeWarning, stacklevel=3)
    elif reason:
        run_log.info(_logger, "%s", reason)


def note() -> str:
    """Return why PyTorch does not use the huge pages that `request` asked for, or ""."""
    return why_unused() if _requested else ""


@functools.cache
def why_unused() -> str:
    """Return why PyTorch uses no huge pages, and the remedy, or "" if it uses them.

    Makes a tensor, after which the variable has no effect.
    """
    prefix = "PyTorch's tensors have no huge pages: "
    if reason := why_unavailable():
        return prefix + reason
    try:
        if _context.call_outside_modes(_is_advised):
            return ""
    except (OSError, RuntimeError, MemoryError) as error:  # no /proc, no memory
        return f"{prefix}unknown, {error}"
    if is_set() and os.environ[VARIABLE] != "1":
        return f"{prefix}the environment sets {VARIABLE}={os.environ[VARIABLE]}"
    return prefix + _TOO_LATE


def is_set() -> bool:
    """Return whether the user has decided, by a variable that is not empty."""
    return bool(os.environ.get(VARIABLE))


def why_unavailable() -> str:
    """Return why the kernel has no huge pages for this process, or ""."""
    try:
        setting = _chosen("enabled")
        if (_KERNEL / "hugepages-2048kB").exists():  # since Linux 6.8
            own = _chosen("hugepages-2048kB/enabled")
            setting = setting if own == "inherit" else own
    except OSError:
        return "the kernel has none"
    if setting == "never":
        return f"they are switched off in {_KERNEL / 'enabled'}"
    with contextlib.suppress(OSError):  # no /proc
        if "THP_enabled:\t0" in Path("/proc/self/status").read_text(encoding="utf-8"):
            return "they are switched off for this process, by prctl(2)"
    return ""


def _chosen(name: str) -> str:
    """Return the word in brackets of a file, such as "always [madvise] never"."""
    return (_KERNEL / name).read_text(encoding="utf-8").partition("[")[2].partition("]")[0]


def _is_advised() -> bool:
    """Return whether PyTorch asks the kernel for huge pages for a new tensor."""
    tensor = torch.empty(_BYTES, dtype=torch.uint8, device="cpu")
    begin, is_found = tensor.data_ptr(), False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as mappings:
        for line in mappings:
            name, _, rest = line.partition(" ")
            if name == "VmFlags:" and is_found:
                return "hg" in rest.split()
            if not name.endswith(":"):
                first, _, last = name.partition("-")
                is_found = int(first, 16) <= begin < int(last, 16)
    return False
