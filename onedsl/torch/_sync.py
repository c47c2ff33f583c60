"""Batch norm with the statistics of the batches of all processes of a group."""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from ..operators.batch_norm_forward_training import BatchNormForwardTraining
from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..operators.totals import BatchNormTotals
from ..runtime.run_log import record_call
from ._gradient import check_memory
from ._layers import Layer
from ._operators import TYPES

# To make an operator takes a tenth of a small layer's step.
_forward = lru_cache(BatchNormForwardTraining)
_backward = lru_cache(BatchNormTrainingBackward)

Totals = TypeVar("Totals", bound=BatchNormTotals)

Group = Any
"""torch.distributed.ProcessGroup, which does not exist in a PyTorch without torch.distributed."""

_checked: weakref.WeakKeyDictionary[Group, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()
"""The layers that have the same number of channels on all processes, by group."""


class _SyncBatchNorm(torch.autograd.Function):
    """A forward and a backward pass, each with one exchange between `reduce` and `apply`."""

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        group: Group,
    ) -> Tensor:
        forward = _forward(eps, data_format="NCX")
        detached = src.detach()
        moments = _merge(forward.reduce(detached), group)
        if moments.count == 1:
            raise ValueError(
                "the inputs of all processes together must have more than 1 value per channel "
                "when training, got 1"
            )
        gamma, beta = _f32(weight), _f32(bias)
        if gamma is not None or beta is not None:  # the op has both inputs or neither
            gamma = torch.ones_like(beta) if gamma is None else gamma
            beta = torch.zeros_like(gamma) if beta is None else beta
        zeros = src.new_zeros(src.shape[1], dtype=torch.float32)
        dst, _, _, mean, variance = forward.apply(moments, detached, zeros, zeros, gamma, beta)
        if running_mean is not None and running_var is not None and moments.count > 0:
            # By PyTorch's formula, in any dtype and strides.
            unbiased = variance * (moments.count / (moments.count - 1))
            for old, new in (running_mean, mean), (running_var, unbiased):
                old.copy_(old.double() * (1 - momentum) + new.double() * momentum)
        ctx.save_for_backward(src, weight, mean, variance)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.eps, ctx.group = eps, group
        _record("forward", 0, [mean.data_ptr()], weight, running_mean)
        return dst

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        src, weight, mean, variance = ctx.saved_tensors
        check_memory(grad_output=diff_dst, input=src, weight=weight, mean=mean, variance=variance)
        src_needed, weight_needed, bias_needed, *_ = ctx.needs_input_grad
        if diff_dst.stride() != src.stride():
            diff_dst = torch.empty_like(src).copy_(diff_dst)
        backward = _backward(ctx.eps, data_format="NCX")
        inputs = (src.detach(), diff_dst.detach(), mean, variance)
        sums = backward.reduce(*inputs)
        diff_src = None
        if src_needed:
            total = _merge(sums, ctx.group)
            diff_src = backward.apply(total, *inputs, _f32(weight)).diff_src
        # Not summed over the processes, as in torch.nn.SyncBatchNorm: DistributedDataParallel
        # averages the gradients of all parameters.
        diff_weight = weight.new_tensor(sums.diff_gamma) if weight_needed else None
        diff_bias = src.new_tensor(sums.diff_beta, dtype=ctx.bias_dtype) if bias_needed else None
        _record("gradient", mean.data_ptr(), [], weight)
        return diff_src, diff_weight, diff_bias, None, None, None, None, None


def _record(pass_: str, source: int, results: list[int], *tensors: Tensor | None) -> None:
    addresses = [t.data_ptr() for t in tensors if t is not None]
    record_call(pass_, "onedsl with all processes", None, (), addresses, source, results)


def _merge(totals: Totals, group: Group) -> Totals:
    """Merge the totals of all processes in the order of ranks, so that all get the same bits."""
    return totals._of_parts(_gather(torch.from_numpy(totals.to_vector()), group).numpy())


def _gather(mine: Tensor, group: Group) -> Tensor:
    """Return the vectors of all processes, one row each in the order of ranks.

    The exchange is an all-to-all of copies, because gloo sends these at once. In its all-gather and
    all-reduce, the processes form a ring, and each step around it waits for the one before.
    """
    copies = mine.expand(distributed.get_world_size(group), -1).contiguous()
    rows = torch.empty_like(copies)
    distributed.all_to_all_single(rows, copies, group=group)
    return rows


def _f32(channels: Tensor | None) -> Tensor | None:
    """Convert a parameter to f32 for the kernels. Models in bfloat16 have bfloat16 parameters."""
    return None if channels is None else channels.detach().float().contiguous()


# torch.compile breaks its graph at the next two functions. torch.compiler.disable does the same,
# but it imports the compiler, which takes as long as importing PyTorch.
@torch._disable_dynamo
def _synchronized(*arguments: Any) -> Tensor:
    output: Tensor = _SyncBatchNorm.apply(*arguments)
    return output


@torch._disable_dynamo
def _check_before_exchange(
    layer: nn.Module, channels: int, group: Group, **tensors: Tensor | None
) -> None:
    """Raise ValueError for a tensor without memory, or if numbers of channels differ.

    gloo aborts the process if the vectors of an exchange differ in length. The check of them itself
    is an exchange, so it runs only at the first call of a layer in a group.
    """
    check_memory(**tensors)
    checked = _checked.setdefault(group, weakref.WeakSet())
    if layer in checked:
        return
    rows = _gather(torch.tensor([channels], device="cpu"), group)
    if (rows != channels).any():
        raise ValueError(
            "num_features must be the same on all processes that call a layer together, got "
            f"{rows.flatten().tolist()}"
        )
    checked.add(layer)


def _can_become(cls: type, value: object) -> bool:
    """Return whether Python can change the class of a value: not if only one has slots."""
    try:
        object.__setattr__(object.__new__(type(value)), "__class__", cls)
    except TypeError:
        return False
    return True


class SyncBatchNorm(Layer):
    """torch.nn.SyncBatchNorm for CPUs: batch norm with statistics of all processes' batches.

    Parameters
    ----------
    num_features : int
        Number of channels, C.
    eps, momentum, affine, track_running_stats, device, dtype, bias
        As for torch.nn.SyncBatchNorm.
    process_group : torch.distributed.ProcessGroup, optional
        The processes that share their statistics. Default: all processes.

    Raises
    ------
    TypeError
        If the input is not float32, bfloat16 or float16.
    ValueError
        If the input is not a strided CPU tensor of shape ``(N, C, ...)``, if a tensor's storage was
        made too small, if the processes' layers differ in the number of channels, or if all inputs
        together have one value per channel.
    RuntimeError
        If another process fails: from torch.distributed, at the latest after the group's timeout.

    Notes
    -----
    torch.nn.SyncBatchNorm does not support CPU tensors. This layer works with every backend of
    torch.distributed that exchanges CPU tensors (gloo, MPI), and its state_dict is that of
    torch.nn.SyncBatchNorm. In evaluation, without a process group, and in a group of one process,
    it is plain batch norm.

    In the forward pass of training, each process sends 2 C + 1 float64 numbers to each other one:
    count, mean and sum of squared deviations. In the backward pass, it sends as many: count and
    sums. They are merged in the order of ranks, so that all processes compute the same bits. At its
    first call in a group, a layer also compares the number of channels. The gradient of the input
    is that of the whole batch. The gradients of weight and bias are those of the process's own
    batch, as in PyTorch: DistributedDataParallel averages them. Batches may differ in size and may
    be empty.

    All processes must call the same layers in the same order, and either all or none of them must
    need the gradient of the input. If one process replaces a layer by a copy, all must: the numbers
    of channels are compared at the first call of each object.

    A layer cannot compute during an exchange, so the two exchanges make each step longer.
    ``examples/scale.py`` measures this.

    torch.compile breaks its graph at this layer. The gradient cannot be differentiated again.

    Examples
    --------
    >>> layer = onedsl.torch.SyncBatchNorm(8)
    >>> layer(torch.randn(4, 8, 6, 6)).shape  # plain batch norm without a process group
    torch.Size([4, 8, 6, 6])
    """

    # Not a subclass of torch.nn.SyncBatchNorm, which DistributedDataParallel rejects on CPUs.

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Group | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        positional = (num_features, eps, momentum, affine, track_running_stats, device, dtype)
        super().__init__(*positional, bias=bias)
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the input."""
        if isinstance(input, torch.fx.Proxy):
            return self._in_fx(input)
        self._check_input_dim(input)
        group = self._group()
        if group is None:
            return super().forward(input)
        self._check(input)
        mean, var = self._running_statistics()
        tensors = {"input": input, "weight": self.weight, "bias": self.bias}
        tensors |= {"running_mean": mean, "running_var": var}
        _check_before_exchange(self, self.num_features, group, **tensors)
        return _synchronized(*tensors.values(), self._count_step(), self.eps, group)

    def _group(self) -> Group | None:
        """Return the group, or None in evaluation and if there is no other process."""
        if not (self.training and distributed.is_available() and distributed.is_initialized()):
            return None
        group = distributed.group.WORLD if self.process_group is None else self.process_group
        return group if distributed.get_world_size(group) > 1 else None

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"input must have shape (N, C, ...), got {tuple(input.shape)}")

    def _check(self, input: Tensor) -> None:
        """Raise for an invalid input, before anything is sent."""
        if not input.is_cpu or input.layout is not torch.strided:
            raise ValueError(
                f"input must be a strided CPU tensor, got {input.layout} on {input.device}. "
                "torch.nn.SyncBatchNorm supports other devices"
            )
        if input.dtype not in TYPES:
            raise TypeError(f"input must be float32, bfloat16 or float16, got {input.dtype}")
        if input.shape[1] != self.num_features:
            raise ValueError(f"input must have {self.num_features} channels, got {input.shape[1]}")

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_group: Group | None = None
    ) -> nn.Module:
        """Convert the batch-norm layers of a model to `SyncBatchNorm` layers.

        Like torch.nn.SyncBatchNorm.convert_sync_batchnorm, but the layers remain the same objects
        and change their class. They keep all attributes: parameters, buffers, hooks, pruning,
        ``qconfig``, and those that the program has added. Whatever refers to a layer, such as a
        hook, a list or another model, refers to the converted layer then.

        Parameters
        ----------
        module : torch.nn.Module
            A model or a layer, which is changed.
        process_group : torch.distributed.ProcessGroup, optional
            The processes that share their statistics. Default: all processes.

        Returns
        -------
        torch.nn.Module
            `module` itself.

        Raises
        ------
        TypeError
            If a layer of batch norm has a forward method of its own, for example with an
            activation, if it is parametrized, if it is lazy and has not been called, or if its
            class has ``__slots__``. Nothing is changed then.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        norm = nn.modules.batchnorm._BatchNorm
        layers = {name: m for name, m in module.named_modules() if isinstance(m, norm)}
        for name, layer in layers.items():
            kind = f"got {type(layer).__qualname__} at {name!r}"
            own = type(layer).forward not in (norm.forward, nn.SyncBatchNorm.forward, cls.forward)
            if own or "forward" in vars(layer):
                raise TypeError(
                    "batch-norm layers must have the forward method of torch.nn.BatchNorm1d to 3d, "
                    f"{kind}. Split it into a layer of torch.nn and the rest"
                )
            if nn.utils.parametrize.is_parametrized(layer):
                raise TypeError(
                    f"batch-norm layers must not be parametrized, {kind}. Convert the model first, "
                    "or call torch.nn.utils.parametrize.remove_parametrizations"
                )
            if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
                raise TypeError(
                    f"batch-norm layers must be initialized, {kind}. Call the model once first"
                )
            if not _can_become(cls, layer):
                raise TypeError(f"batch-norm layers must not have __slots__, {kind}")
        for layer in layers.values():
            vars(layer)["process_group"] = process_group
            object.__setattr__(layer, "__class__", cls)
            layer.eps, layer.momentum = layer.eps, layer.momentum  # as floats
        return module


SyncBatchNorm.__module__ = "onedsl.torch"  # the name in saved models
