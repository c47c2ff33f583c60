"""Deferred batch norm: a tensor whose normalization waits for the operation that uses it.

A layer that `fuse` changed computes the statistics of its input at once, updates the running
statistics, and returns a `DeferredBatchNorm`: a tensor without storage. An addition is deferred as
well. A ReLU then runs one kernel for all of it. Any other use computes the plain result and turns
the object into an ordinary tensor.

The statistics are not deferred, although one kernel for both passes is up to 1.1 times as fast in
contiguous memory: running statistics can be read at any time through references that nothing can
intercept, and an unused result must update them, too.

What is computed late must not depend on what happens in between. Inputs can be overwritten, even
unseen by autograd (through ``tensor.data``), so they are held as copy-on-write clones of PyTorch,
which cost nothing until somebody writes. Parameters are copied.

The autograd graph has the nodes of the unfused model: batch norm, addition, ReLU. If nothing else
can use the result of the batch norm, the node of the ReLU computes the gradients of all three in
one kernel and leaves them at the node of the batch norm, which runs next.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator
from operator import is_ as operator_is
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from .. import _core
from ..operators.batch_norm_relu_training_backward import SCHEMA as BACKWARD
from ._layers import TYPES, begin_step
from ._op import core_operator, op, run
from ._training import affine, is_laid_out, operator

_AUTO = _core.Backend.auto

MIN_ELEMENTS = 1 << 18
"""Smaller inputs are computed at once: the bookkeeping here takes longer than the fusion saves."""

_LARGE = 4 << 20  # bytes


class _Snapshot:
    """The values that a tensor has now. They are copied only if the tensor is written to later."""

    __slots__ = ("_clone", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._clone: Tensor | None = torch._lazy_clone(tensor)

    def release(self) -> Tensor:
        """Return a tensor with the values, for a kernel to read; call `renew` after that.

        The kernels ask for writable memory, which would copy a tensor that has a lazy clone.
        """
        clone, tensor = self._clone, self._tensor
        if clone is None or torch._C._data_address(clone) != torch._C._data_address(tensor):
            return tensor if clone is None else clone
        self._clone = None
        return tensor

    def renew(self) -> None:
        """Hold the values again."""
        if self._clone is None:
            self._clone = torch._lazy_clone(self._tensor)


class _Operands:
    """What the normalization needs, and the autograd node of the batch norm."""

    __slots__ = ("bias", "eps", "node", "snapshot", "statistics", "weight")

    node: Any

    def __init__(
        self,
        snapshot: _Snapshot,
        statistics: np.ndarray[Any, Any],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> None:
        self.snapshot, self.statistics, self.eps = snapshot, statistics, eps
        self.weight, self.bias = weight, bias


class _State:
    """What a `DeferredBatchNorm` stands for. Lives as long as the tensor is deferred."""

    __slots__ = ("__weakref__", "before_sum", "in_graph", "operands", "residual", "values")

    def __init__(
        self,
        operands: _Operands,
        residual: _Snapshot | None = None,
        before_sum: weakref.ref[_State] | None = None,
    ) -> None:
        self.operands, self.residual, self.before_sum = operands, residual, before_sum
        self.values: Tensor | None = None
        self.in_graph = False  # whether nodes, hooks or gradients refer to this very tensor

    def compute(self, operation: _core.Operation, clip: float | None = None) -> Tensor:
        """Run a kernel: the plain batch norm, or with the addition and the ReLU."""
        o = self.operands
        src = o.snapshot.release()
        residual = None if self.residual is None else self.residual.release()
        with_relu = operation is _core.Operation.relu_forward_training
        weight, bias = affine(o.weight, o.bias)
        dst = empty_like(src)
        channels = src.new_empty((5, src.shape[1]), dtype=torch.float32)
        running = channels[0]  # unused, and written to
        inputs = (src, running, running, weight, bias, *((residual,) if with_relu else ()))
        outputs = operator(operation, o.eps, clip).apply(
            o.statistics, inputs, True, (dst, *channels[1:].unbind())
        )
        if outputs is None:
            raise AssertionError("the kernel rejected what its statistics pass accepted")
        if residual is not None and not with_relu:
            dst.add_(residual)
        o.snapshot.renew()
        if self.residual is not None:
            self.residual.renew()
        return dst

    def plain(self) -> Tensor:
        """Return the plain result, computed once. Mark it as used by others than a ReLU."""
        self.operands.node.shared = True
        if self.values is None:
            with torch.no_grad():
                self.values = self.compute(_core.Operation.forward_training)
        return self.values


def empty_like(src: Tensor) -> Tensor:
    """Return torch.empty_like(src) in large pages: a page fault every 4 KB takes longer."""
    dst = torch.empty_like(src)
    if dst.nbytes >= _LARGE:
        begin = dst.data_ptr()
        first_page = -(-begin // 4096) * 4096
        _madvise(first_page, begin + dst.nbytes - first_page, _MADV_HUGEPAGE)
    return dst


_MADV_HUGEPAGE = 14
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _Fused(NamedTuple):
    """Gradients that the node of a ReLU left at the node of the batch norm."""

    graph_task: int
    returned: Tensor  # what the node of the ReLU returned to autograd
    gradients: tuple[Tensor, Tensor, Tensor]
    relu: Any  # its node, if `returned` is a placeholder and not the gradient
    diff_dst: Tensor


class _BatchNorm(torch.autograd.Function):
    """The node of the batch norm."""

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        operands: _Operands,
    ) -> Tensor:
        # PyTorch saves no bias: changing it between the passes is allowed. This is the copy.
        ctx.save_for_backward(src, weight, operands.bias, mean, variance)
        ctx.eps = operands.eps
        ctx.shared = False  # whether anything but ReLUs uses the result
        ctx.relus = 0
        ctx.fused = None
        operands.node = ctx
        return _new_result(src, _State(operands))

    @staticmethod
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        fused, ctx.fused = ctx.fused, None
        needed = ctx.needs_input_grad[:3]
        gradients: tuple[Any, ...] | None = None
        if fused is not None and fused.graph_task == torch._C._current_graph_task_id():
            if diff_dst is fused.returned:
                gradients = fused.gradients
            elif fused.relu is not None:  # another gradient was added to the placeholder
                diff_dst = diff_dst + _masked(fused.relu, fused.diff_dst)
        if gradients is None:
            src, weight, _, mean, variance = ctx.saved_tensors
            gradients = _gradients(src, diff_dst, mean, variance, weight, ctx.eps)
        return *(g if n else None for g, n in zip(gradients, needed, strict=True)), None, None, None


class _Add(torch.autograd.Function):
    """The node of the addition."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, residual: Tensor) -> Tensor:
        state: _State = result._state
        deferred = _State(state.operands, _Snapshot(residual), weakref.ref(state))
        state.in_graph = True
        return _new_result(result, deferred)

    @staticmethod
    def backward(ctx: Any, diff: Tensor) -> tuple[Any, ...]:
        return tuple(diff if needed else None for needed in ctx.needs_input_grad)


class _ReLU(torch.autograd.Function):
    """The node of the ReLU, which computes everything."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, clip: float | None) -> Tensor:
        state: _State = result._state
        dst = state.compute(_core.Operation.relu_forward_training, clip)
        # Without a residual the mask is computed from src again, and dst need not be kept.
        ctx.save_for_backward(None if state.residual is None else dst)
        ctx.batch_norm, ctx.clip = state.operands.node, clip
        ctx.batch_norm.relus += 1
        state.in_graph = True
        ctx.output = None
        ctx.users = (weakref.ref(state), state.before_sum)
        return dst

    @staticmethod
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        if ctx.output is not None and ctx.output._version != ctx.version:
            raise RuntimeError(_MODIFIED)
        batch_norm = ctx.batch_norm
        in_use = any(state is not None and state() is not None for state in ctx.users)
        if in_use or batch_norm.shared or batch_norm.relus > 1 or _is_observed(diff_dst):
            return _masked(ctx, diff_dst), None
        src, weight, bias, mean, variance = batch_norm.saved_tensors
        (dst,) = ctx.saved_tensors
        if diff_dst.stride() != src.stride():
            diff_dst = torch.empty_like(src).copy_(diff_dst)
        inputs = (src, diff_dst, mean, variance, *affine(weight, bias), dst)
        kernel = operator(BACKWARD.operation, batch_norm.eps, ctx.clip)
        gradients = kernel.run(inputs, dst is not None, None, _AUTO)
        if gradients is None:
            return _masked(ctx, diff_dst), None
        *others, diff_residual = gradients[:4]
        placeholder = dst is None
        returned = src.new_zeros(()).expand(src.shape) if placeholder else diff_residual
        batch_norm.fused = _Fused(
            torch._C._current_graph_task_id(),
            returned,
            tuple(others),
            ctx if placeholder else None,
            diff_dst,
        )
        return returned, None


_NO_MEMORY = torch.empty(0)
_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: the output of a ReLU after a batch-norm layer that onedsl.torch.fuse changed"
)


class _Value(torch.autograd.Function):
    """The identity, from a deferred result to the ordinary tensor that replaces it."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, state: _State) -> Tensor:
        return state.plain()

    @staticmethod
    def backward(ctx: Any, diff: Tensor) -> tuple[Any, ...]:
        return diff, None


def _is_observed(tensor: Tensor) -> bool:
    """Return whether gradients must be computed by PyTorch's operators, one by one."""
    return bool(
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or type(tensor) is not Tensor
        or _is_batched(tensor)
    )


def _is_batched(tensor: Tensor) -> bool:
    """Return whether a transform of torch.func or of ``is_grads_batched`` is active."""
    functorch = torch._C._functorch
    return bool(
        functorch.is_legacy_batchedtensor(tensor) or torch._C._are_functorch_transforms_active()
    )


def _masked(relu: Any, diff_dst: Tensor) -> Tensor:
    """Return the gradient of a ReLU."""
    (dst,) = relu.saved_tensors
    if dst is None:
        batch_norm = relu.batch_norm
        src, weight, bias, mean, variance = batch_norm.saved_tensors
        with torch.no_grad():
            dst = nn.functional.batch_norm(src, mean, variance, weight, bias, eps=batch_norm.eps)
    closed = dst <= 0 if relu.clip is None else (dst <= 0) | (dst >= relu.clip)
    return diff_dst.masked_fill(closed, 0)


def _gradients(
    src: Tensor,
    diff_dst: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...]:
    """Return the gradients of the plain batch norm."""
    if _is_batched(diff_dst):
        inverse_stddev = (variance + eps).rsqrt()
        mask = [True, True, True]
        outputs: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(
            diff_dst, src, weight, None, None, mean, inverse_stddev, True, eps, mask
        )
        return outputs
    gradients = None
    if not _is_observed(diff_dst):
        kernel = core_operator(eps, "NCX", "batch")
        gradients = run(kernel, src, diff_dst, mean, variance, weight, True)
    return tuple(gradients or op(src, diff_dst, mean, variance, weight, eps, "NCX", "batch", True))


class DeferredBatchNorm(Tensor):
    """The result of a fused layer in training. An ordinary tensor after its first plain use."""

    _state: _State

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
    handler = _HANDLERS.get(func)
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


def _new_result(like: Tensor, state: _State) -> Tensor:
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


def _become(result: Tensor, tensor: Tensor) -> bool:
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
    return result if not state.in_graph and _become(result, plain) else plain


def _deferred_in(value: Any) -> Iterator[Any]:
    if type(value) is DeferredBatchNorm:
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _deferred_in(item)
    elif isinstance(value, dict):
        yield from _deferred_in(list(value.values()))


def _relu(result: Tensor, clip: float | None, inplace: bool) -> Any:
    if type(result) is not DeferredBatchNorm or result._state.values is not None:
        return NotImplemented
    state = result._state
    # PyTorch keeps the inputs of hardtanh: the mask is needed even if its output is overwritten.
    if (inplace and state.in_graph) or (clip is not None and state.residual is not None):
        return NotImplemented
    dst: Tensor = _ReLU.apply(result, clip)
    if inplace:
        if not _become(result, dst):
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
        or not residual.is_cpu
        or residual.is_neg()
        or not _is_private(residual)
    ):
        return NotImplemented
    try:
        total: Tensor = _Add.apply(result, residual)
    except RuntimeError:  # the memory is not PyTorch's own, and has no lazy clones
        return NotImplemented
    if not inplace:
        return total
    return result if _become(result, total) else NotImplemented


def _hardtanh(
    result: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Any:
    if min_val != 0 or not max_val > 0 or not np.isfinite(max_val):
        return NotImplemented
    return _relu(result, float(max_val), inplace)


_F = nn.functional
_HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {
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
    _HANDLERS[getattr(Tensor, _name)] = _HANDLERS[torch.add]
for _name in ("add_", "__iadd__"):
    _HANDLERS[getattr(Tensor, _name)] = lambda *args, **kwargs: (
        _add(args[0], args[1], True) if _is_pair(args, kwargs) else NotImplemented
    )


def _is_pair(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) == 2 and not kwargs


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
    try:
        if not _is_private(src):
            return None
    except RuntimeError:  # a view that autograd has invalidated: the error is PyTorch's
        return None
    statistics = operator(_core.Operation.forward_training, layer.eps).reduce((src,))
    if statistics is None:
        return None
    try:
        with torch.no_grad():
            snapshot = _Snapshot(src)
    except RuntimeError:  # the memory is not PyTorch's own, and has no lazy clones
        return None
    running_mean, running_var, _, momentum = begin_step(layer)
    count, channels = statistics[0], src.shape[1]
    moments = torch.from_numpy(statistics)
    mean, variance = moments[1 : channels + 1].float(), (moments[channels + 1 :] / count).float()
    if running_mean is not None:
        _core.update_running(running_mean, running_var, mean, variance, momentum, count)
    weight_copy, bias_copy = (None if t is None else t.detach().clone() for t in (weight, bias))
    operands = _Operands(snapshot, statistics, weight_copy, bias_copy, layer.eps)
    result: Tensor = _BatchNorm.apply(src, weight, bias, mean, variance, operands)
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
