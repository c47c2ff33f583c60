"""Replaces PyTorch's batch-norm kernels by onedsl's in the whole process."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import _core
from ..runtime.import_errors import second_import_message
from . import _huge_pages, _switch
from ._context import call_outside_modes

_registering: list[None] = []  # not empty during the call that registers the kernels
_lock = threading.RLock()  # of the first call: a forked child would wait for another thread's


def _op(name: str) -> Any:
    """Return an op of PyTorch by its name, with the name of the overload if there are several."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


_OPS = {name: _op(name) for name in _core.torch_ops()}
"""The ops whose kernels are replaced."""


def _override(register: Callable[[Any], None], argument: Any) -> None:
    """Call a function that registers kernels, without PyTorch's warning that others exist.

    While a function of PyTorch's Python interface runs, the warning is a Python warning, which can
    be filtered; otherwise it goes to stderr. _disabled_torch_function_impl is such a function; it
    works in every mode.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        torch._C._disabled_torch_function_impl(register, (), (argument,), {})


# PyTorch's own kernels as ops, to compare them with the ops that they compute. Defined here,
# because PyTorch rejects a second definition after an interrupt. Kept, because inductor of PyTorch
# 2.11 looks up all ops that ever were.
try:
    _library = torch.library.Library("onedsl_pytorch", "DEF")
except RuntimeError as _error:
    raise ImportError(second_import_message("onedsl.torch", "PyTorch")) from _error
for _overload in _OPS.values():
    _library.define(str(_overload._schema).partition("::")[2])
_override(_core.register_pytorchs_kernels, _library.ns)


@functools.cache
def _differences() -> dict[str, str]:
    """Return how PyTorch's own kernels differ from the ops, by op: an empty string if they do not.

    onedsl calls the kernels by private names, which do not contain the types of their results.
    """
    return call_outside_modes(lambda: {name: _difference(name) for name in _OPS})


def _difference(name: str) -> str:
    """Return how PyTorch's own kernel of an op differs from it, an empty string if it does not."""
    options: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    weight, bias, mean, variance = torch.linspace(0.5, 2, 12, **options).view(4, 3)
    src = torch.linspace(-1, 2, 24, **options).view(2, 3, 4)
    values = {"input": src, "grad_out": src.sin(), "weight": weight, "bias": bias, "eps": 1e-3}
    values |= {"running_mean": mean, "running_var": variance, "training": True, "momentum": 0.25}
    values |= {"save_mean": mean, "save_invstd": variance, "train": True, "output_mask": [True] * 3}
    computed = []
    for function in _OPS[name], operator.attrgetter(name)(torch.ops.onedsl_pytorch):
        inputs = copy.deepcopy([values[a.name] for a in _OPS[name]._schema.arguments])
        try:
            results = function(*inputs)
        except RuntimeError as error:
            return str(error)
        computed.append((*results, *filter(torch.is_tensor, inputs)))
    return "" if all(map(torch.equal, *computed)) else "its results differ"


@functools.cache
def _register() -> None:
    """Register onedsl's kernels with PyTorch's dispatcher, without PyTorch's warning."""
    usable = [op for op, difference in _differences().items() if not difference]
    left = ", ".join(f"{op} ({text})" for op, text in _differences().items() if text)
    if not usable:
        raise RuntimeError(
            f"onedsl.torch.enable does not support PyTorch {torch.__version__}: it cannot call "
            f"PyTorch's own kernels of {left}. Use torch.compile(model, backend='onedsl')"
        )
    if left:
        warnings.warn(
            f"onedsl.torch.enable leaves these ops to PyTorch {torch.__version__}, because it "
            f"cannot call PyTorch's own kernels: {left}",
            RuntimeWarning,
            stacklevel=3,
        )
    _override(_core.override_torch_kernels, usable)
    _warn_without_effect()


def _warn_without_effect() -> None:
    """Warn after the first step that trains batch norm if a compiled model does not use onedsl."""
    done = False  # a hook cannot remove itself: PyTorch iterates over the hooks
    seen = weakref.WeakSet[torch.optim.Optimizer]()

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal done
        if torch.compiler.is_compiling() or done or optimizer in seen or not enabled():
            return
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        trained = [p for p in parameters if p.grad is not None]
        if detect_fake_mode(trained) or not any(p.is_cpu and _has_gradient(p) for p in trained):
            return  # no training step on this CPU
        seen.add(optimizer)
        if _core.torch_kernels_used():
            done = True
        # PyTorch imports this module when it compiles with inductor.
        elif "torch._inductor.compile_fx" in sys.modules and _are_of_batch_norm(trained):
            done = True
            warnings.warn(
                "onedsl.torch.enable() had no effect on a training step: no batch norm ran in "
                "eager mode in a supported dtype. A compiled model needs "
                'torch.compile(model, backend="onedsl")',
                RuntimeWarning,
                stacklevel=3,
            )

    register_optimizer_step_post_hook(after_step)


def _has_gradient(parameter: torch.Tensor) -> bool:
    """Return whether a gradient has values other than 0.

    torch.distributed.checkpoint makes a step with zeros to create the state of an optimizer.
    """
    gradient: Any = parameter.grad
    if hasattr(gradient, "to_local"):  # a DTensor, whose other parts are in other processes
        gradient = gradient.to_local()
    return gradient.layout is not torch.strided or bool(gradient.any())


def _are_of_batch_norm(parameters: list[torch.Tensor]) -> bool:
    """Return whether one of these is a parameter of a batch-norm layer."""
    given = set(map(id, parameters))
    # A proxy may have any __class__.
    kinds = ((each, type(each)) for each in gc.get_objects())
    layers = (each for each, kind in kinds if issubclass(kind, nn.modules.batchnorm._BatchNorm))
    owned = (vars(layer).get("_parameters", {}).values() for layer in layers)
    return any(id(parameter) in given for parameters in owned for parameter in parameters)


def enable(*, huge_pages: bool = True) -> _core.TorchUse:
    """Use onedsl's batch-norm kernels in every model of this process.

    Replaces the CPU kernels of batch norm's forward pass in training and of its gradient in
    PyTorch's dispatcher. This affects every layer and function that calls these ops, of any class.
    PyTorch's own kernels still compute the forward pass in evaluation, gradients of the parameters
    alone, dtypes other than float32, bfloat16 and float16, parameters and running statistics that
    are strided, not float32, or share memory, tensors that are not aligned to their items, and
    every call that PyTorch rejects. Tensors of any strides are supported, and results have the
    memory layout of PyTorch's. Autograd is unchanged.

    The call takes effect at once, on all threads. Its result may be used as a context manager once;
    if there are several ``with`` blocks, on any threads, the kernels stay in use until the last
    block ends. Enabling and disabling are safe while other threads train.

    Parameters
    ----------
    huge_pages : bool, default True
        Whether to let PyTorch use huge pages, by its own switch ``THP_MEM_ALLOC_ENABLE=1``. In most
        networks, a step then has far fewer page faults, whatever computes it. PyTorch reads the
        switch once, at the first tensor of the process: **call enable before it**. A later call
        has no effect on memory, and the first one warns. A value that the user has set remains.
        Where the kernel has no huge pages, the logger ``onedsl.torch`` states it at level INFO.
        `report` shows each of these reasons. Processes that the program starts inherit the switch.
        `disable` does not undo it.

        Set False in two cases. Large tensors that are written sparsely, such as replay buffers,
        hash and embedding tables and sparse caches, take 2 MB for each page of 4 KB that is
        written. And networks whose large tensors have one size above 4 MB have as many page faults
        with huge pages as without.

    Warns
    -----
    RuntimeWarning
        If ``huge_pages`` is True, but a tensor was made before, so that PyTorch cannot use them.

    Raises
    ------
    RuntimeError
        If this version of PyTorch has none of its own kernels where they are expected. The first
        call compares a result of each with the op's; an op whose kernel is missing or differs is
        left to PyTorch, with a RuntimeWarning.

    Notes
    -----
    The kernels are C++ and call PyTorch's own kernels directly, so errors are PyTorch's own. A call
    costs less than PyTorch's for the smallest layers. A call that PyTorch's own kernel computes
    costs about a microsecond more in evaluation and after `disable`, and otherwise about four.

    inductor, torch.compile's default compiler, decomposes batch norm before kernels are selected,
    so `enable` has no effect on models that it compiles: use ``torch.compile(model,
    backend="onedsl")`` for them. PyTorch has no public function that reports what it compiles, so
    the RuntimeWarning about this comes after the first step of an optimizer that trains parameters
    of a batch-norm layer, if inductor is loaded and onedsl has not computed any batch norm.

    `report` lists what computes each layer of a model. `onedsl.verbose` logs the calls that
    PyTorch's own kernels compute, with the reason.

    Keras 3 on PyTorch calls no batch norm of PyTorch, so `enable` has no effect on its layers.

    A saved model does not contain this setting. Call enable again where the model is loaded.

    With ``ONEDSL_DISABLE=1`` in the environment, the call does nothing, and the backend "onedsl" is
    inductor: PyTorch's results and speed, without a change of the program.

    Examples
    --------
    >>> onedsl.torch.enable()  # doctest: +SKIP
    >>> with onedsl.torch.enable(huge_pages=False):  # doctest: +SKIP
    ...     train(model)
    """
    if _switch.is_off():
        return _switch.ended_use()
    if huge_pages:
        _huge_pages.request()  # first, because the registration makes tensors
    if not _register.cache_info().currsize:
        with _lock:
            if not _registering:  # unless a signal handler has interrupted the registration
                try:
                    _registering.append(None)
                    _register()
                finally:
                    _registering.clear()
    use = _core.begin_torch_use()
    use.until_closed = True  # the last step: an interrupt before it ends the use
    return use


def disable() -> None:
    """Use PyTorch's own kernels again, regardless of the number of `enable` calls before.

    PyTorch continues to use huge pages.
    """
    _core.end_all_torch_uses()


def enabled() -> bool:
    """Return whether `enable` is in effect."""
    return _core.torch_kernels_in_use()
