"""A pass over inductor's graph: batch norm, an addition and the activation after it become one op.

It runs on the joint graph of the forward and the backward pass. This graph is functional: a node's
value never changes, so copies of a value can stand for each other, whatever their memory format:
onedsl's operators support any strides. But views, `as_strided` and the program depend on the
strides of a node, so what replaces it has the same ones. Inputs are written only by the copy_ nodes
at its end, which run after the forward pass.

The backend leaves PyTorch's operators of activations whole (`KEPT`). Each has one form, while its
decomposition depends on the dtype and on PyTorch's version. What is not fused is decomposed at the
end of the pass. `_FORMS` has the functions that are recognized as an activation. PyTorch traces
them and their gradients, which gives the patterns; so functions that people write out are
recognized, too.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

from ..operators.attributes import ACTIVATIONS
from ._operators import (
    FUNCTIONS,
    batch_norm_training,
    batch_norm_training_backward,
    convolution_backward,
    needs_dst,
)

_aten = torch.ops.aten
_convert = torch.ops.prims.convert_element_type.default
_COPIES = (_aten.alias.default, _aten.clone.default, _aten.detach.default)
_BESIDES_DST = range(1, len(batch_norm_training._schema.returns))  # results of batch norm
# The functions of an argument and a parameter that are an activation.
_FORMS: list[tuple[str, Callable[[Tensor, float], Tensor]]] = [
    *FUNCTIONS.items(),
    ("relu", lambda x, _: F.relu(x)),
    ("silu", lambda x, _: x * torch.sigmoid(x)),
    ("hardswish", lambda x, _: x * F.hardsigmoid(x)),
    ("hardswish", lambda x, _: x * F.relu6(x + 3) / 6),
    ("hardswish", lambda x, _: x * (F.relu6(x + 3) / 6)),
]

KEPT = frozenset(
    getattr(_aten, f"{name}{suffix}").default
    for name in ("hardtanh", "leaky_relu", "silu", "hardswish", "hardsigmoid", "gelu")
    for suffix in ("", "_backward")
) | {_aten.threshold_backward.default, _aten.sigmoid_backward.default}
"""Operators that are decomposed after the fusion."""


def fuse(graph: Graph) -> list[str]:
    """Change a graph in place, and return a description of each batch norm of onedsl in it."""
    batch_norms = [node for node in graph.nodes if node.target is batch_norm_training]
    gradients = [node for node in graph.nodes if node.target is batch_norm_training_backward]
    if batch_norms:
        graph.eliminate_dead_code()
    with_gradient = set()
    for result, fusion in itertools.product(list(graph.nodes) if batch_norms else (), _FUSIONS):
        for found in _match(fusion.result, result, {_CALLS: frozenset()}):
            matches = [(g, m) for g in gradients for m in _match(fusion.gradient, g, found)[:1]]
            matches = [(g, m) for g, m in matches if _is_changeable(g, m)]
            if not _is_complete(found, [m for _, m in matches]) or _needs_itself(found):
                continue
            _fuse(fusion.activation, found, matches)
            with_gradient |= {found["batch_norm"]} if matches else set()
            break
    for node in graph.nodes:
        if node.target is _aten.convolution_backward.default and _is_result(node.args[0]):
            node.target = convolution_backward
    if batch_norms:
        stable_topological_sort(graph)
        graph.eliminate_dead_code()
        graph.lint()
    return [_describe(node, node in with_gradient) for node in batch_norms]


def decompose(graph: Graph, table: dict[Any, Callable[..., Any]]) -> None:
    """Replace the operators of `KEPT` in a graph by what they are decomposed into."""
    for node in list(graph.nodes):
        if node.target not in KEPT:
            continue
        inputs = node.all_input_nodes

        def call(*values: Any, node: Node = node, inputs: list[Node] = inputs) -> Any:
            given = dict(zip(inputs, values, strict=True))
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
            return node.target(*args, **kwargs)

        values = [value.meta["val"] for value in inputs]
        with detect_fake_mode(values):
            traced = make_fx(call, table)(*values)
        places = traced.graph.find_nodes(op="placeholder")
        copies = dict(zip(places, inputs, strict=True))
        with graph.inserting_before(node):
            new = graph.graph_copy(traced.graph, copies)
        for source in copies.keys() - places:
            copies[source].meta = {**node.meta, "val": source.meta["val"]}
        dtype = node.meta["val"].dtype
        if new.meta["val"].dtype != dtype:  # threshold_backward of two dtypes
            new = _insert_after(new, _convert, new, dtype)
        _replace(node, new)
        graph.erase_node(node)


def _is_result(node: Any) -> bool:
    """Return whether a node is a result of onedsl's gradient."""
    call = node.args[0] if node.target is operator.getitem else None
    return isinstance(call, Node) and call.target is batch_norm_training_backward


def _describe(batch_norm: Node, has_gradient: bool) -> str:
    arguments = _arguments(batch_norm)
    if arguments["activation"]:
        name = ACTIVATIONS[arguments["activation"]].name
        kind = f"with {name}" if arguments["residual"] is None else f"with addition and {name}"
        return f"{kind}, forward and backward" if has_gradient else kind
    dst = set(_users_but(batch_norm, _BESIDES_DST))
    copies = (*_COPIES, _convert)
    reached = _closure(dst, lambda n: n.users if n in dst or n.target in copies else ())
    users = {str(node.target) for node in reached - dst if node.target not in copies}
    return f"alone, before {', '.join(sorted(users)[:3])}" if users else "alone"


# Patterns. A number or None matches what equals it, and a list what one of its patterns matches.

_ANY = object()
_CALLS = "calls"  # the nodes that patterns of calls matched

_Found = dict[str, Any]  # the values that have names


class _Call:
    """A pattern of a call. It has a pattern of each argument."""

    def __init__(self, target: Any, /, **arguments: Any) -> None:
        if arguments.keys() != _defaults(target).keys():
            raise TypeError(f"the pattern must have the arguments {', '.join(_defaults(target))}")
        self.target, self.arguments = target, arguments


class _Value(NamedTuple):
    """A pattern of the value of a name, or of a new one if the name has none.

    Copies of a value can stand for it. It must fulfill the condition.
    """

    name: str
    pattern: Any = _ANY
    condition: Callable[[Any, _Found], bool] = lambda value, found: True


def _match(pattern: Any, value: Any, found: _Found) -> list[_Found]:
    """Return `found` and the named values, for each way in which a value matches a pattern."""
    if isinstance(pattern, list):
        return [new for one in pattern for new in _match(one, value, found)]
    original = _original(value)
    if isinstance(pattern, _Value):
        if pattern.name in found:
            is_same = original == _original(found[pattern.name])
            return [found] if is_same and pattern.condition(original, found) else []
        matches = _match(pattern.pattern, original, found)
        return [m | {pattern.name: original} for m in matches if pattern.condition(original, m)]
    if isinstance(pattern, _Call):
        if not isinstance(original, Node) or original.target is not pattern.target:
            return []
        matches, given = [found | {_CALLS: found[_CALLS] | {original}}], _arguments(original)
        for name, one in pattern.arguments.items():
            matches = [new for match in matches for new in _match(one, given[name], match)]
        return matches
    return [found] if pattern is _ANY or original == pattern else []


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


_PARAMETER = 0.34375  # stands for the parameter in traced functions


def _patterns(function: Callable[[Tensor, float], Tensor], values: list[Any]) -> list[Any]:
    """Return the patterns of a function's result and gradient.

    `values` are the patterns of the argument, the argument in the gradient, the gradient of the
    result, and the parameter.
    """

    def run(x: Tensor, diff: Tensor) -> tuple[Tensor, Tensor]:
        y = function(x, _PARAMETER)
        return y, torch.autograd.grad(y, x, diff)[0]

    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        x = torch.zeros(2, dtype=torch.float32, device="cpu", requires_grad=True)
        graph = make_fx(run)(x, torch.zeros_like(x)).graph
    x_node, diff_node = (node for node in graph.nodes if node.op == "placeholder")
    (results,) = next(node for node in graph.nodes if node.op == "output").args
    argument, argument_in_gradient, diff, parameter = values

    def pattern_of(value: Any, named: dict[Node, Any]) -> Any:
        value = _original(value)
        if not isinstance(value, Node):
            return parameter if value == _PARAMETER else value
        if value in named:
            return named[value]
        given = {name: pattern_of(v, named) for name, v in _arguments(value).items()}
        if "self_is_result" in given:
            given["self_is_result"] = _ANY
        pattern = _Call(value.target, **given)
        if value.target not in (_aten.add.Tensor, _aten.mul.Tensor):
            return pattern
        swapped = given | {"self": given["other"], "other": given["self"]}
        return [pattern, _Call(value.target, **swapped)]

    return [
        pattern_of(results[0], {x_node: argument}),
        pattern_of(results[1], {x_node: argument_in_gradient, diff_node: diff}),
    ]


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


def _can_be_dst(value: Any, found: _Found) -> bool:
    """Return whether batch norm's result, which has the strides of src, can replace a node."""
    if not _is_like_dst(value, found):
        return False
    return bool(value.meta["val"].stride() == found["dst"].meta["val"].stride())


def _is_parameter(activation: str) -> Callable[[Any, _Found], bool]:
    """Return a condition of the parameter of an activation.

    A type of 16 bits must represent the upper bound of a ReLU. Otherwise, comparisons after a
    conversion to float32 would not be the same for the argument and for the result of the ReLU.
    """

    def is_parameter(value: Any, found: _Found) -> bool:
        least, most = ACTIVATIONS[activation].limits
        if not isinstance(value, (int, float)) or not least < value < most:
            return False
        info = torch.finfo(found["dst"].meta["val"].dtype)
        if activation != "relu" or info.bits == 32:
            return True
        digits = math.frexp(value)[0] * 2 / info.eps
        return bool(digits.is_integer() and info.tiny <= value <= info.max)

    return is_parameter


def _is_slope_positive(_: Any, found: _Found) -> bool:
    return bool(found.get("parameter", 1) >= 0)


class _Fusion:
    """The patterns of an activation's result and of the gradient of the batch norm before it."""

    def __init__(
        self, activation: str, function: Callable[[Tensor, float], Tensor], has_residual: bool
    ) -> None:
        self.activation = activation
        named = {name: _Value(name) for name in ("src", "weight", "eps")}
        nothing = dict.fromkeys(("residual", "activation", "parameter"))
        call = _Call(batch_norm_training, **named, bias=_ANY, **nothing)
        value: Any = _Value("dst", _Call(operator.getitem, a=_Value("batch_norm", call), b=0))
        if has_residual:
            residual = _Value("residual", condition=_is_like_dst)
            # `value` is matched first in both, so that the condition can refer to dst.
            value = [
                _Call(_aten.add.Tensor, self=value, other=residual, alpha=1),
                _Call(_aten.add.Tensor, other=value, self=residual, alpha=1),
            ]
        value = _Value("value", value, _is_like_dst)
        # Results of these have the argument's sign, and are on the same side of the bound.
        of_gradient = [value]
        if activation in ("relu", "leaky_relu"):
            of_gradient.append(_Value("result", condition=_is_slope_positive))
        diff_dst = _Value("diff_dst", condition=_is_like_dst)
        parameter = _Value("parameter", condition=_is_parameter(activation))
        result, masked = _patterns(function, [value, of_gradient, diff_dst, parameter])
        self.result = _Value("result", result, _can_be_dst)
        self.gradient = _Call(
            batch_norm_training_backward,
            mean=_Call(operator.getitem, a=_Value("batch_norm"), b=1),
            inverse_stddev=_Call(operator.getitem, a=_Value("batch_norm"), b=2),
            src=_Value("src"),
            weight=_Value("weight"),
            diff_dst=_Value("masked", masked, _is_like_dst),
            **dict.fromkeys(("forward_weight", "forward_bias", "dst", *nothing)),
        )


_FUSIONS = [_Fusion(*form, has_residual) for form in _FORMS for has_residual in (False, True)]


# Changes of the graph


def _is_complete(forward: _Found, gradients: list[_Found]) -> bool:
    """Return whether nothing else needs what is computed between batch norm and the results."""
    calls = forward[_CALLS].union(*(found[_CALLS] for found in gradients))
    ends = {forward["result"], *(found["masked"] for found in gradients)}
    dst = _users_but(forward["batch_norm"], _BESIDES_DST)
    between = _closure(dst, lambda node: () if node in ends else node.users)
    return all(node in calls or node.target in _COPIES for node in between) and not any(
        found["diff_dst"] in between - ends for found in gradients
    )


def _is_changeable(call: Node, found: _Found) -> bool:
    """Return whether a gradient can be fused."""
    has_other_users = bool(_users_but(call, range(3)))
    # Others need the gradient of batch norm's result, which has a place if there is an addition.
    needs_masked = len(found["masked"].users) > 1
    return not has_other_users and ("residual" in found or not needs_masked)


def _needs_itself(found: _Found) -> bool:
    """Return whether the residual depends on the batch norm."""
    residual = [found["residual"]] if "residual" in found else []
    return found["batch_norm"] in _closure(residual, lambda node: node.all_input_nodes)


def _fuse(activation: str, found: _Found, gradients: list[tuple[Node, _Found]]) -> None:
    """Let a batch norm add the residual and compute the activation, and change its gradients."""
    changes = {name: found.get(name) for name in ("residual", "parameter")}
    _change(found["batch_norm"], {**changes, "activation": activation})
    for call, match in gradients:
        _fuse_gradient(activation, call, match)
    # Last, because a gradient's diff_dst can be the result or another gradient's `masked`.
    found["result"].replace_all_uses_with(found["dst"])
    for call, match in gradients:
        if "residual" in match:
            _replace(match["masked"], _result(call, 3))


def _fuse_gradient(activation: str, call: Node, found: _Found) -> None:
    """Let a gradient begin with the gradient of the activation."""
    residual = found.get("residual")
    changes = {"diff_dst": found["diff_dst"], "activation": activation}
    changes["parameter"] = found.get("parameter")
    if needs_dst(activation, residual):
        changes["dst"] = found["dst"]
    else:
        changes["residual"] = residual
        changes["forward_weight"] = _result(found["batch_norm"], 4)
        changes["forward_bias"] = _result(found["batch_norm"], 5)
    _change(call, changes)


def _result(call: Node, index: int) -> Node:
    """Return a new node that is a result of a call."""
    return _insert_after(call, operator.getitem, call, index)


def _replace(node: Node, new: Node) -> None:
    """Replace a node by one of the same values.

    If that has other strides, users get a copy, except onedsl's operators: their results have the
    strides of src, and other arguments may have any.
    """
    value = node.meta["val"]
    if new.meta["val"].stride() != value.stride():
        node.replace_all_uses_with(new, lambda user: _ignores_strides(user, node))
        new = _copy_in_order(new, value)
    node.replace_all_uses_with(new)


def _ignores_strides(user: Node, argument: Node) -> bool:
    operators = batch_norm_training, batch_norm_training_backward
    return user.target in operators and _arguments(user)["src"] is not argument


def _copy_in_order(node: Node, like: Tensor) -> Node:
    """Return a new node, a copy in the order of the axes of a dense tensor."""
    axes = range(like.ndim)
    # Of axes with the same stride, the inner one has one element.
    order = sorted(axes, key=lambda axis: (like.stride(axis), like.size(axis)), reverse=True)
    ordered = _insert_after(node, _aten.permute.default, node, order)
    contiguous = {"memory_format": torch.contiguous_format}
    dense = _insert_after(ordered, _aten.clone.default, ordered, **contiguous)
    return _insert_after(dense, _aten.permute.default, dense, sorted(axes, key=order.__getitem__))


def _insert_after(node: Node, target: Any, /, *arguments: Any, **options: Any) -> Node:
    """Return a new node after a node, and compute its value."""
    with node.graph.inserting_after(node):
        new = node.graph.call_function(target, arguments, options)
    new.meta["val"] = target(*map(_value, arguments), **options)
    return new


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument


def _change(call: Node, changes: dict[str, Any]) -> None:
    """Change arguments, none of which depends on the call."""
    call.args, call.kwargs = tuple((_arguments(call) | changes).values()), {}
    call.meta["val"] = call.target(*map(_value, call.args))


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
