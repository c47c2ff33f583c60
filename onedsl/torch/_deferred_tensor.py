"""The tensor subclass of deferred results, and its conversion to ordinary tensors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from operator import is_ as operator_is
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ._deferred_state import State

HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Functions of PyTorch that need no plain result, and what runs instead. `_deferred` fills it.

A handler returns NotImplemented if the function needs the plain result after all.
"""


class DeferredBatchNorm(Tensor):
    """The result of a fused layer in training. An ordinary tensor after its first plain use."""

    _state: State

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        call = _call if "torch._dynamo" not in sys.modules else _call_uncompiled
        return call(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute on the plain values. C++ code that sees no __torch_function__ ends up here."""
        deferred: dict[int, Tensor] = {}

        def plain(value: Any) -> Any:
            if type(value) is not DeferredBatchNorm:
                return value
            values = value._state.plain()
            deferred[id(values)] = value
            return values

        args, kwargs = torch.utils._pytree.tree_map(plain, (args, kwargs or {}))
        outputs = func(*args, **kwargs)
        return deferred.get(id(outputs), outputs)  # operators in place return their argument


def _call(
    func: Callable[..., Any],
    types: tuple[type, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a function of PyTorch with deferred results among its arguments."""
    if func in _METADATA:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    handler = HANDLERS.get(func)
    if handler is not None and torch.is_grad_enabled() and not is_transformed():
        result = handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
    deferred = {id(result): result for result in _deferred_in((args, kwargs))}.values()
    if func in _AUTOGRAD:
        for result in deferred:
            result._state.in_graph = result._state.operands.node.shared = True
    elif func in _MEMORY:
        return func(make_plain(args[0]), *args[1:], **kwargs)
    else:
        plain = [make_plain(result) for result in deferred]
        if plain and all(map(operator_is, plain, deferred)):
            return func(*args, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


_call_uncompiled = torch._disable_dynamo(_call)


def new_result(like: Tensor, state: State) -> Tensor:
    result: Tensor = Tensor._make_wrapper_subclass(
        DeferredBatchNorm,
        like.shape,
        strides=like.stride(),
        dtype=like.dtype,
        layout=like.layout,
        device=like.device,
    )
    result._state = state
    return result


def become(result: Tensor, tensor: Tensor) -> bool:
    """Make a deferred result the same tensor as another, for all who refer to it, if possible."""
    try:
        torch._C._swap_tensor_impl(result, tensor)
    except RuntimeError:  # C++ code refers to one of them
        return False
    del result._state
    if type(tensor) is DeferredBatchNorm:
        result._state = tensor._state
        del tensor._state
    else:
        result.__class__ = Tensor
    return True


class _Value(torch.autograd.Function):
    """The identity, from a deferred result to the ordinary tensor that replaces it."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, state: State) -> Tensor:
        return state.plain()

    @staticmethod
    def backward(ctx: Any, diff: Tensor) -> tuple[Any, ...]:
        return diff, None


def make_plain(result: Tensor) -> Tensor:
    """Turn a deferred result into an ordinary tensor, or return an equal one if that is too late.

    It is too late if autograd refers to the deferred result.
    """
    with contextlib.ExitStack() as modes:
        # What is done here belongs to the call of the layer, whose gradients were enabled.
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        if torch._C._are_functorch_transforms_active():
            modes.enter_context(temporarily_clear_interpreter_stack())
        modes.enter_context(torch.enable_grad())
        state = result._state
        plain: Tensor = _Value.apply(result, state)
    return result if not state.in_graph and become(result, plain) else plain


def _deferred_in(value: Any) -> Iterator[Any]:
    if type(value) is DeferredBatchNorm:
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _deferred_in(item)
    elif isinstance(value, dict):
        yield from _deferred_in(list(value.values()))


_METADATA = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim")),
    *(getattr(Tensor, name).__get__ for name in ("requires_grad", "is_leaf", "is_cpu", "is_cuda")),
    *(getattr(Tensor, name).__get__ for name in ("is_sparse", "is_quantized", "is_mkldnn")),
    *(Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.nelement),
    *(Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}
"""What needs no values and does not depend on who else uses the result."""


_AUTOGRAD = {
    *(torch.autograd.grad, torch.autograd.backward, Tensor.backward, Tensor.requires_grad_),
    *(Tensor.register_hook, Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook),
    *(Tensor.grad.__get__, Tensor.grad.__set__, Tensor.grad.__delete__),
    *(getattr(Tensor, name).__get__ for name in ("grad_fn", "retains_grad", "output_nr")),
    Tensor._backward_hooks.__get__,
}
"""What depends on which tensor it is, in autograd, and not on its values."""

_MEMORY = {Tensor.data_ptr, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist}
_MEMORY |= {Tensor.untyped_storage, Tensor.storage, Tensor.__reduce_ex__, Tensor.__repr__}
"""What needs a tensor with memory of its own."""


def is_transformed() -> bool:
    """Return whether PyTorch's own operators must run: compilers, transforms and modes see them."""
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch.is_inference_mode_enabled()
        or torch.autograd.forward_ad._current_level >= 0
    )
