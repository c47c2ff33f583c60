"""What a deferred batch norm is computed from: held inputs, parameters and statistics."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core
from . import _compiled_ops as ops
from ._training import affine, operator

_LARGE = 4 << 20  # bytes
_FORWARD, _RELU_FORWARD = _core.Operation.forward_training, _core.Operation.relu_forward_training


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


class Expectation:
    """How the result of a layer was used before, and so what to compute before it is used again.

    A wrong expectation costs time, and changes no result.
    """

    __slots__ = ("clip", "plain_uses", "relu")

    PROBE = 64
    """After two plain uses, only each call of this number can find another use."""

    def __init__(self) -> None:
        self.relu = False
        self.clip: float | None = None
        self.plain_uses = 0

    def is_plain(self) -> bool:
        """Return whether the plain result is expected. Counts as a plain use if so."""
        if self.plain_uses < 2 or self.plain_uses % self.PROBE == 0:
            return False
        self.plain_uses += 1
        return True

    def used_plainly(self) -> None:
        """Expect a plain use."""
        self.relu, self.plain_uses = False, self.plain_uses + 1

    def used_by_relu(self, clip: float | None, with_residual: bool) -> None:
        """Expect a ReLU with an upper bound. With a residual, nothing can be computed early."""
        self.relu, self.clip, self.plain_uses = not with_residual, clip, 0


class Operands:
    """What the normalization needs, and the autograd node of the batch norm."""

    __slots__ = (
        *("bias", "clip", "eps", "expectation", "mean", "node", "plain"),
        *("relu", "snapshot", "sums", "variance", "weight"),
    )

    bias: Tensor | None
    weight: Tensor | None
    node: Any
    mean: Tensor
    variance: Tensor
    snapshot: Snapshot

    def __init__(self, eps: float, expectation: Expectation) -> None:
        self.eps, self.expectation = eps, expectation
        self.sums: np.ndarray[Any, Any] | None = None
        # What was computed early: the plain result, after which nothing is deferred, or the result
        # with a ReLU of the upper bound `clip`.
        self.plain: Tensor | None = None
        self.relu: Tensor | None = None
        self.clip: float | None = None


def compute_early(
    src: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, expectation: Expectation
) -> Operands | None:
    """Compute the statistics, and the result that is expected.

    Return None, or raise RuntimeError, if no kernel supports it.
    """
    operands = Operands(eps, expectation)
    with torch._C._AutoDispatchBelowAutograd():
        if expectation.is_plain():
            operands.plain, operands.mean, operands.variance = ops.batch_norm_training(
                src, weight, bias, eps
            )
            return operands
        if expectation.relu:
            operands.clip = clip = expectation.clip  # other threads can change the expectation
            operands.relu, operands.mean, operands.variance = ops.batch_norm_relu_training(
                src, weight, bias, None, eps, clip
            )
        else:
            operands.sums = sums = operator(_FORWARD, eps).reduce((src,))
            if sums is None:
                return None
            channels = src.shape[1]
            moments = torch.from_numpy(sums)
            operands.mean = moments[1 : channels + 1].float()
            operands.variance = (moments[channels + 1 :] / sums[0]).float()
        operands.snapshot = Snapshot(src)
    return operands


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

    def relu(self, clip: float | None) -> Tensor:
        """Return the result with the addition and a ReLU."""
        o = self.operands
        dst, o.relu = o.relu, None
        if dst is None or clip != o.clip or self.residual is not None:
            dst = self._compute(_RELU_FORWARD, clip)
        o.expectation.used_by_relu(clip, self.residual is not None)
        return dst

    def plain(self) -> Tensor:
        """Return the plain result, computed once. Mark it as used by others than a ReLU."""
        o = self.operands
        o.node.shared = True
        if self.values is None:
            o.relu = None
            o.expectation.used_plainly()
            with torch.no_grad():
                self.values = self._compute(_FORWARD)
        return self.values

    def _compute(self, operation: _core.Operation, clip: float | None = None) -> Tensor:
        """Run a kernel: the plain batch norm, or with the addition and the ReLU."""
        o = self.operands
        src = o.snapshot.release()
        if o.sums is None:
            o.sums = operator(_FORWARD, o.eps).reduce((src,))
        residual = None if self.residual is None else self.residual.release()
        with_relu = operation is _RELU_FORWARD
        weight, bias = affine(o.weight, o.bias)
        dst = empty_like(src)
        # The kernel needs running statistics, which are updated elsewhere.
        running, *vectors = src.new_empty((5, src.shape[1]), dtype=torch.float32).unbind()
        inputs = (src, running, running, weight, bias, *((residual,) if with_relu else ()))
        outputs = o.sums is not None and operator(operation, o.eps, clip).apply(
            o.sums, inputs, True, (dst, *vectors)
        )
        if not outputs:
            raise AssertionError("the kernel rejected what an earlier one accepted")
        if residual is not None and not with_relu:
            dst.add_(residual)
        o.snapshot.renew()
        if self.residual is not None:
            self.residual.renew()
        return dst


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
