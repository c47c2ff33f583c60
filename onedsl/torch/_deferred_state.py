"""What a deferred batch norm is computed from: held inputs, parameters and statistics."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core
from ._training import affine, operator

_LARGE = 4 << 20  # bytes


class Snapshot:
    """The values that a tensor has now. They are copied only if the tensor is written to later."""

    __slots__ = ("_clone", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._clone: Tensor | None = torch._lazy_clone(tensor)

    def release(self) -> Tensor:
        """Return a tensor with the values, for a kernel to read; call `renew` after that.

        The kernels ask for writable memory, which would copy a tensor that has a lazy clone.
        """
        clone, tensor = self._clone, self._tensor
        if clone is None or torch._C._data_address(clone) != torch._C._data_address(tensor):
            return tensor if clone is None else clone
        self._clone = None
        return tensor

    def renew(self) -> None:
        """Hold the values again."""
        if self._clone is None:
            self._clone = torch._lazy_clone(self._tensor)


class Operands:
    """What the normalization needs, and the autograd node of the batch norm."""

    __slots__ = ("bias", "eps", "node", "snapshot", "statistics", "weight")

    node: Any

    def __init__(
        self,
        snapshot: Snapshot,
        statistics: np.ndarray[Any, Any],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> None:
        self.snapshot, self.statistics, self.eps = snapshot, statistics, eps
        self.weight, self.bias = weight, bias


class State:
    """What a `DeferredBatchNorm` stands for. Lives as long as the tensor is deferred."""

    __slots__ = ("__weakref__", "before_sum", "in_graph", "operands", "residual", "values")

    def __init__(
        self,
        operands: Operands,
        residual: Snapshot | None = None,
        before_sum: weakref.ref[State] | None = None,
    ) -> None:
        self.operands, self.residual, self.before_sum = operands, residual, before_sum
        self.values: Tensor | None = None
        self.in_graph = False  # whether nodes, hooks or gradients refer to this very tensor

    def compute(self, operation: _core.Operation, clip: float | None = None) -> Tensor:
        """Run a kernel: the plain batch norm, or with the addition and the ReLU."""
        o = self.operands
        src = o.snapshot.release()
        residual = None if self.residual is None else self.residual.release()
        with_relu = operation is _core.Operation.relu_forward_training
        weight, bias = affine(o.weight, o.bias)
        dst = empty_like(src)
        channels = src.new_empty((5, src.shape[1]), dtype=torch.float32)
        running = channels[0]  # unused, and written to
        inputs = (src, running, running, weight, bias, *((residual,) if with_relu else ()))
        outputs = operator(operation, o.eps, clip).apply(
            o.statistics, inputs, True, (dst, *channels[1:].unbind())
        )
        if outputs is None:
            raise AssertionError("the kernel rejected what its statistics pass accepted")
        if residual is not None and not with_relu:
            dst.add_(residual)
        o.snapshot.renew()
        if self.residual is not None:
            self.residual.renew()
        return dst

    def plain(self) -> Tensor:
        """Return the plain result, computed once. Mark it as used by others than a ReLU."""
        self.operands.node.shared = True
        if self.values is None:
            with torch.no_grad():
                self.values = self.compute(_core.Operation.forward_training)
        return self.values


def empty_like(src: Tensor) -> Tensor:
    """Return torch.empty_like(src) in large pages: a page fault every 4 KB takes longer."""
    dst = torch.empty_like(src)
    if dst.nbytes >= _LARGE:
        begin = dst.data_ptr()
        first_page = -(-begin // 4096) * 4096
        _madvise(first_page, begin + dst.nbytes - first_page, _MADV_HUGEPAGE)
    return dst


_MADV_HUGEPAGE = 14
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
