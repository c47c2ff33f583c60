"""What the layers share: the arguments of a call that follow from a layer's state, and tracing."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn


class Step(NamedTuple):
    """The arguments of a batch-norm call that follow from the state of the layer."""

    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float


def begin_step(layer: nn.modules.batchnorm._BatchNorm) -> Step:
    """Return the arguments of a layer's next call, and in training count it as PyTorch does."""
    tracked = layer.training and layer.track_running_stats
    momentum = 0.0 if layer.momentum is None else layer.momentum
    if tracked and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if layer.momentum is None:
            momentum = 1.0 / float(layer.num_batches_tracked)
    running = tracked or not layer.training
    mean, variance = (layer.running_mean, layer.running_var) if running else (None, None)
    training = layer.training or (layer.running_mean is None and layer.running_var is None)
    return Step(mean, variance, training, momentum)


def in_fx(layer: nn.Module, *inputs: Any) -> Any:
    """Trace a call of a layer with torch.fx as a single node, as is done for PyTorch's layers."""
    tracer = inputs[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), inputs, {})
