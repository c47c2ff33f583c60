"""Batch norm with the statistics of the batches of all processes of a group."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from ..operators.totals import BatchNormMoments, BatchNormSums, BatchNormTotals
from . import _operators
from ._layers import Layer
from ._operators import TYPES

Group = Any
"""torch.distributed.ProcessGroup, which does not exist in a PyTorch without torch.distributed."""

_checked: weakref.WeakKeyDictionary[Group, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()
"""The layers that have the same number of channels on all processes, by group."""


class _SyncBatchNorm(torch.autograd.Function):
    """A forward and a backward pass, each with one exchange between its reduce and apply pass."""

    @staticmethod
    def forward(
        ctx: Any, layer: SyncBatchNorm, src: Tensor, weight: Any, bias: Any, group: Group
    ) -> Tensor:
        running = layer._running_statistics()

        def reduce() -> Tensor:
            layer._check(src)
            return _operators.reduce(src, weight, bias, *running, layer.eps)

        moments = _merge(BatchNormMoments, reduce, layer.num_features, group)
        if moments[0] == 1:
            raise ValueError(
                "the inputs of all processes together must have more than 1 value per channel "
                "when training, got 1"
            )
        momentum = float(layer._count_step())
        dst, mean, inverse_stddev, *new = _operators.apply(
            moments, src, weight, bias, *running, momentum, layer.eps
        )
        for old, value in zip(running, new, strict=True):
            if old is not None:
                old.copy_(value)
        ctx.save_for_backward(src, weight, mean, inverse_stddev)
        ctx.channels, ctx.group = layer.num_features, group
        ctx.bias_dtype = None if bias is None else bias.dtype
        return dst

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, diff_dst: Tensor) -> tuple[Any, ...]:
        _, src_needed, weight_needed, bias_needed, _ = ctx.needs_input_grad
        inputs: tuple[Any, ...] = ()
        mine = diff_src = diff_weight = diff_bias = None

        def reduce() -> Tensor:
            nonlocal inputs, mine
            src, weight, mean, inverse_stddev = ctx.saved_tensors
            inputs = diff_dst, src, mean, inverse_stddev, weight
            mine = _operators.reduce_gradient(*inputs)
            return mine

        if src_needed:
            sums = _merge(BatchNormSums, reduce, ctx.channels, ctx.group)
            diff_src = _operators.apply_gradient(sums, *inputs)
        else:
            reduce()
        # Not summed over the processes, as in torch.nn.SyncBatchNorm: DistributedDataParallel
        # averages the gradients of all parameters.
        assert mine is not None
        of_bias, of_weight = mine[1:].view(2, -1)
        if weight_needed:
            diff_weight = of_weight.to(inputs[-1].dtype)
        if bias_needed:
            diff_bias = of_bias.to(ctx.bias_dtype)
        return None, diff_src, diff_weight, diff_bias, None


def _merge(
    kind: type[BatchNormTotals], reduce: Callable[[], Tensor], channels: int, group: Group
) -> Tensor:
    """Merge the totals of all processes in the order of ranks, so that all get the same bits.

    A process whose `reduce` fails sends a negative count. The others then raise an error at once,
    and the group remains usable.
    """
    failure = None
    try:
        mine = reduce()
    except Exception as error:
        failure = error
        mine = torch.full((1 + 2 * channels,), -1.0, dtype=torch.float64, device="cpu")
    rows = _gather(mine, group)
    if failure is not None:
        raise failure
    failed = (rows[:, 0] < 0).nonzero().flatten().tolist()
    if failed:
        raise RuntimeError(
            f"SyncBatchNorm failed on ranks {failed} of its group. Their errors contain the reason"
        )
    return torch.from_numpy(kind._of_parts(rows.numpy()).to_vector())


def _gather(mine: Tensor, group: Group) -> Tensor:
    """Return the vectors of all processes, one row each in the order of ranks.

    The exchange is an all-to-all of copies, because gloo sends these at once. In its all-gather and
    all-reduce, the processes form a ring, and each step around it waits for the one before.
    """
    copies = mine.expand(distributed.get_world_size(group), -1).contiguous()
    rows = torch.empty_like(copies)
    distributed.all_to_all_single(rows, copies, group=group)
    return rows


# torch.compile breaks its graph at the next function. torch.compiler.disable does the same, but it
# imports the compiler, which takes as long as importing PyTorch.
@torch._disable_dynamo
def _synchronized(layer: SyncBatchNorm, src: Tensor, group: Group) -> Tensor:
    _compare_channels(layer, group)
    output: Tensor = _SyncBatchNorm.apply(layer, src, layer.weight, layer.bias, group)
    return output


def _compare_channels(layer: SyncBatchNorm, group: Group) -> None:
    """Raise ValueError if the layer's numbers of channels differ.

    gloo aborts the process if the vectors of an exchange differ in length. The comparison itself is
    an exchange, so it runs only at the first call of a layer in a group.
    """
    checked = _checked.setdefault(group, weakref.WeakSet())
    if layer in checked:
        return
    rows = _gather(torch.tensor([layer.num_features], device="cpu"), group)
    if (rows != layer.num_features).any():
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
        made too small (a RuntimeError in PyTorch 2.15), if the processes' layers differ in the
        number of channels, or if all inputs together have one value per channel.
    RuntimeError
        If another process rejects its arguments. If it ends or does not call the layer: from
        torch.distributed, at the latest after the group's timeout.

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
    need the gradient of the input. If one process replaces a layer by a copy, all must do so,
    because each object compares the number of channels at its first call. Otherwise, a process
    waits for an exchange that the others do not make, until the time limit of the group.

    A layer cannot compute during an exchange, so the two exchanges make each step longer.
    ``examples/scale.py`` measures this.

    A process that rejects its arguments takes part in the exchange, so that all processes raise an
    error at once and can go on. Such a call neither counts a step nor changes running statistics.

    torch.compile breaks its graph at this layer. The gradient cannot be differentiated again.
    torch.func and torch.export are not supported in training with several processes.

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
        group = self._group()
        if group is None:
            return super().forward(input)
        if torch.compiler._is_exporting_flag or torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "SyncBatchNorm supports neither torch.func nor torch.export in training with "
                "several processes, because these cannot trace its exchange"
            )
        return _synchronized(self, input, group)

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
        """Raise for an invalid input."""
        self._check_input_dim(input)
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
