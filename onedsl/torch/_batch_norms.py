"""Batch-norm layers among the modules of a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import nn

_logger = logging.getLogger("onedsl.torch")


def is_batch_norm(layer: nn.Module) -> bool:
    """Tell whether a module is batch norm of some kind, PyTorch's or another's."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) or (
        "BatchNorm" in type(layer).__name__ and not any(layer.children())
    )


def has_hooks(module: nn.Module) -> bool:
    """Tell whether somebody looks at a module's input or output."""
    return any(
        getattr(module, f"_{kind}hooks")
        for kind in ("forward_", "forward_pre_", "backward_", "backward_pre_")
    )


def log_left(done: str, count: int, left: Mapping[nn.Module, str], model: nn.Module) -> None:
    """Say how many layers of a model were taken, and why each of the others was not."""
    _logger.info("%s %d batch-norm layers, left %d", done, count, len(left))
    for name, layer in model.named_modules():
        if layer in left:
            _logger.info("left %s (%s): %s", name, type(layer).__name__, left[layer])
