"""onedsl's kernels in the place of PyTorch's own, for every model of the process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ._op import IN_TRAINING, core_operator, run
from ._training import is_laid_out, normalize

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_FORWARD = _core.Operation.forward_training

Kernel = Callable[..., Any]
Outputs = tuple[Tensor | None, ...]


def _forward(
    src: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Outputs | None:
    if not training:
        return None
    answer = normalize(_FORWARD, src, weight, bias, running_mean, running_var, momentum, eps)
    if answer is not None:
        _core.to_inverse_stddev(answer[2], eps)
    return answer


def _forward_without_statistics(
    src: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Outputs | None:
    return _forward(src, weight, bias, None, None, training, momentum, eps)


def _forward_with_update(
    src: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Outputs | None:
    answer = _forward(src, weight, bias, running_mean, running_var, True, momentum, eps)
    return None if answer is None else (*answer, src.new_empty(0, dtype=torch.uint8))


def _backward(
    diff_dst: Tensor,
    src: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
    _reserve: Tensor | None = None,
) -> Outputs | None:
    if not output_mask[0] or eps <= 0 or src.dtype != diff_dst.dtype or not is_laid_out(src):
        return None
    if train:
        operator, mean, spread = IN_TRAINING, save_mean, save_invstd
    else:
        operator, mean, spread = core_operator(eps, "NCX", "frozen"), running_mean, running_var
    if mean is None or spread is None or mean.dtype is not torch.float32:
        return None
    sums = output_mask[1] or output_mask[2]
    gradients = run(operator, src, diff_dst, mean, spread, weight, sums)
    if gradients is None and src.stride() != diff_dst.stride():
        diff_dst = torch.empty_like(src).copy_(diff_dst)
        gradients = run(operator, src, diff_dst, mean, spread, weight, sums)
    if gradients is None:
        return None
    diff_src, diff_weight, diff_bias = (*gradients, None, None)[:3]
    return (
        diff_src,
        diff_weight if output_mask[1] else None,
        diff_bias if output_mask[2] else None,
    )


_KERNELS: dict[str, Kernel] = {
    "native_batch_norm": _forward,
    "_native_batch_norm_legit": _forward,
    "_native_batch_norm_legit.no_stats": _forward_without_statistics,
    "_batch_norm_with_update": _forward_with_update,
    "native_batch_norm_backward": _backward,
    "batch_norm_backward": _backward,
}

# Two ops have kernels in C++, too, for plain calls. Where a call is not plain these pass it on, to
# ops of the same arguments that have the kernels above. They read arguments by these schemas.
_IN_CPP = {
    "native_batch_norm": "(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
    "Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
    "native_batch_norm_backward": "(Tensor grad_out, Tensor input, Tensor? weight, "
    "Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, "
    "bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
}

_lock = threading.Lock()
_registered: tuple[object, ...] | None = None  # what takes the kernels with it


def _kernel(name: str, ours: Kernel) -> Kernel:
    theirs = torch.library.get_kernel(f"aten::{name}", "CPU")

    def kernel(*arguments: Any) -> Any:
        answer = ours(*arguments)
        return theirs.call_boxed(_CPU, *arguments) if answer is None else answer

    return kernel


def _telling(kernel: Kernel) -> Kernel:
    """Make of a kernel one that C++ may call: PyTorch loses what it raises on the way there."""

    def told(*arguments: Any) -> Any:
        try:
            return kernel(*arguments)
        except BaseException as error:
            kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
            _core.fail_torch_kernel(f"{kind}{error}")
            return None, None, None

    return told


def _register() -> tuple[object, ...]:
    kernels = {name: _kernel(name, ours) for name, ours in _KERNELS.items()}
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # PyTorch warns of what is meant here.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")
    schemas = {name: str(getattr(torch.ops.aten, name).default._schema) for name in _IN_CPP}
    if schemas != {name: f"aten::{name}{schema}" for name, schema in _IN_CPP.items()}:
        return (library,)
    in_cpp = _core.register_torch_kernels()
    if in_cpp is None:
        return (library,)
    others = torch.library.Library("onedsl", "FRAGMENT")
    for name, schema in _IN_CPP.items():
        others.define(f"_{name}{schema}")
        others.impl(f"_{name}", _telling(kernels[name]), "CPU")
    return in_cpp, library, others


class enable:  # noqa: N801 - called as a function, like torch.set_grad_enabled
    """Let every model of this process train with onedsl's batch normalization.

    PyTorch's CPU kernels of batch norm's forward pass in training and of its gradient become
    onedsl's, in PyTorch's own dispatcher: for all layers and functions, of any class, that end
    there. Autograd stays PyTorch's, and so do evaluation, other types than float32, bfloat16 and
    float16, parameters that are not float32, other memory than contiguous and channels_last, and
    anything else that onedsl has not: PyTorch's own kernels run there, as before.

    It acts at once, and may be used as a context manager: at the end of a ``with`` block all is as
    it was before. Call it before other threads train.

    Notes
    -----
    The kernels of plain calls, on whole tensors with all their statistics or none, are in C++, and
    cost less than PyTorch's own for the smallest layers; in evaluation, whose arithmetic stays
    PyTorch's, a microsecond more. Other calls of these ops go through Python, and so do the ops
    that exported programs have: that takes some 5 microseconds a call. There, too, what PyTorch's
    kernels do not take is a RuntimeError in PyTorch's words, whatever it is without onedsl.

    Results of 4 MB and more are not PyTorch's own memory, and cannot be resized in place: they lie
    in large pages, as NumPy's arrays do. Without, a layer of 50 MB takes 1.5 times as long.

    inductor, torch.compile's compiler, takes batch norm to pieces before any kernel is looked for:
    a model that it compiled runs as without onedsl. There, `convert` brings the gradient.

    Whole models that are saved know nothing of this: where they are loaded, call it again.

    Examples
    --------
    >>> onedsl.torch.enable()  # doctest: +SKIP
    >>> with onedsl.torch.enable():  # doctest: +SKIP
    ...     train(model)
    """

    def __init__(self) -> None:
        global _registered  # noqa: PLW0603 - PyTorch's dispatcher is global, too
        with _lock:
            self._was_enabled = _registered is not None
            if not self._was_enabled:
                _registered = _register()

    def __enter__(self) -> enable:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._was_enabled:
            disable()


def disable() -> None:
    """Undo `enable`: PyTorch's own kernels run again. Does nothing where they do already."""
    global _registered  # noqa: PLW0603
    with _lock:
        _registered = None


def enabled() -> bool:
    """Tell whether `enable` is in force.

    Returns
    -------
    bool
    """
    return _registered is not None
