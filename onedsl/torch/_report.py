"""What computes the batch norms of a model, counted while it runs."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import _core
from ..runtime import run_log
from ._enable import enabled
from ._operators import why_unsupported

_listeners: list[Callable[[str, str, list[int]], None]] = []
_PASSES = ("forward", "gradient")
_lock = threading.RLock()  # reentrant: the garbage collector may delete a report at any time


def record(
    pass_: str, computed: str | None, reason: str | None, shape: tuple[int, ...], ids: list[int]
) -> None:
    """Count a call. The kernels call this while a report is open or `onedsl.verbose` in effect."""
    if reason is not None:
        run_log.record_fallback(reason, shape)
    with _lock:
        for listener in _listeners:
            listener(pass_, computed or f"PyTorch, for {reason}", ids)


def count(pass_: str, what: str, *tensors: torch.Tensor | None) -> None:
    """Count a call that Python code computes for the layer of these tensors."""
    record(pass_, what, None, (), [t.data_ptr() for t in tensors if t is not None])


def listen(listener: Callable[[str, str, list[int]], None], on: bool) -> None:
    """Begin or end to pass all calls to a function."""
    with _lock:
        (_listeners.append if on else _listeners.remove)(listener)
        _core.enable_torch_call_log(bool(_listeners))


_core.set_torch_call_log(record)


class Report:
    """What computed the batch norms of a model since `report` was called."""

    def __init__(self, model: nn.Module) -> None:
        named, norm = model.named_modules(), nn.modules.batchnorm._BatchNorm
        modules = [(name or "(model)", module) for name, module in named]
        self._layers = {name: module for name, module in modules if isinstance(module, norm)}
        # The tensors are kept, so that no other gets the address of one of them.
        self._tensors = [
            (name, tensor.detach())
            for name, module in modules
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
            if not nn.parameter.is_lazy(tensor) and tensor.ndim == 1
        ]
        owners = {tensor.data_ptr(): name for name, tensor in self._tensors}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        listener = functools.partial(_count, self._counts, owners)
        listen(listener, True)
        self._end = weakref.finalize(self, listen, listener, False)
        self._before, self._after = self._steps(), Counter[str]()
        self._enabled = enabled()

    def _steps(self) -> Counter[str]:
        """Return the number of forward passes in training that PyTorch's layers have counted."""
        counts = {name: getattr(m, "num_batches_tracked", None) for name, m in self._layers.items()}
        return Counter({name: 0 if n is None else int(n) for name, n in counts.items()})

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end.alive:
            self._after, self._enabled = self._steps(), self._enabled or enabled()
            self._end()

    def calls(self) -> dict[tuple[str, str], Counter[str]]:
        """Return the number of calls by what computed them, for each layer and pass.

        The keys are ``(layer, "forward")`` and ``(layer, "gradient")``.
        """
        calls = {(name, p): Counter[str]() for name in self._layers for p in _PASSES}
        with _lock:
            for (layer, pass_, what), n in self._counts.items():
                calls.setdefault((layer, pass_), Counter())[what] = n
        after = self._steps() if self._end.alive else self._after
        for name, layer in self._layers.items():
            trained = (n for what, n in calls[name, "forward"].items() if "evaluation" not in what)
            unseen = after[name] - self._before[name] - sum(trained)
            if unseen > 0:
                calls[name, "forward"][f"PyTorch: {_why(layer, self._enabled or enabled())}"] = (
                    unseen
                )
        return calls

    def __str__(self) -> str:
        calls = self.calls()
        rows = [("layer", *_PASSES)]
        for layer in dict.fromkeys(layer for layer, _ in calls):
            both = [calls.get((layer, pass_), Counter[str]()).most_common() for pass_ in _PASSES]
            forward, gradient = ("; ".join(f"{n} {what}" for what, n in c) or "none" for c in both)
            rows.append((layer, forward, gradient))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _count(counts: Any, owners: dict[int, str], pass_: str, what: str, ids: list[int]) -> None:
    layer = next((owners[i] for i in ids if i in owners), "(no layer of the model)")
    counts[layer, pass_, what] += 1


def _why(layer: Any, enabled: bool) -> str:
    """Return why onedsl has not seen calls of a layer."""
    src = torch.empty(2, layer.num_features, dtype=torch.float32, device="cpu")
    vectors = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    unsupported = why_unsupported(src, *vectors, eps=layer.eps)
    if unsupported:
        return f"onedsl does not support {unsupported}"
    reason = 'neither enable() nor torch.compile(backend="onedsl") was in effect'
    if enabled:
        reason = 'compiled without backend="onedsl"'
    if "onedsl.torch._backend" in sys.modules:
        reason += ", or an input that onedsl does not support"
    return reason


def report(model: nn.Module) -> Report:
    """Count from now on what computes the batch norms of a model.

    The counts come from the kernels that run, so they are also right for compiled graphs that
    PyTorch loads from its cache.

    Parameters
    ----------
    model : torch.nn.Module
        The model, or what torch.compile or DistributedDataParallel returned for it, after it was
        moved and converted: the memory of its parameters identifies a layer.

    Returns
    -------
    Report
        Printed, it shows how often the forward pass and the gradient of each layer were computed,
        and by what: ``onedsl eager``, ``onedsl compiled alone``, ``onedsl with ReLU``, ``onedsl
        with addition and ReLU``, or PyTorch, and why. ``calls()`` returns the numbers. Counting
        ends with a ``with`` block, or when the object is deleted.

    Notes
    -----
    Without a report, nothing is counted. With it, each call takes a few microseconds longer.

    The number of calls that onedsl does not see follows from ``num_batches_tracked``. Not seen are
    the gradients of these calls, and layers of PyTorch's that do not track running statistics. In
    compiled graphs, the gradients of layers without parameters belong to no layer.

    Examples
    --------
    >>> layer = torch.nn.BatchNorm2d(8)
    >>> with onedsl.torch.enable(), onedsl.torch.report(layer) as summary:
    ...     layer(torch.randn(4, 8, 6, 6)).sum().backward()
    >>> print(summary)
    layer    forward         gradient
    (model)  1 onedsl eager  1 onedsl eager
    """
    return Report(model)
