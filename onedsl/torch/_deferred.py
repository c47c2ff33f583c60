"""Deferred batch norm: a tensor whose normalization waits for the operation that uses it.

A layer that `fuse` changed computes the statistics of its input at once, updates the running
statistics, and returns a `DeferredBatchNorm`: a tensor without storage. An addition is deferred as
well. A ReLU then runs one kernel for all of it. Any other use computes the plain result and turns
the object into an ordinary tensor.

The statistics are not deferred: running statistics can be read at any time through references that
nothing can intercept, and an unused result must update them, too. But one kernel for statistics and
result is faster than two. So a layer computes at once what the previous step used: the result with
a ReLU, or the plain one, which is then not deferred. If the use is another one this time, the
kernels run again.

What is computed late must not depend on what happens in between. Inputs can be overwritten, even
unseen by autograd (through ``tensor.data``), so they are held as copy-on-write clones of PyTorch,
which cost nothing until somebody writes. Parameters are copied.

The autograd graph has the nodes of the unfused model: batch norm, addition, ReLU. If nothing else
can use the result of the batch norm, the node of the ReLU computes the gradients of all three in
one kernel and leaves them at the node of the batch norm, which runs next.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import _core
from ._deferred_autograd import apply_add, apply_batch_norm, apply_relu
from ._deferred_state import Expectation, compute_early
from ._deferred_tensor import HANDLERS, DeferredBatchNorm, become, is_transformed, make_plain
from ._layers import TYPES, begin_step
from ._training import is_laid_out

MIN_ELEMENTS, MIN_ELEMENTS_OF_SUM = 1 << 20, 1 << 21
"""Smaller inputs are not deferred, and smaller sums not fused.

The bookkeeping would take longer than the fusion saves.
"""

_NO_MEMORY = torch.empty(0)
_expectations: weakref.WeakKeyDictionary[nn.Module, Expectation] = weakref.WeakKeyDictionary()


def defer(layer: nn.modules.batchnorm._BatchNorm, src: Tensor) -> Tensor | None:
    """Return the deferred result of a layer in training, or None if it must be computed at once."""
    if not (
        type(src) is Tensor
        and not is_transformed()
        and src.is_cpu
        and src.numel() >= MIN_ELEMENTS
        and src.dtype in TYPES
        and src.layout is torch.strided
        and src.numel() > src.shape[1]
        and layer.eps > 0
        and is_laid_out(src)
        and not src.is_inference()
        and not src.is_neg()
    ):
        return None
    weight, bias = layer.weight, layer.bias
    running = (layer.running_mean, layer.running_var) if layer.track_running_stats else (None, None)
    vectors = (weight, bias, *running)
    if (
        (running[0] is None) != (running[1] is None)
        or not all(t is None or _is_channels(t, src.shape[1]) for t in vectors)
        or (src.dtype is not torch.float32 and all(t is None for t in vectors))
        or not any(t is not None and t.requires_grad for t in (src, weight, bias))
    ):
        return None
    layer._check_input_dim(src)
    expectation = _expectations.get(layer)
    if expectation is None:
        expectation = _expectations.setdefault(layer, Expectation())
    try:
        if not _is_private(src):
            return None
        operands = compute_early(src, weight, bias, layer.eps, expectation)
    except RuntimeError:  # an invalidated view, memory without lazy clones, an unsupported input
        return None
    running_mean, running_var, _, momentum = begin_step(layer)
    if running_mean is not None:
        count = src.numel() // src.shape[1]
        _core.update_running(
            running_mean, running_var, operands.mean, operands.variance, momentum, count
        )
    result: Tensor = apply_batch_norm(src, weight, bias, operands)
    return result


def _is_private(tensor: Tensor) -> bool:
    """Return whether a tensor was computed in this step.

    Lazy clones of one tensor in several threads are a data race in PyTorch, and threads do share
    inputs and parameters.
    """
    base = tensor._base
    return tensor.grad_fn is not None and (base is None or base.grad_fn is not None)


def _is_channels(vector: Tensor, channels: int) -> bool:
    return bool(
        type(vector) in (Tensor, nn.Parameter)
        and vector.is_cpu
        and vector.dtype is torch.float32
        and vector.shape == (channels,)
        and vector.is_contiguous()
        and not vector.is_inference()
    )


def _relu(result: Tensor, clip: float | None, inplace: bool) -> Any:
    if type(result) is not DeferredBatchNorm or result._state.values is not None:
        return NotImplemented
    state = result._state
    # PyTorch keeps the inputs of hardtanh: the mask is needed even if its output is overwritten.
    if (inplace and state.in_graph) or (clip is not None and state.residual is not None):
        return NotImplemented
    dst: Tensor = apply_relu(result, clip)
    if inplace:
        if not become(result, dst):
            return NotImplemented
        dst = result
    saved_by_hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if clip is None and state.residual is None and not saved_by_hooks:
        # PyTorch's ReLU keeps its output. This keeps the version of it, without the memory.
        node = dst.grad_fn
        node.output, node.version = dst.detach(), dst._version
        node.output.data = _NO_MEMORY
    return dst


def _add(result: Any, residual: Any, inplace: bool = False) -> Any:
    if type(result) is not DeferredBatchNorm:
        if inplace or type(residual) is not DeferredBatchNorm:
            return NotImplemented
        result, residual = residual, result
    if type(residual) is DeferredBatchNorm and residual is not result:
        residual = make_plain(residual)
    if (
        type(residual) not in (Tensor, nn.Parameter)
        or result._state.residual is not None
        or result._state.values is not None
        or (inplace and result._state.in_graph)
        or residual.dtype != result.dtype
        or residual.stride() != result.stride()
        or residual.shape != result.shape
        or residual.numel() < MIN_ELEMENTS_OF_SUM
        or not residual.is_cpu
        or residual.is_neg()
        or not _is_private(residual)
    ):
        return NotImplemented
    try:
        total: Tensor = apply_add(result, residual)
    except RuntimeError:  # the memory is not PyTorch's own, and has no lazy clones
        return NotImplemented
    if not inplace:
        return total
    return result if become(result, total) else NotImplemented


def _hardtanh(
    result: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Any:
    if min_val != 0 or not max_val > 0 or not np.isfinite(max_val):
        return NotImplemented
    return _relu(result, float(max_val), inplace)


_F = nn.functional
_handlers: dict[Callable[..., Any], Callable[..., Any]] = {
    _F.relu: lambda input, inplace=False: _relu(input, None, inplace),  # noqa: A006
    torch.relu: lambda input: _relu(input, None, False),  # noqa: A006
    Tensor.relu: lambda self: _relu(self, None, False),
    torch.relu_: lambda input: _relu(input, None, True),  # noqa: A006
    Tensor.relu_: lambda self: _relu(self, None, True),
    _F.relu6: lambda input, inplace=False: _relu(input, 6.0, inplace),  # noqa: A006
    _F.hardtanh: _hardtanh,
    torch.add: lambda *args, **kwargs: _add(*args) if _is_pair(args, kwargs) else NotImplemented,
}
for _name in ("add", "__add__", "__radd__"):
    _handlers[getattr(Tensor, _name)] = _handlers[torch.add]
for _name in ("add_", "__iadd__"):
    _handlers[getattr(Tensor, _name)] = lambda *args, **kwargs: (
        _add(args[0], args[1], True) if _is_pair(args, kwargs) else NotImplemented
    )
HANDLERS.update(_handlers)


def _is_pair(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) == 2 and not kwargs
