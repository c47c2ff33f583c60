"""Finding batch norm with a ReLU behind it, and saying what to change for one layer of the two."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn

from . import _fused, _layers
from ._batch_norms import has_hooks, is_batch_norm
from ._forward import give_forward

_RELU = {
    nn.BatchNorm1d: _fused.BatchNormReLU1d,
    nn.BatchNorm2d: _fused.BatchNormReLU2d,
    nn.BatchNorm3d: _fused.BatchNormReLU3d,
}
_ADD_RELU = {
    nn.BatchNorm1d: _fused.BatchNormAddReLU1d,
    nn.BatchNorm2d: _fused.BatchNormAddReLU2d,
    nn.BatchNorm3d: _fused.BatchNormAddReLU3d,
}
_RELU |= {getattr(_layers, kind.__name__): fused for kind, fused in _RELU.items()}
_ADD_RELU |= {getattr(_layers, kind.__name__): fused for kind, fused in _ADD_RELU.items()}

_CLIPS: dict[Any, float | None] = {
    nn.ReLU: None,
    nn.ReLU6: 6.0,
    nn.functional.relu: None,
    nn.functional.relu_: None,
    nn.functional.relu6: 6.0,
    torch.relu: None,
    torch.relu_: None,
    "relu": None,
    "relu_": None,
}
"""The bound of a ReLU, by its class, its function or its method."""

_NO_RELU_BEHIND = "no ReLU is seen behind it"

_SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_IN_PLACE_SUMS = {operator.iadd, "add_"}


Matches = dict[nn.Module, tuple[fx.Node, fx.Node | None, fx.Node, float | None]]
"""Nodes of a layer, of the sum behind it if there is one, and of the ReLU; and the ReLU's bound."""

Found = dict[nn.Module, tuple[Callable[[], None], ...]]
"""The layers that can be fused, and what does it."""

Left = dict[nn.Module, str]


def find(model: nn.Module) -> tuple[Found, Left]:
    """Tell which batch-norm layers `fuse` takes, and why it leaves the others."""
    uses = collections.Counter(
        id(module) for _, module in model.named_modules(remove_duplicate=False)
    )
    found: Found = {}
    left: Left = {}
    for layer in model.modules():
        if is_batch_norm(layer) and not isinstance(layer, _fused.FusedLayer):
            left[layer] = _unfit(layer, uses) or _NO_RELU_BEHIND
    fit = {layer for layer, why in left.items() if why is _NO_RELU_BEHIND}
    for layer in fit:
        if _is_timm_s(layer):
            _search_timm_s(layer, found)
    for parent in filter(_is_sequential, model.modules()):
        _search_sequential(parent, fit, found)
    for parent in model.modules():
        within = fit.intersection(_own_layers(parent)).difference(found)
        if within and not _is_sequential(parent) and not _is_container(parent):
            why = _search_forward(parent, within, uses, found)
            left.update((layer, why) for layer in within if why)
    return found, {layer: why for layer, why in left.items() if layer not in found}


def _is_timm_s(layer: nn.Module) -> bool:
    kind = type(layer)
    return kind.__name__ == "BatchNormAct2d" and kind.__module__.startswith("timm.")


def _unfit(layer: nn.Module, uses: collections.Counter[int]) -> str | None:
    if torch.nn.utils.parametrize.is_parametrized(layer):
        return "it is parametrized"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return "it is lazy, and has seen no input yet"
    if type(layer) not in _RELU and not _is_timm_s(layer):
        return f"{type(layer).__name__} is another class than PyTorch's BatchNorm1d to 3d"
    if uses[id(layer)] > 1:
        return "the model has it in several places"
    return "it has hooks" if has_hooks(layer) else None


def _is_sequential(module: nn.Module) -> bool:
    return type(module).forward is nn.Sequential.forward


def _is_container(module: nn.Module) -> bool:
    return type(module).forward is nn.Module.forward


def _own_layers(parent: nn.Module) -> Iterator[nn.Module]:
    """Children, and those in Sequentials, lists and dictionaries of the module."""
    for child in parent.children():
        if _is_sequential(child) or _is_container(child):
            yield from _own_layers(child)
        else:
            yield child


def _recast(layer: nn.Module, kind: type[nn.Module], clip: float | None) -> None:
    layer.__class__ = kind
    layer.clip = clip


def _is_relu(module: nn.Module) -> bool:
    return type(module) in _CLIPS and not has_hooks(module)


def _search_sequential(parent: nn.Module, fit: set[nn.Module], found: Found) -> None:
    children = list(parent._modules.items())
    for (_, layer), (name, relu) in itertools.pairwise(children):
        if layer in fit and type(layer) in _RELU and relu is not None and _is_relu(relu):
            changes = (
                functools.partial(_recast, layer, _RELU[type(layer)], _CLIPS[type(relu)]),
                functools.partial(parent._modules.__setitem__, name, nn.Identity()),
            )
            found[layer] = changes


def _search_timm_s(layer: nn.Module, found: Found) -> None:
    act, drop = layer.act, layer.drop
    if _is_relu(act) and type(drop) is nn.Identity:
        change = functools.partial(_recast, layer, _fused.BatchNormReLU2d, _CLIPS[type(act)])
        found[layer] = (change,)


class _OneLevel(fx.Tracer):
    """Traces one forward method, and goes into Sequentials and no other module."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return has_hooks(m) or not _is_sequential(m)


def _trace(parent: nn.Module) -> fx.Graph | str:
    """Trace a forward method, or say why that cannot be relied on."""
    graphs: list[fx.Graph] = []
    mode = parent.training
    try:
        for training in (False, True):
            parent.training = training
            graphs.append(_OneLevel().trace(parent))
    except Exception as error:  # forward methods are other people's code
        return f"torch.fx cannot trace {type(parent).__name__}: {error}".split("\n")[0]
    finally:
        parent.training = mode
    first, second = (graph.python_code("self").src for graph in graphs)
    if first != second:
        return f"{type(parent).__name__} goes another way in evaluation"
    graph = graphs[-1]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if any(node.args or node.target.startswith("*") for node in inputs):
        return f"{type(parent).__name__} has optional arguments"
    return graph


def _search_forward(
    parent: nn.Module, fit: set[nn.Module], uses: collections.Counter[int], found: Found
) -> str | None:
    """Look for layers in a forward method; what comes back says why there are none."""
    if "forward" in vars(parent):
        return f"{type(parent).__name__} has a forward of its own"
    graph = _trace(parent)
    if isinstance(graph, str):
        return graph
    _remove_identities(parent, graph)
    calls = collections.Counter(n.target for n in graph.nodes if n.op == "call_module")
    matches: Matches = {}
    relus: set[fx.Node] = set()  # the sum of two layers goes to the first
    for node in graph.nodes:
        if node.op != "call_module" or calls[node.target] > 1 or len(node.args) != 1:
            continue
        layer = parent.get_submodule(node.target)
        behind = _only_user(node)
        if layer not in fit or type(layer) not in _RELU or behind is None:
            continue
        total = behind if _is_sum(behind, node) else None
        relu = behind if total is None else _only_user(total)
        if relu is None or relu in relus or (clip := _clip_of(parent, relu)) is _NO_RELU:
            continue
        relus.add(relu)
        matches[layer] = (node, total, relu, clip)
    _take(parent, graph, matches, calls, uses, found)
    return None


_NO_RELU: Any = object()


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _clip_of(parent: nn.Module, node: fx.Node) -> Any:
    """Give the bound of a ReLU that takes one tensor, or say that it is none."""
    if node.op == "call_module":
        relu = parent.get_submodule(str(node.target))
        return _CLIPS[type(relu)] if _is_relu(relu) else _NO_RELU
    if node.op not in ("call_function", "call_method") or len(node.all_input_nodes) != 1:
        return _NO_RELU
    return _CLIPS.get(node.target, _NO_RELU)


def _is_sum(total: fx.Node, of: fx.Node) -> bool:
    """Tell whether a node adds two tensors, and overwrites none but that of the layer."""
    if (
        total.target not in _SUMS
        or len(total.args) != 2
        or total.kwargs
        or len(total.all_input_nodes) != 2
    ):
        return False
    return total.target not in _IN_PLACE_SUMS or total.args[0] is of


def _remove_identities(parent: nn.Module, graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op == "call_module":
            module = parent.get_submodule(node.target)
            if type(module) is nn.Identity and not has_hooks(module):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)


def _take(
    parent: nn.Module,
    graph: fx.Graph,
    matches: Matches,
    calls: collections.Counter[Any],
    uses: collections.Counter[int],
    found: Found,
) -> None:
    """Record what was found; without the need to, no forward method is written."""

    def is_alone(total: fx.Node | None, relu: fx.Node) -> bool:
        if total is not None or relu.op != "call_module":
            return False
        return calls[relu.target] == 1 and uses[id(parent.get_submodule(str(relu.target)))] == 1

    rewrite = None
    if not all(is_alone(total, relu) for _, total, relu, _ in matches.values()):
        for node, total, relu, _ in matches.values():
            _rewrite_node(graph, node, total, relu)
        graph.lint()
        rewrite = functools.partial(give_forward, parent, graph)
    for layer, (_, total, relu, clip) in matches.items():
        kind = (_RELU if total is None else _ADD_RELU)[type(layer)]
        if rewrite is None:
            path, _, name = str(relu.target).rpartition(".")
            around = parent.get_submodule(path)
            other = functools.partial(around._modules.__setitem__, name, nn.Identity())
        else:
            other = rewrite
        found[layer] = (functools.partial(_recast, layer, kind, clip), other)


def _rewrite_node(graph: fx.Graph, node: fx.Node, total: fx.Node | None, relu: fx.Node) -> None:
    """Let a layer's own call give what the ReLU gives."""
    if total is None:
        fused = node
    else:
        residual = total.args[1] if total.args[0] is node else total.args[0]
        with graph.inserting_before(total):
            fused = graph.call_module(str(node.target), (node.args[0], residual))
    relu.replace_all_uses_with(fused)
    graph.erase_node(relu)
    if total is not None:
        graph.erase_node(total)
        graph.erase_node(node)
