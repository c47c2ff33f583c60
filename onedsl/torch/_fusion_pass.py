"""A pass over inductor's graph: batch norm, an addition and the ReLU after it become one operator.

It runs on the joint graph of the forward and the backward pass. This graph is functional: a node's
value never changes, so copies of a value can stand for each other. Inputs are written only by the
copy_ nodes at its end, which run after the forward pass.

`_Fusion` describes by patterns what is fused. The pattern of a call contains a pattern of each of
its arguments; if one is missing, this module cannot be imported.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node

from ._operators import batch_norm_training, batch_norm_training_backward, convolution_backward

_aten = torch.ops.aten
_convert = torch.ops.prims.convert_element_type.default
_COPIES = (_aten.alias.default, _aten.clone.default)
_BESIDES_DST = range(1, len(batch_norm_training._schema.returns))  # results of batch norm


def fuse(graph: Graph) -> list[str]:
    """Change a graph in place, and return a description of each batch norm of onedsl in it."""
    batch_norms = [node for node in graph.nodes if node.target is batch_norm_training]
    gradients = [node for node in graph.nodes if node.target is batch_norm_training_backward]
    if batch_norms:
        graph.eliminate_dead_code()
    with_gradient = set()
    for result, fusion in itertools.product(list(graph.nodes) if batch_norms else (), _FUSIONS):
        for found in _match(fusion.result, result, {}):
            matches = [(g, m) for g in gradients for m in _match(fusion.gradient, g, found)]
            if _fuse_forward(fusion, found):
                fused = [_fuse_gradient(*match) for match in matches]
                with_gradient |= {found["batch_norm"]} if any(fused) else set()
                break
    for node in graph.nodes:
        if node.target is _aten.convolution_backward.default and _is_result(node.args[0]):
            node.target = convolution_backward
    if batch_norms:
        stable_topological_sort(graph)
        graph.eliminate_dead_code()
        graph.lint()
    return [_describe(node, node in with_gradient) for node in batch_norms]


def _is_result(node: Any) -> bool:
    """Return whether a node is a result of onedsl's gradient."""
    call = node.args[0] if node.target is operator.getitem else None
    return isinstance(call, Node) and call.target is batch_norm_training_backward


def _describe(batch_norm: Node, has_gradient: bool) -> str:
    arguments = _arguments(batch_norm)
    if arguments["relu"]:
        kind = "with ReLU" if arguments["residual"] is None else "with addition and ReLU"
        return f"{kind}, forward and backward" if has_gradient else kind
    dst = set(_users_but(batch_norm, _BESIDES_DST))
    copies = (*_COPIES, _convert)
    reached = _closure(dst, lambda n: n.users if n in dst or n.target in copies else ())
    users = {str(node.target) for node in reached - dst if node.target not in copies}
    return f"alone, before {', '.join(sorted(users)[:3])}" if users else "alone"


# Patterns. A number or None matches what equals it, and a list what one of its patterns matches.

_ANY = object()

_Found = dict[str, Any]  # the values that have names


class _Call:
    """A pattern of a call. It has a pattern of each argument."""

    def __init__(self, target: Any, /, **arguments: Any) -> None:
        if arguments.keys() != _defaults(target).keys():
            raise TypeError(f"the pattern must have the arguments {', '.join(_defaults(target))}")
        self.target, self.arguments = target, arguments


class _Value(NamedTuple):
    """A pattern of a value that fulfills a condition. The original of copies gets the name."""

    name: str
    pattern: Any = _ANY
    condition: Callable[[Any, _Found], bool] = lambda value, found: True


class _Same(NamedTuple):
    """A pattern of a value that has a name already, or of a copy of it."""

    name: str


def _match(pattern: Any, value: Any, found: _Found) -> list[_Found]:
    """Return `found` and the named values, for each way in which a value matches a pattern."""
    if isinstance(pattern, list):
        return [new for one in pattern for new in _match(one, value, found)]
    if isinstance(pattern, _Value):
        original = _original(value)
        matches = _match(pattern.pattern, original, found)
        return [m | {pattern.name: original} for m in matches if pattern.condition(original, m)]
    if isinstance(pattern, _Call):
        node = _original(value)
        if not isinstance(node, Node) or node.target is not pattern.target:
            return []
        matches, given = [found], _arguments(node)
        for name, one in pattern.arguments.items():
            matches = [new for match in matches for new in _match(one, given[name], match)]
        return matches
    expected = found[pattern.name] if isinstance(pattern, _Same) else pattern
    return [found] if pattern is _ANY or _original(value) == _original(expected) else []


def _original(value: Any) -> Any:
    """Return the node that a node only copies."""
    while isinstance(value, Node) and value.target in _COPIES:
        value = value.args[0]
    return value


def _defaults(target: Any) -> dict[str, Any]:
    """Return the default values of an operator's parameters by name, None if there is none."""
    if target is operator.getitem:
        return {"a": None, "b": None}
    return {parameter.name: parameter.default_value for parameter in target._schema.arguments}


def _arguments(call: Node) -> dict[str, Any]:
    defaults = _defaults(call.target)
    return {**defaults, **dict(zip(defaults, call.args, strict=False)), **call.kwargs}


def _swappable(target: Any, one: Any, other: Any, **rest: Any) -> list[_Call]:
    """Return the patterns of a call whose first two arguments can be in any order."""
    # `one` is matched first in both, so that `other` can refer to its names.
    return [
        _Call(target, self=one, other=other, **rest),
        _Call(target, other=one, self=other, **rest),
    ]


def _converted(pattern: Any, dtype: Any) -> list[Any]:
    """Return the patterns of a value that may have been converted to a type."""
    return [pattern, _Call(_convert, a=pattern, dtype=dtype)]


# What is fused


def _is_like_dst(value: Any, found: _Found) -> bool:
    """Return whether a node is a tensor of the shape and dtype of batch norm's result."""
    tensor = value.meta.get("val") if isinstance(value, Node) else None
    dst = found["dst"].meta["val"]
    return (
        isinstance(tensor, Tensor)
        and bool(tensor.shape == dst.shape)
        and (tensor.dtype, tensor.device) == (dst.dtype, dst.device)
    )


def _is_bound(value: Any, found: _Found) -> bool:
    """Return whether a value can be the upper bound of a ReLU.

    A type of 16 bits must represent it. Otherwise, comparisons after a conversion to float32 would
    not be the same for the argument and for the result of the ReLU.
    """
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        return False
    info = torch.finfo(found["dst"].meta["val"].dtype)
    digits = math.frexp(value)[0] * 2 / info.eps
    fits = digits.is_integer() and info.tiny <= value <= info.max
    return bool(info.bits == 32 or fits)


class _Fusion:
    """The patterns of a ReLU's result and of the gradient of the batch norm before it."""

    def __init__(self, has_residual: bool, has_clip: bool) -> None:
        named = {name: _Value(name) for name in ("src", "weight", "eps")}
        any_ = dict.fromkeys(("bias", "running_mean", "running_var", "momentum"), _ANY)
        call = _Call(batch_norm_training, residual=None, relu=False, clip=None, **named, **any_)
        value: Any = _Value("dst", _Call(operator.getitem, a=_Value("batch_norm", call), b=0))
        if has_residual:
            residual = _Value("residual", condition=_is_like_dst)
            value = _swappable(_aten.add.Tensor, value, residual, alpha=1)
        value = _converted(_Value("value", value, _is_like_dst), torch.float32)
        if has_clip:
            low = _Call(_aten.clamp_min.default, self=value, min=0)
            clip = _Value("clip", condition=_is_bound)
            relu = _Call(_aten.clamp_max.default, self=low, max=clip)
        else:
            relu = _Call(_aten.relu.default, self=value)
        self.result = _Value("result", _converted(relu, _ANY), _is_like_dst)

        # The ReLU's argument and result are on the same side of its bounds.
        compared = _converted([_Same("value"), _Same("result")], torch.float32)
        self.comparisons = [_Call(_aten.le.Scalar, self=compared, other=0)]
        mask: Any = self.comparisons
        if has_clip:
            self.comparisons.append(_Call(_aten.ge.Scalar, self=compared, other=_Same("clip")))
            mask = [
                pattern
                for target in (_aten.bitwise_or.Tensor, _aten.logical_or.default)
                for pattern in _swappable(target, *self.comparisons)
            ]
        options = dict.fromkeys(("dtype", "layout", "device", "pin_memory"), _ANY)
        zero = [
            _Call(_aten.scalar_tensor.default, s=0, **options),
            _Call(_aten.full.default, size=_ANY, fill_value=0, **options),
        ]
        diff_dst = _converted(_Value("diff_dst", condition=_is_like_dst), torch.float32)
        masked = _Call(_aten.where.self, condition=mask, self=zero, other=diff_dst)
        self.gradient = _Call(
            batch_norm_training_backward,
            mean=_Call(operator.getitem, a=_Same("batch_norm"), b=1),
            inverse_stddev=_Call(operator.getitem, a=_Same("batch_norm"), b=2),
            src=_Same("src"),
            weight=_Same("weight"),
            diff_dst=_Value("masked", _converted(masked, _ANY), _is_like_dst),
            eps=_ANY,
            **dict.fromkeys(("forward_weight", "forward_bias", "dst", "clip")),
        )


_FUSIONS = [_Fusion(*has) for has in itertools.product((False, True), repeat=2)]


# Changes of the graph


def _fuse_forward(fusion: _Fusion, found: _Found) -> bool:
    """Change a batch norm, if nothing else needs what is computed between it and the result."""
    batch_norm, dst, value, result = (found[n] for n in ("batch_norm", "dst", "value", "result"))

    def is_end(node: Node) -> bool:
        return node is result or any(_match(c, node, found) for c in fusion.comparisons)

    reached = _closure(_users_but(batch_norm, _BESIDES_DST), lambda n: () if is_end(n) else n.users)
    if not all(is_end(node) or node.users for node in reached):
        return False
    changes = {"residual": found.get("residual"), "relu": True, "clip": found.get("clip")}
    if not _change(batch_norm, changes):
        return False
    for node in (result, value):  # what remains of the value are comparisons
        if node is not dst:
            node.replace_all_uses_with(dst)
    return True


def _fuse_gradient(call: Node, found: _Found) -> bool:
    """Change a gradient, and let it compute the gradient of the ReLU, too, if others need it."""
    masked = found["masked"]
    changes = {"diff_dst": found["diff_dst"], "eps": found["eps"], "clip": found.get("clip")}
    needs_dst = "residual" in found or len(masked.users) > 1
    if needs_dst:
        changes["dst"] = found["dst"]
    else:
        changes["forward_weight"] = _result(found["batch_norm"], 5)
        changes["forward_bias"] = _result(found["batch_norm"], 6)
    if _users_but(call, range(3)) or not _change(call, changes):
        return False
    if needs_dst:
        masked.replace_all_uses_with(_result(call, 3))
    return True


def _result(call: Node, index: int) -> Node:
    """Return a new node that is a result of a call."""
    with call.graph.inserting_after(call):
        result = call.graph.call_function(operator.getitem, (call, index))
    result.meta["val"] = call.meta["val"][index]
    return result


def _change(call: Node, changes: dict[str, Any]) -> bool:
    """Change arguments, unless one depends on the call."""
    arguments = _arguments(call) | changes
    inputs = [argument for argument in arguments.values() if isinstance(argument, Node)]
    if call in _closure(inputs, lambda node: node.all_input_nodes):
        return False
    call.args, call.kwargs = tuple(arguments.values()), {}
    values = (a.meta["val"] if isinstance(a, Node) else a for a in call.args)
    call.meta["val"] = call.target(*values)
    return True


def _users_but(call: Node, indices: Collection[int]) -> list[Node]:
    """Return the users of a call except those that take one of these results."""
    return [n for n in call.users if n.target is not operator.getitem or n.args[1] not in indices]


def _closure(nodes: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return nodes, those that follow them, those that follow these, and so on."""
    pending = list(nodes)
    reached = set(pending)
    while pending:
        new = set(following(pending.pop())) - reached
        reached |= new
        pending += new
    return reached
