"""onedsl's layers put into a model, and taken out again."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from ._layers import BatchNorm1d, BatchNorm2d, BatchNorm3d

_OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def convert(module: ModuleT) -> ModuleT:
    """Give every batch-norm layer of a model onedsl's gradient, in place.

    The layers stay the objects that they are, with their parameters, buffers, hooks and mode; only
    their class changes. Subclasses of PyTorch's three classes are left alone. A lazy layer is such
    a subclass until it has seen its first input: convert after that.

    Parameters
    ----------
    module : torch.nn.Module
        A model, or a layer.

    Returns
    -------
    torch.nn.Module
        The same object.
    """
    return _recast(module, _OURS)


def revert(module: ModuleT) -> ModuleT:
    """Undo `convert`, for tools that know PyTorch's own layers alone (torch.fx, torch.jit.script).

    Parameters
    ----------
    module : torch.nn.Module
        A model, or a layer.

    Returns
    -------
    torch.nn.Module
        The same object.
    """
    return _recast(module, _THEIRS)


def _recast(module: ModuleT, classes: dict[type[nn.Module], type[nn.Module]]) -> ModuleT:
    for layer in module.modules():
        layer.__class__ = classes.get(type(layer), type(layer))
    return module
