"""The base class of all layers; layers of batch norm and an activation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ..operators import attributes
from ..tensors.options import Activation
from ._operators import (
    BatchNormTraining,
    activate,
    batch_norm_training,
    update_running,
    why_unsupported,
)


def _number(value: Any) -> Any:
    """Return a number of NumPy or a 0-d tensor as a float, and anything else unchanged."""
    return float(value) if isinstance(value, (np.generic, np.ndarray, Tensor)) else value


class Layer(nn.modules.batchnorm._BatchNorm):
    """The base class of onedsl's layers: their state in training, and tracing."""

    def __init__(self, *arguments: Any, bias: bool) -> None:
        # PyTorch 2.11 has no parameter `bias`.
        super().__init__(*arguments, **({} if bias else {"bias": False}))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; numbers of NumPy and 0-d tensors become floats.

        torch.compile traces such numbers as tensors, which operators do not accept as numbers.
        """
        super().__setattr__(name, _number(value) if name in ("eps", "momentum") else value)

    def _running_statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the statistics that the layer updates in training."""
        return (self.running_mean, self.running_var) if self.track_running_stats else (None, None)

    def _count_step(self) -> float | Tensor:
        """Count a step of training as PyTorch does, and return the weight of the new statistics."""
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / self.num_batches_tracked.float()  # compilers have no number for it
        return 0.0 if self.momentum is None else self.momentum

    def _in_fx(self, *inputs: Any) -> Any:
        """Trace a call with torch.fx as a single node, as is done for PyTorch's layers."""
        tracer = inputs[0].tracer
        return tracer.create_proxy("call_module", tracer.path_of_module(self), inputs, {})


class BatchNormAct(Layer):
    """The base class of the layers below. Error messages of Python contain its name."""

    activation: Activation
    clip: float | None
    negative_slope: float | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: Activation,
        clip: float | None = None,
        negative_slope: float | None = None,
    ) -> None:
        positional = (num_features, eps, momentum, affine, track_running_stats, device, dtype)
        super().__init__(*positional, bias=bias)
        self.activation, self.clip, self.negative_slope = activation, clip, negative_slope
        self._parameter()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; those of the activation are validated."""
        if name in ("activation", "clip", "negative_slope"):
            value = attributes.PARSERS[name](_number(value))
        super().__setattr__(name, value)

    def _parameter(self) -> float | None:
        """Return the parameter of the activation, or raise if it has no such parameter."""
        given = {"clip": self.clip, "negative_slope": self.negative_slope}
        return attributes.parameter_of(self.activation, **given)

    def extra_repr(self) -> str:
        """Return the attributes, for ``repr``."""
        given = {name: getattr(self, name) for name in ("activation", "clip", "negative_slope")}
        shown = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return ", ".join((super().extra_repr(), *shown))

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        """Compute ``activation(batch_norm(input) + residual)``."""
        src = input
        if residual is not None and not isinstance(residual, (Tensor, torch.fx.Proxy)):
            raise TypeError(f"residual must be a Tensor, got {type(residual).__name__}")
        if isinstance(src, torch.fx.Proxy):
            return self._in_fx(src, *([] if residual is None else [residual]))
        self._check_input_dim(src)
        if residual is not None and residual.shape != src.shape:
            raise ValueError(
                f"residual must have the input's shape {tuple(src.shape)}, got "
                f"{tuple(residual.shape)}"
            )
        running = self._running_statistics()
        weight, bias, eps = self.weight, self.bias, self.eps
        activation = self.activation, self._parameter()
        given = (src, weight, bias, residual)
        inputs = (src, *running, weight, bias, residual)
        if (
            self.training
            # Programs without onedsl load what is exported. In PyTorch 2.11, is_exporting() is also
            # true in what torch.compile traces.
            and not torch.compiler._is_exporting_flag
            and not torch.jit.is_tracing()
            and not torch._C._are_functorch_transforms_active()
            and all(forward_ad.unpack_dual(t).tangent is None for t in given if t is not None)
            and not why_unsupported("act_forward_training", *inputs, eps=eps)
        ):
            arguments = *given, eps, *activation
            if not torch.compiler.is_compiling():
                return BatchNormTraining.apply(*arguments, running, self._count_step())[0]
            output = batch_norm_training(*arguments)
            update_running(running, output, self._count_step())
            return output[0]
        dst = super().forward(src)
        if residual is not None:
            dst = dst + residual
        return activate(dst, *activation)


class BatchNormAct1d(BatchNormAct, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d, an optional addition and an activation, as one layer.

    It is called with the input and, as at the end of a residual block, with a residual of the same
    shape: ``layer(input, residual=None)`` returns ``activation(batch_norm(input) + residual)``.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps, momentum, affine, track_running_stats, device, dtype, bias
        As in the layer without the activation. ``bias=False`` needs a PyTorch whose layer has it.
        Numbers of NumPy and 0-d tensors become floats when they are assigned.
    activation : {"relu", "leaky_relu", "silu", "hardswish", "gelu", "gelu_tanh"}
        The activation, by the name of PyTorch's function. "gelu_tanh" is GELU with
        ``approximate="tanh"``.
    clip : float, optional
        Upper bound of "relu": 6.0 for ReLU6. By default there is no bound.
    negative_slope : float, optional
        Slope of "leaky_relu" below zero. Default: 0.01.

    Notes
    -----
    Parameters, buffers and their names are those of the layer without the activation. In training,
    one kernel computes all, in eager mode and in compiled models, and autograd saves only the input
    and the residual (the result instead of the residual if the activation is a ReLU), so the
    activation needs no memory even if it is not in place. The gradient computes the argument of the
    activation again, from the weight and the bias of the forward pass, which may
    have changed since. PyTorch's own functions run in evaluation, in exported programs, in
    torch.jit.trace, for forward-mode derivatives, and for arguments that onedsl's kernels do not
    support. torch.jit.script does not support these layers.

    In training, the result has the input's order of axes in memory, also where PyTorch's would be
    contiguous, and running statistics are updated by operators that autograd notices: a result of
    evaluation cannot be differentiated after the layer was trained.

    PyTorch's functions that replace layers of batch norm or include them in convolutions, such as
    its convert_sync_batchnorm and fuse_conv_bn_eval, lose the activation without a warning, and its
    quantization does not include these layers in convolutions. Load the state dict into a model
    with ``torch.nn.BatchNorm2d`` and the activation before: it has the same names.

    The layers change nothing else in the process. ``THP_MEM_ALLOC_ENABLE=1`` in the environment
    saves most page faults of a step.
    """


class BatchNormAct2d(BatchNormAct, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d, an addition and an activation as one layer: see `BatchNormAct1d`."""


class BatchNormAct3d(BatchNormAct, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d, an addition and an activation as one layer: see `BatchNormAct1d`."""


for _class in BatchNormAct.__subclasses__():
    _class.__module__ = "onedsl.torch"  # the name in saved models
