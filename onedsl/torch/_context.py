"""Calls outside of PyTorch's modes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

_Result = TypeVar("_Result")


def call_outside_modes(function: Callable[[], _Result]) -> _Result:
    """Return a function's result where none of PyTorch's modes and default devices is in effect.

    These belong to a thread, so the function runs on a new one. Where the system allows no more
    threads, it runs on this one, without the modes of Python.
    """
    with ThreadPoolExecutor(1) as pool:
        try:
            future = pool.submit(function)
        except RuntimeError:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return function()
        return future.result()
