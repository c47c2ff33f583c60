"""Conversion of the batch-norm layers of a model to onedsl's layers, and back."""

from __future__ import annotations

from types import EllipsisType
from typing import TypeVar

from torch import nn

from ._fuse import UNFUSED, is_fused
from ._layer_classes import change_class, class_of, is_batch_norm, log_skipped, why_unknown
from ._layers import BatchNorm1d, BatchNorm2d, BatchNorm3d
from ._relu_layers import ReLULayer
from ._sync import Group, SyncBatchNorm, desynchronize, synchronize

_CONVERTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}
_ORIGINAL = {converted: original for original, converted in _CONVERTED.items()}

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def convert(module: ModuleT, *, process_group: Group | EllipsisType | None = ...) -> ModuleT:
    """Convert the batch-norm layers of a model to onedsl's layers, in place.

    onedsl then computes the gradient of these layers. If `process_group` is given, the layers
    become `SyncBatchNorm`, whose statistics are those of all processes of the group. This includes
    layers of torch.nn.SyncBatchNorm, which are skipped otherwise.

    `convert` changes the gradient of one model, also under torch.compile. `enable` changes the
    forward pass and the gradient of all models of the process, but has no effect on models that
    inductor, torch.compile's default compiler, compiles.

    Only the classes of the layers change. The layers stay the same objects, with the same
    parameters, buffers, hooks and mode. Subclasses of torch.nn.BatchNorm1d to 3d are skipped,
    except those that torch.nn.utils.parametrize creates. A lazy layer is an instance of a subclass
    until its first input. `report` and the logger ``onedsl.torch`` (level INFO) list the skipped
    layers and the reasons.

    Parameters
    ----------
    module : torch.nn.Module
        A model, or a layer.
    process_group : torch.distributed.ProcessGroup or None, optional
        The processes that share statistics; None is the default group of torch.distributed. If
        the argument is not given, each process uses its own statistics.

    Returns
    -------
    torch.nn.Module
        The same object.
    """
    layers = [layer for layer in module.modules() if is_batch_norm(layer)]
    for layer in layers:
        if process_group is ...:
            change_class(layer, _CONVERTED)
        else:
            synchronize(layer, process_group)
    skipped = {layer: why for layer in layers if (why := why_not_converted(layer))}
    log_skipped("converted", len(layers) - len(skipped), skipped, module)
    return module


def revert(module: ModuleT) -> ModuleT:
    """Undo `convert` and `fuse`: restore PyTorch's classes of the layers.

    Parameters
    ----------
    module : torch.nn.Module
        A model, or a layer.

    Returns
    -------
    torch.nn.Module
        The same object.
    """
    for layer in module.modules():
        change_class(layer, UNFUSED)
        change_class(layer, _ORIGINAL)
        desynchronize(layer)
    return module


def is_converted(layer: nn.Module) -> bool:
    """Return whether a layer has a class to which `convert` changes layers."""
    return class_of(layer) in _ORIGINAL or class_of(layer) is SyncBatchNorm


def why_not_converted(layer: nn.Module) -> str:
    """Return why `convert` skips a layer, or an empty string if it does not skip the layer."""
    kind = class_of(layer)
    if kind in _CONVERTED or is_converted(layer):
        return ""
    if kind is nn.SyncBatchNorm:
        return "it is for GPUs; pass process_group to convert it"
    if is_fused(layer) or isinstance(layer, ReLULayer):
        return "it is fused"
    return why_unknown(layer)
