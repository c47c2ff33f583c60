"""A pass over inductor's graph: batch norm, an addition and the ReLU after it become one operator.

It runs on the joint graph of the forward and the backward pass. This graph is functional: a node's
value never changes, so equal values can stand for each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch._inductor.config
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node

from . import _compiled_ops as ops

_aten = torch.ops.aten
_convert = torch.ops.prims.convert_element_type.default


class _ReLU(NamedTuple):
    """A ReLU of a batch norm, with an addition between the two or without."""

    batch_norm: Node
    residual: Node | None
    value: Node
    """What the ReLU is applied to."""
    result: Node
    clip: float | None


class _Gradient(NamedTuple):
    """The gradient of a ReLU and of the batch norm before it."""

    batch_norm: Node
    masked: Node
    """The gradient of the ReLU."""
    diff_dst: Node


class FuseBatchNorm(CustomGraphPass):
    """The pass, for inductor's configuration."""

    def __call__(self, graph: Graph) -> None:
        """Change a graph in place."""
        layers = [node for node in graph.nodes if node.target is ops.batch_norm_training]
        if not layers:
            return
        for batch_norm in layers:
            relu = _find_relu(batch_norm)
            if relu is not None:
                _fuse(graph, relu, _find_gradient(relu))
        _clean_up(graph)
        for node in graph.nodes:
            if node.target is _aten.convolution_backward.default and _is_output_of(
                node.args[0], _GRADIENTS
            ):
                node.target = ops.convolution_backward
        _clean_up(graph)

    def uuid(self) -> Any:
        """Return what distinguishes versions of this pass in inductor's caches."""
        return get_hash_for_files((__file__, ops.__file__))


def register() -> None:
    """Let inductor run the pass, before a pass that the user has set."""
    config = torch._inductor.config
    other = config.joint_custom_pre_pass
    if isinstance(other, (FuseBatchNorm, _Both)):
        return
    config.joint_custom_pre_pass = FuseBatchNorm() if other is None else _Both(other)


class _Both(CustomGraphPass):
    """The pass, and after it the one that the user has set."""

    def __init__(self, other: Callable[[Graph], None]) -> None:
        self.first, self.other = FuseBatchNorm(), other

    def __call__(self, graph: Graph) -> None:
        self.first(graph)
        self.other(graph)

    def uuid(self) -> Any:
        other = self.other.uuid() if isinstance(self.other, CustomGraphPass) else None
        return None if other is None else (self.first.uuid(), other)


def _source(node: Any) -> Any:
    """Return the node that a node only copies, or casts to a wider type."""
    while isinstance(node, Node) and _is_copy(node):
        node = node.args[0]
    return node


def _is_copy(node: Node) -> bool:
    if node.target is _convert:
        narrow, wide = _value(node.args[0]).dtype, _value(node).dtype
        return bool(torch.promote_types(narrow, wide) == wide)
    return node.target in (_aten.alias.default, _aten.clone.default)


def _value(node: Any) -> Tensor:
    value: Tensor = node.meta["val"]
    return value


def _users(node: Node) -> Iterator[Node]:
    """Yield the users of a node's value, also of its copies."""
    for user in node.users:
        if _is_copy(user):
            yield from _users(user)
        else:
            yield user


def _output(node: Node, index: int) -> Node | None:
    return next(
        (n for n in node.users if n.target is operator.getitem and n.args[1] == index), None
    )


def _is_output_of(node: Any, targets: tuple[Any, ...]) -> bool:
    return bool(
        isinstance(node, Node)
        and node.target is operator.getitem
        and isinstance(node.args[0], Node)
        and node.args[0].target in targets
    )


def _find_relu(batch_norm: Node) -> _ReLU | None:
    """Find the ReLU after a batch norm, if nothing else needs what is computed between the two."""
    dst = _output(batch_norm, 0)
    if dst is None:
        return None
    value, residual = dst, None
    users = list(_users(dst))
    if len(users) == 1 and _is_sum_of_tensors(users[0]):
        value = users[0]
        first, second = value.args
        residual = second if _source(first) is dst else first
    for user in _users(value):
        found = _parse_relu(user, _value(value).dtype)
        if found is not None:
            relu = _ReLU(batch_norm, residual, value, *found)
            if all(u is user or _is_mask_operand(u, relu) for u in _users(value)):
                return relu
    return None


def _is_sum_of_tensors(node: Node) -> bool:
    if node.target is not _aten.add.Tensor or len(set(node.all_input_nodes)) != 2 or node.kwargs:
        return False
    like = _value(node)
    return all(
        _value(n).shape == like.shape and _value(n).dtype == like.dtype
        for n in node.all_input_nodes
    )


def _parse_relu(node: Node, dtype: torch.dtype) -> tuple[Node, float | None] | None:
    """Return the result of a ReLU and its upper bound; None if a node begins no ReLU."""
    if node.target is _aten.relu.default:
        return node, None
    if node.target is not _aten.clamp_min.default or node.args[1] != 0 or len(node.users) != 1:
        return None
    (last,) = node.users
    if last.target is not _aten.clamp_max.default:
        return None
    clip = last.args[1]
    if not isinstance(clip, (int, float)) or not 0 < clip < float("inf"):
        return None
    if _value(last).dtype != dtype:  # computed in a wider type, and cast back
        if len(last.users) != 1:
            return None
        (last,) = last.users
        if last.target is not _convert or _value(last).dtype != dtype:
            return None
    return last, float(clip)


def _is_mask_operand(node: Node, relu: _ReLU) -> bool:
    """Return whether a node compares for the mask of the ReLU's gradient.

    The comparisons with 0 and the upper bound are the same for the ReLU's argument and its result.
    """
    bounds = {_aten.le.Scalar: 0, _aten.ge.Scalar: relu.clip}
    return node.target in bounds and node.args[1] == bounds[node.target]


def _find_gradient(relu: _ReLU) -> _Gradient | None:
    mean = _output(relu.batch_norm, 1)
    for user in () if mean is None else _users(mean):
        if user.target is not ops.batch_norm_training_backward:
            continue
        if _source(user.args[1]) is not _source(relu.batch_norm.args[0]):
            continue
        masked = user.args[0]
        diff_dst = _parse_masked(masked, relu) if isinstance(masked, Node) else None
        if diff_dst is not None:
            return _Gradient(user, masked, diff_dst)
    return None


def _parse_masked(masked: Node, relu: _ReLU) -> Node | None:
    """Return the gradient that the mask of a ReLU is applied to; None if it is another mask."""
    where = masked
    if where.target is _convert:  # computed in a wider type, and cast back
        where = where.args[0]
        if len(where.users) != 1:
            return None
    if where.target is not _aten.where.self:
        return None
    mask, zero, diff_dst = where.args
    diff_dst = _source(diff_dst)
    if not (_is_zero(zero) and isinstance(mask, Node) and _is_mask(mask, relu)):
        return None
    return diff_dst if _value(diff_dst).dtype == _value(masked).dtype else None


def _is_zero(node: Any) -> bool:
    filled = {_aten.scalar_tensor.default: 0, _aten.full.default: 1}
    return isinstance(node, Node) and (
        node.target in filled and node.args[filled[node.target]] == 0
    )


def _is_mask(node: Node, relu: _ReLU) -> bool:
    """Return whether a node is True exactly where the gradient of the ReLU is zero."""
    compared = [node]
    if relu.clip is not None:
        if node.target not in (_aten.bitwise_or.Tensor, _aten.logical_or.default):
            return False
        compared = list(node.all_input_nodes)
    expected = {_aten.le.Scalar} if relu.clip is None else {_aten.le.Scalar, _aten.ge.Scalar}
    same = (_source(relu.value), _source(relu.result))
    return {n.target for n in compared} == expected and all(
        _is_mask_operand(n, relu) and _source(n.args[0]) in same for n in compared
    )


def _fuse(graph: Graph, relu: _ReLU, gradient: _Gradient | None) -> None:
    src, weight, bias, eps = relu.batch_norm.args
    fused = _call(
        graph,
        relu.result,
        ops.batch_norm_relu_training,
        (src, weight, bias, relu.residual, eps, relu.clip),
    )
    dst, mean, variance = fused
    if gradient is not None:
        inputs: tuple[Any, ...] = (gradient.diff_dst, src, mean, variance, weight, bias)
        if relu.residual is None and set(gradient.masked.users) == {gradient.batch_norm}:
            op = ops.batch_norm_relu_training_backward
        else:
            op = ops.batch_norm_add_relu_training_backward
            inputs = (*inputs, dst)
        outputs = _call(graph, gradient.masked, op, (*inputs, eps, relu.clip))
        _replace_outputs(gradient.batch_norm, outputs)
        if len(outputs) == 4:
            gradient.masked.replace_all_uses_with(outputs[3])
    relu.result.replace_all_uses_with(dst)
    relu.value.replace_all_uses_with(dst)  # what remains are masks: see _is_mask_operand
    _replace_outputs(relu.batch_norm, fused)


def _call(graph: Graph, before: Node, op: Any, args: tuple[Any, ...]) -> list[Node]:
    """Insert a call of an operator, and return the nodes of its outputs."""
    with graph.inserting_before(before):
        call = graph.call_function(op, args)
        call.meta["val"] = op(*(_value(a) if isinstance(a, Node) else a for a in args))
        outputs = []
        for i, value in enumerate(call.meta["val"]):
            outputs.append(graph.call_function(operator.getitem, (call, i)))
            outputs[-1].meta["val"] = value
    return outputs


def _replace_outputs(node: Node, outputs: Any) -> None:
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(outputs[user.args[1]])


def _clean_up(graph: Graph) -> None:
    stable_topological_sort(graph)
    graph.eliminate_dead_code()
    graph.lint()


_GRADIENTS = (
    ops.batch_norm_training_backward,
    ops.batch_norm_relu_training_backward,
    ops.batch_norm_add_relu_training_backward,
)
