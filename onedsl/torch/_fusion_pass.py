"""A pass over inductor's graph: batch norm, an addition and the ReLU after it become one operator.

It runs on the joint graph of the forward and the backward pass. This graph is functional: a node's
value never changes, so equal values can stand for each other.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node

from ._operators import batch_norm_training, batch_norm_training_backward, convolution_backward

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


def fuse(graph: Graph) -> list[str]:
    """Change a graph in place, and return a description of each batch norm of onedsl in it."""
    descriptions = []
    for batch_norm in [node for node in graph.nodes if node.target is batch_norm_training]:
        relu = _find_relu(batch_norm)
        gradient = None if relu is None else _find_gradient(relu)
        if relu is not None:
            _fuse(relu, gradient)
        descriptions.append(_describe(batch_norm, gradient))
    for node in graph.nodes:
        if node.target is _aten.convolution_backward.default and _is_gradient(node.args[0]):
            node.target = convolution_backward
    if descriptions:
        stable_topological_sort(graph)
        graph.eliminate_dead_code()
        graph.lint()
    return descriptions


def _describe(batch_norm: Node, gradient: _Gradient | None) -> str:
    *_, has_relu, _ = batch_norm.args
    if not has_relu:
        dst = _output(batch_norm, 0)
        users = sorted({str(user.target) for user in (_users(dst) if dst is not None else ())})
        return f"alone, before {', '.join(users[:3])}" if users else "alone"
    kind = "with ReLU" if batch_norm.args[3] is None else "with addition and ReLU"
    return kind if gradient is None else f"{kind}, forward and backward"


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


def _is_gradient(node: Any) -> bool:
    """Return whether a node is a result of onedsl's gradient."""
    call = node.args[0] if node.target is operator.getitem else None
    return isinstance(call, Node) and call.target is batch_norm_training_backward


def _find_relu(batch_norm: Node) -> _ReLU | None:
    """Find the ReLU after a batch norm, if nothing else needs what is computed between the two."""
    dst = _output(batch_norm, 0)
    *_, has_relu, _ = batch_norm.args
    if dst is None or has_relu:
        return None
    value, residual = dst, None
    users = list(_users(dst))
    if len(users) == 1 and _is_sum_of_tensors(users[0], _value(dst)):
        first, second = users[0].args
        other = second if _source(first) is dst else first
        if not _depends_on(other, batch_norm):
            value, residual = users[0], other
    for user in _users(value):
        found = _parse_relu(user, _value(value).dtype)
        if found is not None:
            relu = _ReLU(batch_norm, residual, value, *found)
            if all(u is user or _is_mask_operand(u, relu) for u in _users(value)):
                return relu
    return None


def _is_sum_of_tensors(node: Node, like: Tensor) -> bool:
    if node.target is not _aten.add.Tensor or len(set(node.all_input_nodes)) != 2 or node.kwargs:
        return False
    values = [_value(n) for n in node.all_input_nodes]
    return all((v.shape, v.dtype) == (like.shape, like.dtype) for v in values)


def _depends_on(node: Node, other: Node) -> bool:
    pending, seen = [node], {node}
    while pending:
        inputs = set(pending.pop().all_input_nodes) - seen
        pending += inputs
        seen |= inputs
    return other in seen


def _parse_relu(node: Node, dtype: torch.dtype) -> tuple[Node, float | None] | None:
    """Return the result of a ReLU and its upper bound; None if a node begins no ReLU."""
    if node.target is _aten.relu.default:
        return (node, None) if _value(node).dtype == dtype else None
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
        if user.target is not batch_norm_training_backward:
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
    is_or = node.target in (_aten.bitwise_or.Tensor, _aten.logical_or.default)
    compared = node.all_input_nodes if is_or else [node]
    expected = {_aten.le.Scalar} if relu.clip is None else {_aten.le.Scalar, _aten.ge.Scalar}
    same = (_source(relu.value), _source(relu.result))
    return {n.target for n in compared} == expected and all(
        _is_mask_operand(n, relu) and _source(n.args[0]) in same for n in compared
    )


def _fuse(relu: _ReLU, gradient: _Gradient | None) -> None:
    src, weight, bias, _, *statistics, _, _ = relu.batch_norm.args
    activation = (True, relu.clip)
    _change(relu.batch_norm, (src, weight, bias, relu.residual, *statistics, *activation))
    dst = _output(relu.batch_norm, 0)
    assert dst is not None
    for node in (relu.result, relu.value):  # what remains of the value are masks
        if node is not dst:
            node.replace_all_uses_with(dst)
    if gradient is None:
        return
    _, src, mean, inverse_stddev, weight, *_ = gradient.batch_norm.args
    needs_dst = relu.residual is not None or len(gradient.masked.users) > 1
    inputs = (gradient.diff_dst, src, mean, inverse_stddev, weight, bias)
    _change(gradient.batch_norm, (*inputs, dst if needs_dst else None, *activation))
    if needs_dst:
        graph = gradient.batch_norm.graph
        with graph.inserting_after(gradient.batch_norm):
            diff_residual = graph.call_function(operator.getitem, (gradient.batch_norm, 3))
        diff_residual.meta["val"] = _value(gradient.batch_norm)[3]
        gradient.masked.replace_all_uses_with(diff_residual)


def _change(call: Node, args: tuple[Any, ...]) -> None:
    """Change the arguments of a call."""
    call.args = args
    call.meta["val"] = call.target(*(_value(a) if isinstance(a, Node) else a for a in args))
