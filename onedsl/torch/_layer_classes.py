"""Detection of batch-norm layers, and changes of their classes in place."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import nn
from torch.nn.utils import parametrize

_logger = logging.getLogger("onedsl.torch")

Classes = Mapping[type[nn.Module], type[nn.Module]]


def is_batch_norm(layer: nn.Module) -> bool:
    """Return whether a module is a batch-norm layer of PyTorch or of another library.

    A module of another library is one if its class name contains ``BatchNorm`` and it has no child.
    """
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) or (
        "BatchNorm" in type(layer).__name__ and not any(layer.children())
    )


def class_of(layer: nn.Module) -> type[nn.Module]:
    """Return the class of a layer, without the subclass that torch.nn.utils.parametrize adds."""
    kind = type(layer)
    return kind.__bases__[0] if parametrize.is_parametrized(layer) else kind


def change_class(layer: nn.Module, classes: Classes) -> None:
    """Change the class of a layer if `classes` has an entry for it."""
    kind = class_of(layer)
    if kind not in classes:
        return
    new = classes[kind]
    if parametrize.is_parametrized(layer):
        # The class that parametrize adds has a property for each parameter, and copies of the layer
        # share it, so it must not be modified.
        old = type(layer)
        own = {n: v for n, v in vars(old).items() if n not in ("__dict__", "__weakref__")}
        new = type(f"Parametrized{new.__name__}", (new,), own)
    layer.__class__ = new


def why_unknown(layer: nn.Module) -> str:
    """Return why `convert` and `fuse` skip a layer of a class that they do not support."""
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return "it is lazy and was not initialized by an input"
    return f"{class_of(layer).__name__} is not one of PyTorch's BatchNorm1d, 2d and 3d"


def log_skipped(done: str, count: int, skipped: Mapping[nn.Module, str], model: nn.Module) -> None:
    """Log the number of changed layers, and the reason for each skipped layer of the model.

    `done` is the first word of the message: ``converted`` or ``fused``.
    """
    _logger.info("%s %d batch-norm layers, skipped %d", done, count, len(skipped))
    for name, layer in model.named_modules():
        if layer in skipped:
            _logger.info("skipped %s (%s): %s", name, type(layer).__name__, skipped[layer])
