"""Layers that compute batch norm together with the addition and the ReLU that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from . import _compiled_ops, _layers
from ._deferred import defer
from ._deferred_tensor import DeferredBatchNorm, make_plain
from ._layer_classes import change_class, class_of, is_batch_norm, log_skipped, why_unknown

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class FusedLayer(nn.modules.batchnorm._BatchNorm):
    """Base of the classes that `fuse` gives to layers."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Apply batch normalization, deferred where a fused kernel may follow."""
        return apply_fused(self, input, super().forward)

    def __prepare_scriptable__(self) -> nn.Module:
        """Return the layer for torch.jit.script: the unfused one, with the same parameters."""
        plain = nn.Module.__new__(UNFUSED[class_of(self)])
        plain.__dict__.update(self.__dict__)
        return plain


def apply_fused(
    layer: nn.modules.batchnorm._BatchNorm, src: Tensor, unfused: Callable[[Tensor], Tensor]
) -> Tensor:
    """Apply a layer as after `fuse`, where `unfused` is its forward method before."""
    if torch.compiler.is_compiling():
        compiled = _compiled_ops.apply(layer, src)
        return unfused(src) if compiled is None else compiled
    if isinstance(src, torch.fx.Proxy):
        return _layers.in_fx(layer, src)
    if type(src) is DeferredBatchNorm:
        src = make_plain(src)
    if layer.training and torch.is_grad_enabled() and not _has_hooks(layer):
        result = defer(layer, src)
        if result is not None:
            return result
    return unfused(src)


def _has_hooks(layer: nn.Module) -> bool:
    """Return whether hooks see the output of a layer: then it must be an ordinary tensor."""
    return bool(
        layer._forward_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or nn.modules.module._has_any_global_hook()
    )


class FusedBatchNorm1d(FusedLayer, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d after `fuse`."""


class FusedBatchNorm2d(FusedLayer, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d after `fuse`."""


class FusedBatchNorm3d(FusedLayer, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d after `fuse`."""


class FusedConvertedBatchNorm1d(FusedLayer, _layers.BatchNorm1d):
    """onedsl.torch.BatchNorm1d after `fuse`."""


class FusedConvertedBatchNorm2d(FusedLayer, _layers.BatchNorm2d):
    """onedsl.torch.BatchNorm2d after `fuse`."""


class FusedConvertedBatchNorm3d(FusedLayer, _layers.BatchNorm3d):
    """onedsl.torch.BatchNorm3d after `fuse`."""


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: FusedBatchNorm1d,
    nn.BatchNorm2d: FusedBatchNorm2d,
    nn.BatchNorm3d: FusedBatchNorm3d,
    _layers.BatchNorm1d: FusedConvertedBatchNorm1d,
    _layers.BatchNorm2d: FusedConvertedBatchNorm2d,
    _layers.BatchNorm3d: FusedConvertedBatchNorm3d,
}
UNFUSED = {fused: plain for plain, fused in FUSED.items()}
for _class in UNFUSED:
    _class.__module__ = "onedsl.torch"  # the name in saved models


def fuse(model: ModuleT) -> ModuleT:
    """Let batch-norm layers compute the addition and the ReLU that follow them, in place.

    No forward method is replaced, and nothing is traced. In training, a layer returns a tensor
    whose normalization is deferred. A ReLU or ReLU6, as a layer, a function or a method, in place
    or not, then runs one kernel for the batch norm and itself, in the backward pass as well. An
    addition of one tensor of the same shape and type between the two becomes part of it. Any other
    use computes the plain result. So every model computes what it computes without `fuse`, within
    rounding, in every mode and on every path.

    Only the classes of the layers change. They stay the same objects with the same parameters,
    buffers and names in state_dict. Layers of BatchNorm1d to 3d are changed, PyTorch's and
    onedsl's, and no subclasses. `revert` undoes it, and `report` lists what was skipped.

    Parameters
    ----------
    model : torch.nn.Module
        A model, or a part of it.

    Returns
    -------
    torch.nn.Module
        The same object.

    Notes
    -----
    A layer computes its result at once as the step before used it, with a ReLU or without. This
    affects only the speed: if the use is another one, the kernels run again.

    The plain result is computed at once in evaluation, without gradients, for inputs of fewer than
    1,048,576 elements (2,097,152 where an addition follows), under torch.jit, torch.func and
    PyTorch's modes, for layers with forward or backward hooks, and for what onedsl's kernels do not
    support. So it is for inputs and residuals that no operation with gradients computed, as threads
    may share them.

    ``torch.compile(fuse(model))`` needs no other option. In training, a batch norm with its
    addition and ReLU, and their gradients, are operators that the compiled graph calls. Exported
    programs hold PyTorch's operators only.

    A deferred result is an instance of a subclass of torch.Tensor until it is used: do not compare
    its type. C++ functions that are not PyTorch operators and read a tensor's memory raise
    RuntimeError if they are called with it: `revert` the layer before them. A write to the input
    between the layer and the ReLU is detected, except through a NumPy array or DLPack capsule that
    was made of it before.

    torch.autograd.graph shows nodes of onedsl's; the output of a ReLU without an addition is not
    kept for the backward pass.
    """
    layers = [layer for layer in model.modules() if is_batch_norm(layer)]
    for layer in layers:
        change_class(layer, FUSED)
    skipped = {layer: why for layer in layers if (why := why_not_fused(layer))}
    log_skipped("fused", len(layers) - len(skipped), skipped, model)
    return model


def is_fused(layer: nn.Module) -> bool:
    """Return whether `fuse` changed a layer."""
    return class_of(layer) in UNFUSED


def why_not_fused(layer: nn.Module) -> str:
    """Return why `fuse` skips a layer; empty if it does not."""
    return "" if class_of(layer) in FUSED or is_fused(layer) else why_unknown(layer)
