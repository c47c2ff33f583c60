"""onedsl's layers put into a model, and taken out again."""

from __future__ import annotations

from types import EllipsisType
from typing import TypeVar

from torch import nn
from torch.nn.utils import parametrize

from ._batch_norms import is_batch_norm, log_left
from ._fused import FusedLayer
from ._layers import BatchNorm1d, BatchNorm2d, BatchNorm3d
from ._sync import Group, SyncBatchNorm

_OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
_SYNCHRONIZED = dict.fromkeys([*_OURS, *_THEIRS, nn.SyncBatchNorm, SyncBatchNorm], SyncBatchNorm)

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def convert(module: ModuleT, *, process_group: Group | EllipsisType | None = ...) -> ModuleT:
    """Give every batch-norm layer of a model onedsl's gradient, in place.

    With `process_group`, they become `SyncBatchNorm`, and so do torch.nn.SyncBatchNorm's: their
    statistics are those of all processes of the group.

    This is for one model, where `enable` is for the whole process and has the forward pass, too;
    and for torch.compile, which keeps this gradient.

    The layers stay the objects that they are, with their parameters, buffers, hooks and mode; only
    their class changes. Subclasses of PyTorch's three classes are left alone, unless it is
    torch.nn.utils.parametrize that made them. A lazy layer is such a subclass until it has seen its
    first input: convert after that. `report` and the logger ``onedsl.torch`` (level INFO) tell what
    was left, and why.

    Parameters
    ----------
    module : torch.nn.Module
        A model, or a layer.
    process_group : torch.distributed.ProcessGroup or None, optional
        Who shares statistics; None is the default group. Absent means that nothing is shared.

    Returns
    -------
    torch.nn.Module
        The same object.
    """
    layers = [layer for layer in module.modules() if is_batch_norm(layer)]
    for layer in layers:
        if process_group is ...:
            _recast(layer, _OURS)
        else:
            _synchronize(layer, process_group)
    left = {layer: why for layer in layers if (why := why_left(layer))}
    log_left("converted", len(layers) - len(left), left, module)
    return module


def revert(module: ModuleT) -> ModuleT:
    """Undo `convert`, for tools that know PyTorch's own layers alone, as torch.jit.script.

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
        _recast(layer, _THEIRS)
        _desynchronize(layer)
    return module


def is_converted(layer: nn.Module) -> bool:
    """Tell whether a layer is what `convert` makes."""
    return _kind(layer) in _THEIRS or _kind(layer) is SyncBatchNorm


def why_left(layer: nn.Module) -> str:
    """Say why `convert` leaves a batch-norm layer; nothing if it does not."""
    kind = _kind(layer)
    if kind in _OURS or is_converted(layer):
        return ""
    if kind is nn.SyncBatchNorm:
        return "it is for GPUs: convert takes it with a process_group"
    if isinstance(layer, FusedLayer):
        return "it is fused"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return "it is lazy, and has seen no input yet"
    return f"{kind.__name__} is another class than PyTorch's BatchNorm1d to 3d"


def _kind(layer: nn.Module) -> type[nn.Module]:
    """Give the class of a layer, below what torch.nn.utils.parametrize puts over it."""
    kind = type(layer)
    return kind.__bases__[0] if parametrize.is_parametrized(layer) else kind


def _synchronize(layer: nn.Module, group: Group | None) -> None:
    kind = _kind(layer)
    _recast(layer, _SYNCHRONIZED)
    if _kind(layer) is SyncBatchNorm:
        layer.process_group = group
        if kind not in (SyncBatchNorm, nn.SyncBatchNorm):
            layer._reverts_to = _THEIRS.get(kind, kind)


def _desynchronize(layer: nn.Module) -> None:
    if _kind(layer) is SyncBatchNorm:
        made = layer._reverts_to
        _recast(layer, {SyncBatchNorm: made})
        if made is not nn.SyncBatchNorm:
            del layer._reverts_to, layer.process_group


def _recast(layer: nn.Module, classes: dict[type[nn.Module], type[nn.Module]]) -> None:
    kind = _kind(layer)
    if kind not in classes:
        return
    made = classes[kind]
    if parametrize.is_parametrized(layer):
        # The class over it has a property for each parameter. Copies of the layer share it.
        over = type(layer)
        own = {n: v for n, v in vars(over).items() if n not in ("__dict__", "__weakref__")}
        made = type(f"Parametrized{made.__name__}", (made,), own)
    layer.__class__ = made
