"""What computes the batch norms of a model, counted while it runs."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..runtime.run_log import CallRecord, Record, subscribe
from . import _huge_pages
from ._operators import why_unsupported

_PASSES = ("forward", "gradient")
_CALL = nn.Module.__call__.__code__
# What computed the calls that onedsl does not see.
_UNSEEN = "PyTorch: "  # and a reason
_UNKNOWN = "PyTorch, or onedsl in a compiled graph, in the compiled module's row"
_Calls = dict[tuple[str, str], Counter[str]]


def _without_compile(name: str) -> str:
    """Return the name that a module had before torch.compile wrapped its model or a part of it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _unseen(layer: nn.modules.batchnorm._BatchNorm) -> str:
    """Return what may have computed calls of a layer that onedsl does not see, and why."""
    vectors = layer.running_mean, layer.running_var, layer.weight, layer.bias
    if not any(map(nn.parameter.is_lazy, vectors)):
        src = torch.empty(2, layer.num_features, dtype=torch.float32, device="cpu")
        if reason := why_unsupported("forward_training", src, *vectors, eps=float(layer.eps)):
            return f"{_UNSEEN}onedsl does not support {reason}"
    if layer.weight is None and layer.bias is None:
        return _UNKNOWN
    reasons = 'eager without enable(), compiled without backend="onedsl"'
    return f"{_UNSEEN}{reasons}, or not supported by onedsl"


def _count(layer: nn.modules.batchnorm._BatchNorm) -> int:
    """Return the number of forward passes in training that a layer of PyTorch's has counted."""
    counter = layer.num_batches_tracked
    if counter is None or counter.is_meta or counter.numel() == 0:
        return 0
    return int(counter.max())  # of several layers that run as one, as in torch.func.vmap


def _running(names: Mapping[nn.Module, str]) -> str:
    """Return the name of the innermost of these modules that runs on this thread, or ""."""
    frame = sys._getframe().f_back
    while frame:
        if frame.f_code is _CALL:
            module = frame.f_locals["self"]
            inner = module._modules.get("_orig_mod")  # if torch.compile returned the module
            if name := names.get(module) or (inner and names.get(inner)):
                return name
        frame = frame.f_back
    return ""


class report:  # noqa: N801 - called as a function, like torch.set_grad_enabled
    """Count from now on what computes the batch norms of a model.

    Call it before the steps to count, and print the object after them. Its first line is the number
    of layers that onedsl computed. The others show how often the forward pass and the gradient of
    each layer were computed, and by what: ``onedsl eager``, ``onedsl compiled alone``, ``onedsl
    with ReLU``, ``onedsl with addition and ReLU``, or PyTorch, and why; and which tensors were
    copied, because the kernels cannot read their memory layout. Counting ends with a ``with``
    block, or when the object is deleted.

    Parameters
    ----------
    model : torch.nn.Module
        The model, or what torch.compile or DistributedDataParallel returned for it, after it was
        moved and converted: the memory of its parameters identifies a layer.

    Notes
    -----
    The kernels count, so a graph that PyTorch loads from its cache counts as well. A call takes a
    few microseconds longer. How many calls onedsl does not see follows from
    ``num_batches_tracked``; their gradients, their evaluation, and layers of PyTorch's without
    running statistics are not counted. A call without parameters and statistics of the model, such
    as those of torch.nn.InstanceNorm2d and of weight standardization, belongs to the innermost
    module of the model that runs. In a compiled graph, this is the compiled module, also for layers
    with ``affine=False``: kernels in compiled graphs do not get the running statistics.

    Examples
    --------
    >>> layer = torch.nn.BatchNorm2d(8)
    >>> summary = onedsl.torch.report(layer)
    >>> with onedsl.torch.enable():
    ...     layer(torch.randn(4, 8, 6, 6)).square().sum().backward()
    >>> print(summary)
    1 of 1 layers by onedsl
    layer    forward         gradient
    (model)  1 onedsl eager  1 onedsl eager
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        named, norm = model.named_modules(), nn.modules.batchnorm._BatchNorm
        modules = [(_without_compile(name) or "(model)", module) for name, module in named]
        self._layers = {name: module for name, module in modules if isinstance(module, norm)}
        # By address and layer. The tensors are kept, so that no other gets one of the addresses.
        owned: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, module in modules:
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if not nn.parameter.is_lazy(tensor) and tensor.ndim == 1:
                    owned[tensor.data_ptr()][name] = tensor.detach()
        owned.pop(0, None)  # tensors without memory
        # Not kept: the log has the function below, and a model may have this report.
        names = weakref.WeakKeyDictionary({module: name for name, module in modules})
        computed: dict[int, str] = {}  # the layer of a forward pass, by the address of its mean
        # By thread, because an increment is no single operation.
        counts: Counter[tuple[int, str, str, str]] = Counter()

        def count(call: Record) -> None:
            if not isinstance(call, CallRecord):
                return
            # Layers may share parameters. The layer of the call has all of its tensors.
            found = Counter(name for address in call.addresses for name in owned.get(address, ()))
            most = [name for name, n in found.items() if n == max(found.values())]
            before = computed.get(call.source) if call.pass_ == "gradient" else None
            if before and (before in most or not most):
                most = [before]
            layer = " or ".join(most) or _running(names) or "(no layer of the model)"
            computed.update(dict.fromkeys(filter(None, call.results), layer))
            counts[threading.get_ident(), layer, call.pass_, call.what] += 1

        self._counts, self._before = counts, self._steps()
        self._at_end: _Calls | None = None
        self._subscription = subscribe(count)

    def _steps(self) -> dict[str, int]:
        return {name: _count(layer) for name, layer in self._layers.items()}

    def __enter__(self) -> report:
        return self

    def __exit__(self, *_: object) -> None:
        self._at_end = self.calls()
        self._subscription.close()

    def calls(self) -> _Calls:
        """Return the number of calls by what computed them, for each layer and pass.

        The keys are ``(layer, "forward")`` and ``(layer, "gradient")``.
        """
        if self._at_end is not None:
            return self._at_end
        counts = self._counts.copy()  # other threads may still count
        layers = dict.fromkeys((*self._layers, *(layer for _, layer, _, _ in counts)))
        calls: _Calls = {key: Counter() for key in itertools.product(layers, _PASSES)}
        for (_, layer, pass_, what), n in counts.items():
            calls[layer, pass_][what] += n
        for name, steps in self._steps().items():
            forward = calls[name, "forward"]
            seen = sum(n for what, n in forward.items() if "evaluation" not in what)
            unseen = steps - self._before[name] - seen
            if unseen > 0:
                forward[_unseen(self._layers[name])] = unseen
        return calls

    def __repr__(self) -> str:
        calls = self.calls()
        if not any(calls.values()):
            remedy = "Call report(model) before the training steps, and print its result after them"
            no_layer = "The model has no batch-norm layer of torch.nn"
            return f"No batch norm was counted. {remedy if calls else no_layer}"

        rows = [("layer", *_PASSES)]
        for layer in dict.fromkeys(layer for layer, _ in calls):
            counts = [calls[layer, pass_] for pass_ in _PASSES]
            unseen = any(what.startswith(_UNSEEN) or what == _UNKNOWN for what in counts[0])
            texts = ["; ".join(f"{n} {what}" for what, n in c.most_common()) for c in counts]
            absent = "none counted", "not seen by onedsl" if unseen else "none counted"
            rows.append((layer, texts[0] or absent[0], texts[1] or absent[1]))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(filter(None, [_total(calls), *lines, _huge_pages.note()]))


def _total(calls: _Calls) -> str:
    """Return a line with the number of layers whose forward pass in training was onedsl's."""
    kinds = [
        [what for what in counts if "evaluation" not in what]
        for (_, pass_), counts in calls.items()
        if pass_ == "forward"
    ]
    unknown = sum(_UNKNOWN in layer for layer in kinds)
    known = [layer for layer in kinds if layer and _UNKNOWN not in layer]
    ours = sum(all(what.startswith("onedsl") for what in layer) for layer in known)
    total = f"{ours} of {len(known)} layers by onedsl"
    return f"{total}, {unknown} unknown" if unknown else total if known else ""
