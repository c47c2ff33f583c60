"""Batch norm by the statistics of all the processes that train together."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from .. import _core
from ..operators._sums import BatchNormMoments, BatchNormSums
from ..operators.batch_norm_forward_training import BatchNormForwardTraining
from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ._layers import TYPES, batch_norm, begin_step, in_fx
from ._training import affine, is_laid_out

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Group = Any
"""torch.distributed's ProcessGroup, which a PyTorch without torch.distributed has not."""


@functools.lru_cache(maxsize=256)
def _operators(eps: float) -> tuple[BatchNormForwardTraining, BatchNormTrainingBackward]:
    return (
        BatchNormForwardTraining(eps, data_format="NCX"),
        BatchNormTrainingBackward(eps, data_format="NCX"),
    )


class _SyncBatchNorm(torch.autograd.Function):
    """The two passes, each with one exchange between its reading and its writing."""

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
        if not is_laid_out(src):
            src = src.contiguous()
        forward, _ = _operators(eps)
        read = src.detach()
        moments = _gathered(forward.reduce(read), group)
        if moments.count == 1:
            raise ValueError(
                "input has one value a channel on one process, and none on the others: training "
                "wants two of all processes together"
            )
        gamma, beta = affine(_f32(weight), _f32(bias))
        zeros = src.new_zeros(src.shape[1], dtype=torch.float32)
        dst, _, _, mean, variance = forward.apply(moments, read, zeros, zeros, gamma, beta)
        if running_mean is not None and running_var is not None and moments.count > 0:
            _renew(running_mean, running_var, mean, variance, momentum, moments.count)
        ctx.save_for_backward(src, weight, bias, mean, variance)
        ctx.eps, ctx.group = eps, group
        return dst

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        src, weight, bias, mean, variance = ctx.saved_tensors
        src_needed, weight_needed, bias_needed, *_ = ctx.needs_input_grad
        if diff_dst.stride() != src.stride():
            diff_dst = torch.empty_like(src).copy_(diff_dst)
        _, backward = _operators(ctx.eps)
        inputs = (src.detach(), diff_dst.detach(), mean, variance)
        sums = backward.reduce(*inputs)
        diff_src = None
        if src_needed:
            total = _reduced(sums, ctx.group)
            diff_src = backward.apply(total, *inputs, _f32(weight)).diff_src
        # Those of this process's batch, as torch.nn.SyncBatchNorm's: DistributedDataParallel
        # averages them, with the gradients of all other parameters.
        diff_weight = diff_bias = None
        if weight_needed:
            diff_weight = torch.tensor(sums.diff_gamma, dtype=weight.dtype)
        if bias_needed:
            diff_bias = torch.tensor(sums.diff_beta, dtype=bias.dtype)
        return diff_src, diff_weight, diff_bias, None, None, None, None, None


def _gathered(moments: BatchNormMoments, group: Group) -> BatchNormMoments:
    """Merge the moments of all processes, in the order of their ranks: to the same bits on each."""
    mine = torch.from_numpy(moments.to_vector())
    rows = mine.new_empty(distributed.get_world_size(group), len(mine))
    distributed.all_gather(list(rows), mine, group)
    # Added two by two, the moments of 64 processes would take longer than gloo.
    return BatchNormMoments._of_parts(rows.numpy())


def _reduced(sums: BatchNormSums, group: Group) -> BatchNormSums:
    """Add up the sums of all processes."""
    vector = torch.from_numpy(sums.to_vector())
    distributed.all_reduce(vector, group=group)
    return BatchNormSums.from_vector(vector.numpy())


def _f32(channels: Tensor | None) -> Tensor | None:
    """Give a parameter as the kernels take it: models in bfloat16 have theirs in bfloat16."""
    return None if channels is None else channels.detach().float().contiguous()


def _renew(
    running_mean: Tensor,
    running_var: Tensor,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    count: int,
) -> None:
    """Update the running statistics, whatever their type and strides are."""
    new_mean, new_var = (t.float().contiguous() for t in (running_mean, running_var))
    _core.update_running(new_mean, new_var, mean, variance, momentum, count)
    for running, new in ((running_mean, new_mean), (running_var, new_var)):
        if new is not running:
            running.copy_(new)


# Outside of torch.compile's graphs. torch.compiler.disable would import the compiler here, which
# takes as long as PyTorch itself; this imports it at the first call, as torch.optim does.
@torch._disable_dynamo
def _synchronized(*arguments: Any) -> Tensor:
    output: Tensor = _SyncBatchNorm.apply(*arguments)
    return output


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """torch.nn.SyncBatchNorm for CPUs: batch norm by the statistics of all processes' batches.

    Parameters
    ----------
    num_features : int
        Channels, C.
    eps, momentum, affine, track_running_stats, device, dtype, bias
        As for torch.nn.SyncBatchNorm.
    process_group : torch.distributed.ProcessGroup, optional
        The processes that share their statistics. Absent means the default group: all of them.

    Notes
    -----
    PyTorch's own refuses CPU tensors where there is a process group. This one takes float32,
    bfloat16 and float16, ``(N, C, ...)``, over any backend that exchanges CPU tensors (gloo, MPI).
    Its state_dict is the other's, and so is what it does where nothing is to be synchronized:
    in evaluation, without a process group and in a group of one process, it is plain batch norm.

    In training, each process sends 2 C + 1 numbers of float64 in the forward pass (count, mean and
    sum of squared deviations, gathered and merged in the order of the ranks, so that statistics and
    running statistics have the same bits everywhere), and 2 C + 1 in the backward pass (one
    all-reduce). The gradient of the input is that of the whole batch. Those of weight and bias are
    of the process's own batch, as PyTorch's are: DistributedDataParallel averages them. Batches may
    differ in size, and be empty on some processes or on all.

    All processes call the same layers in the same order, with the same number of channels, and
    either all or none of them want the gradient of the input. Where one dies or raises an error,
    the others get a RuntimeError of torch.distributed's, at the latest after the group's timeout.

    Nothing of a layer can be computed while an exchange is under way, so that a step takes the time
    of two exchanges more: 2.3 ms over gloo between two processes of a virtual machine with two
    cores, where a step of 10 MB a process takes 5 ms. ``examples/scale.py`` measures that,
    and computes it for up to 1,024 processes.

    torch.compile breaks its graph at this layer, and the gradient cannot be differentiated again.

    Examples
    --------
    >>> layer = onedsl.torch.SyncBatchNorm(8)
    >>> layer(torch.randn(4, 8, 6, 6)).shape  # plain batch norm: there is no process group
    torch.Size([4, 8, 6, 6])
    """

    # Not a subclass of torch.nn.SyncBatchNorm: DistributedDataParallel refuses that one on CPUs.

    _reverts_to = nn.SyncBatchNorm  # `revert` makes this of it

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
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Normalize."""
        if isinstance(input, torch.fx.Proxy):
            return in_fx(self, input)
        self._check_input_dim(input)
        group = self._group()
        if group is not None:
            self._check(input)
        mean, variance, training, momentum = begin_step(self)
        weight, bias, eps = self.weight, self.bias, self.eps
        if group is None:
            return batch_norm(input, mean, variance, weight, bias, training, momentum, eps)
        return _synchronized(input, weight, bias, mean, variance, momentum, eps, group)

    def _group(self) -> Group | None:
        """Give the group to talk to, or None where there is nobody else."""
        if not (self.training and distributed.is_available() and distributed.is_initialized()):
            return None
        group = distributed.group.WORLD if self.process_group is None else self.process_group
        return group if distributed.get_world_size(group) > 1 else None

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.ndim < 2:
            raise ValueError(f"input has shape {tuple(input.shape)}: it must be (N, C, ...)")

    def _check(self, input: Tensor) -> None:  # noqa: A002
        """Refuse before anything is sent what could not be sent or received."""
        if not input.is_cpu or input.layout is not torch.strided:
            raise ValueError(
                f"input is a {input.layout} tensor on {input.device}: onedsl's SyncBatchNorm takes "
                "strided ones on the CPU; torch.nn.SyncBatchNorm is for other devices"
            )
        if input.dtype not in TYPES:
            raise TypeError(f"input is {input.dtype}: it must be float32, bfloat16 or float16")
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"input has {input.shape[1]} channels, and the layer {self.num_features}"
            )

    @classmethod
    def convert_sync_batchnorm(cls, module: ModuleT, process_group: Group | None = None) -> ModuleT:
        """Do what ``onedsl.torch.convert(module, process_group=process_group)`` does."""
        from ._convert import convert

        return convert(module, process_group=process_group)


SyncBatchNorm.__module__ = "onedsl.torch"  # where a saved model looks for its class
