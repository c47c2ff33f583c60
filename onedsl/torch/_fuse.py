"""Batch norm and the ReLU behind it made one layer, in a model that is there already."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from ._batch_norms import log_left
from ._find import find

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def fuse(model: ModuleT) -> ModuleT:
    """Make one layer of each batch norm and the ReLU behind it, in place.

    Found are ReLU and ReLU6, as layers, functions or methods, behind BatchNorm1d to 3d of PyTorch's
    or onedsl's, with an addition between the two or without: in Sequentials, in the forward method
    of a module that calls its layers one after the other (torch.fx traces it), and timm's
    BatchNormAct2d. `report` tells what was found, and why something was left.

    Layers stay the objects that they are, with their parameters, buffers, hooks and names in
    state_dict; their class becomes `BatchNormReLU2d`, `BatchNormAddReLU2d` or the like. A ReLU that
    nothing else uses becomes an Identity. Where there is an addition, or the ReLU has other users,
    the class of the module around becomes one of the same name and kind with another forward.

    Parameters
    ----------
    model : torch.nn.Module
        A model, or a part of it, in training or evaluation: both work afterwards.

    Returns
    -------
    torch.nn.Module
        The same object.

    Notes
    -----
    A module is left as it is where torch.fx cannot trace it, or where it could trace one of several
    ways through it: forward methods with optional arguments, or with another way in evaluation.
    What is left works as before. Hooks and forward methods that look at a layer's output see that
    of the ReLU.

    Fuse last: tools that put another layer in the place of each batch norm, as
    torch.nn.SyncBatchNorm.convert_sync_batchnorm does, would lose the ReLU.
    """
    found, left = find(model)
    for change in dict.fromkeys(change for changes in found.values() for change in changes):
        change()
    log_left("fused", len(found), left, model)
    return model
