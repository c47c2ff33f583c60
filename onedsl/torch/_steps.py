"""What the layers share: the state of a layer in training, and tracing."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def running_statistics(
    layer: nn.modules.batchnorm._BatchNorm,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the statistics that a layer updates in training."""
    return (layer.running_mean, layer.running_var) if layer.track_running_stats else (None, None)


def count_step(layer: nn.modules.batchnorm._BatchNorm) -> float:
    """Count a step of training as PyTorch does, and return the weight of the new statistics."""
    if layer.track_running_stats and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if layer.momentum is None:
            return 1.0 / float(layer.num_batches_tracked)
    return 0.0 if layer.momentum is None else layer.momentum


def in_fx(layer: nn.Module, *inputs: Any) -> Any:
    """Trace a call of a layer with torch.fx as a single node, as is done for PyTorch's layers."""
    tracer = inputs[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), inputs, {})
