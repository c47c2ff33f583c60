"""Replaces PyTorch's batch-norm kernels by onedsl's in the whole process."""

from __future__ import annotations

import functools
import threading
import warnings

import torch

from .. import _core

_lock = threading.Lock()
_active: set[enable] = set()
"""The calls of `enable` that have not ended. PyTorch uses onedsl's kernels while there are any."""


@functools.cache
def _register() -> None:
    """Register onedsl's kernels with PyTorch's dispatcher, without PyTorch's warning."""

    def register(element: float) -> float:
        _core.override_torch_kernels()
        return element

    # PyTorch warns when a kernel is overridden. While a Python function of PyTorch such as `apply_`
    # runs, the warning is a Python warning, which can be filtered; otherwise it goes to stderr.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        torch.zeros(1).apply_(register)


class enable:  # noqa: N801 - called as a function, like torch.set_grad_enabled
    """Use onedsl's batch-norm kernels in every model of this process.

    Replaces the CPU kernels of batch norm's forward pass in training and of its gradient in
    PyTorch's dispatcher. This affects every layer and function that calls these ops, of any class.
    PyTorch's own kernels still compute the forward pass in evaluation, dtypes other than float32,
    bfloat16 and float16, parameters that are not float32, layouts other than contiguous and
    channels_last, and every call that PyTorch rejects. Autograd is unchanged.

    The call takes effect at once, on all threads. Its result may be used as a context manager once;
    if there are several ``with`` blocks, on any threads, the kernels stay in use until the last
    block ends. Enabling and disabling are safe while other threads train.

    Raises
    ------
    RuntimeError
        If this version of PyTorch lacks a function that the kernels need.

    Notes
    -----
    The kernels are C++ and call PyTorch's own kernels directly, so errors are PyTorch's own. A call
    costs less than PyTorch's for the smallest layers. A call that PyTorch's own kernel computes
    costs about a microsecond more in evaluation and after `disable`, and otherwise about four.

    inductor, torch.compile's default compiler, decomposes batch norm before kernels are selected,
    so `enable` has no effect on models that it compiles: use ``torch.compile(model,
    backend="onedsl")`` for them.

    `onedsl.verbose` logs the calls that PyTorch's own kernels compute, with the reason.

    Results of 4 MiB and more are not memory of PyTorch's allocator: they cannot be resized
    (``Tensor.resize_``) or cloned lazily (``torch._lazy_clone``). With glibc before
    2.38, this saves most page faults of a step: PyTorch's allocator takes new memory from the
    system again and again there.

    A saved model does not contain this setting. Call enable again where the model is loaded.

    Examples
    --------
    >>> onedsl.torch.enable()  # doctest: +SKIP
    >>> with onedsl.torch.enable():  # doctest: +SKIP
    ...     train(model)
    """

    __slots__ = ()

    def __init__(self) -> None:
        with _lock:
            _register()
            _active.add(self)
            _core.use_torch_kernels(True)

    def __enter__(self) -> enable:
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _active.discard(self)
            _core.use_torch_kernels(bool(_active))


def disable() -> None:
    """Use PyTorch's own kernels again, regardless of the number of `enable` calls before."""
    with _lock:
        _active.clear()
        _core.use_torch_kernels(False)


def enabled() -> bool:
    """Return whether `enable` is in effect.

    Returns
    -------
    bool
    """
    return bool(_active)
