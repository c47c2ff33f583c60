"""The base class of the layers: their state in training, and tracing."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Layer(nn.modules.batchnorm._BatchNorm):
    """torch.nn's base class of batch norm, with what the layers need of it."""

    def __init__(self, *arguments: Any, bias: bool) -> None:
        # PyTorch 2.11 has no parameter `bias`.
        super().__init__(*arguments, **({} if bias else {"bias": False}))

    def _running_statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the statistics that the layer updates in training."""
        return (self.running_mean, self.running_var) if self.track_running_stats else (None, None)

    def _count_step(self) -> float:
        """Count a step of training as PyTorch does, and return the weight of the new statistics."""
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum

    def _in_fx(self, *inputs: Any) -> Any:
        """Trace a call with torch.fx as a single node, as is done for PyTorch's layers."""
        tracer = inputs[0].tracer
        return tracer.create_proxy("call_module", tracer.path_of_module(self), inputs, {})
