"""What a deferred batch norm is computed from: held inputs, parameters and statistics."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from . import _compiled_ops as ops


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
        *("relu", "src", "sums", "variance", "weight"),
    )

    bias: Tensor | None
    weight: Tensor | None
    node: Any
    mean: Tensor
    variance: Tensor
    src: Tensor
    """A lazy clone: it is copied only if the layer's input is written to."""

    def __init__(self, eps: float, expectation: Expectation) -> None:
        self.eps, self.expectation = eps, expectation
        self.sums: Tensor | None = None
        # What was computed early: the plain result, after which nothing is deferred, or the result
        # with a ReLU of the upper bound `clip`.
        self.plain: Tensor | None = None
        self.relu: Tensor | None = None
        self.clip: float | None = None


def compute_early(
    src: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, expectation: Expectation
) -> Operands:
    """Compute the statistics, and the result that is expected.

    Raise RuntimeError if no kernel supports it.
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
            operands.sums, operands.mean, operands.variance = ops.batch_norm_sums(src)
        operands.src = torch._lazy_clone(src)
    return operands


class State:
    """What a `DeferredBatchNorm` stands for. Lives as long as the tensor is deferred."""

    __slots__ = ("__weakref__", "before_sum", "in_graph", "operands", "residual", "values")

    def __init__(
        self,
        operands: Operands,
        residual: Tensor | None = None,
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
            dst = self._compute(True, clip)
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
                self.values = self._compute(False)
        return self.values

    def _compute(self, with_relu: bool, clip: float | None = None) -> Tensor:
        """Run a kernel: the plain batch norm, or with the addition and the ReLU."""
        o = self.operands
        with torch._C._AutoDispatchBelowAutograd():
            if o.sums is None:
                o.sums, _, _ = ops.batch_norm_sums(o.src)
            inputs = (o.sums, o.src, o.weight, o.bias)
            dst: Tensor
            if with_relu:
                dst = ops.batch_norm_relu_apply(*inputs, self.residual, o.eps, clip)
            else:
                dst = ops.batch_norm_apply(*inputs, o.eps)
                if self.residual is not None:
                    dst.add_(self.residual)
        return dst
