"""Finding batch norm with a ReLU behind it in a model, and making one layer of the two."""

from __future__ import annotations

import collections
import functools
import logging
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import fx, nn

from . import _fused, _layers

_logger = logging.getLogger("onedsl.torch")

ModuleT = TypeVar("ModuleT", bound=nn.Module)

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
for _kinds in (_RELU, _ADD_RELU):
    _kinds |= {getattr(_layers, kind.__name__): _kinds[kind] for kind in tuple(_kinds)}

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


def fuse(model: ModuleT) -> ModuleT:
    """Make one layer of each batch norm and the ReLU behind it, in place.

    Found are ReLU and ReLU6, as layers, functions or methods, behind BatchNorm1d to 3d of PyTorch's
    or onedsl's, with an addition between the two or without: in Sequentials, in the forward method
    of a module that calls its layers one after the other (torch.fx traces it), and timm's
    BatchNormAct2d. `report` tells what was found, and why something was left.

    Layers stay the objects that they are, with their parameters, buffers, hooks and names in
    state_dict; their class becomes `BatchNormReLU2d`, `BatchNormAddReLU2d` or the like. A ReLU that
    nothing else uses becomes an Identity. Where there is an addition, or the ReLU has other users,
    the class of the module around becomes one of the same name and kind with another forward.

    Parameters
    ----------
    model : torch.nn.Module
        A model, or a part of it, in training or evaluation: both work afterwards.

    Returns
    -------
    torch.nn.Module
        The same object.

    Notes
    -----
    A module is left as it is where torch.fx cannot trace it, or where it could trace one of several
    ways through it: forward methods with optional arguments, or with another way in evaluation.
    What is left works as before. Hooks and forward methods that look at a layer's output see that
    of the ReLU.
    """
    found, left = find(model)
    for change in dict.fromkeys(change for match in found.values() for change in match.changes):
        change()
    names = {module: name for name, module in model.named_modules()}
    _logger.info("fused %d batch-norm layers, left %d", len(found), len(left))
    for layer, why in left.items():
        _logger.info("left %s (%s): %s", names[layer], type(layer).__name__, why)
    return model


@dataclass(frozen=True)
class Match:
    """A layer that can be fused, and how."""

    behind: str
    changes: tuple[Callable[[], None], ...]


Matches = dict[nn.Module, tuple[fx.Node, fx.Node | None, fx.Node, float | None]]
"""Nodes of a layer, of the sum behind it if there is one, and of the ReLU; and the ReLU's bound."""

Found = dict[nn.Module, Match]
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
    for parent in model.modules():
        fit = [
            layer
            for layer in _own_layers(parent)
            if left.get(layer) == _NO_RELU_BEHIND and type(layer) in _RELU
        ]
        if not fit:
            continue
        if type(parent).forward is nn.Sequential.forward:
            _search_sequential(parent, fit, found)
        elif not isinstance(parent, nn.ModuleList | nn.ModuleDict):
            why = _search_forward(parent, fit, uses, found)
            left.update((layer, why) for layer in fit if why and layer not in found)
    for layer in left:
        if _is_timm_s(layer):
            _search_timm_s(layer, found)
    return found, {layer: why for layer, why in left.items() if layer not in found}


def is_batch_norm(layer: nn.Module) -> bool:
    """Tell whether a module is batch norm of some kind, PyTorch's or another's."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) or (
        "BatchNorm" in type(layer).__name__ and not any(layer.children())
    )


def has_hooks(module: nn.Module) -> bool:
    """Tell whether somebody looks at a module's input or output."""
    return any(
        getattr(module, f"_{kind}hooks")
        for kind in ("forward_", "forward_pre_", "backward_", "backward_pre_")
    )


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


def _own_layers(parent: nn.Module) -> Iterator[nn.Module]:
    """Children, and those in lists and dictionaries of the module."""
    for child in parent.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _own_layers(child)
        else:
            yield child


def _recast(layer: nn.Module, kind: type[nn.Module], clip: float | None) -> None:
    layer.__class__ = kind
    layer.clip = clip  # type: ignore[assignment]


def _is_relu(module: nn.Module) -> bool:
    return type(module) in _CLIPS and not has_hooks(module)


def _search_sequential(parent: nn.Module, fit: list[nn.Module], found: Found) -> None:
    children = list(parent._modules.items())
    for (_, layer), (name, relu) in zip(children, children[1:], strict=False):
        if layer in fit and relu is not None and _is_relu(relu):
            changes = (
                functools.partial(_recast, layer, _RELU[type(layer)], _CLIPS[type(relu)]),
                functools.partial(parent._modules.__setitem__, name, nn.Identity()),
            )
            found[layer] = Match(type(relu).__name__, changes)


def _search_timm_s(layer: nn.Module, found: Found) -> None:
    act, drop = layer.act, layer.drop
    if _is_relu(act) and type(drop) is nn.Identity:
        change = functools.partial(_recast, layer, _fused.BatchNormReLU2d, _CLIPS[type(act)])
        found[layer] = Match(type(act).__name__, (change,))


class _OneLevel(fx.Tracer):
    """Traces one forward method, and goes into no other module."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return True


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
    parent: nn.Module, fit: list[nn.Module], uses: collections.Counter[int], found: Found
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
        if layer not in fit or behind is None:
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
        rewrite = functools.partial(_give_forward, parent, graph)
    for layer, (_, total, relu, clip) in matches.items():
        kind = (_RELU if total is None else _ADD_RELU)[type(layer)]
        if rewrite is None:
            path, _, name = str(relu.target).rpartition(".")
            around = parent.get_submodule(path)
            other = functools.partial(around._modules.__setitem__, name, nn.Identity())
        else:
            other = rewrite
        behind = ("" if total is None else "addition and ") + ("ReLU" if clip is None else "ReLU6")
        found[layer] = Match(behind, (functools.partial(_recast, layer, kind, clip), other))


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


def _give_forward(parent: nn.Module, graph: fx.Graph) -> None:
    code = graph.python_code("self")
    names = {name: value for name, value in code.globals.items() if name != "__builtins__"}
    parent.__class__ = _class_with_forward(type(parent), code.src, names)


def _class_with_forward(
    kind: type[nn.Module], source: str, names: dict[str, Any]
) -> type[nn.Module]:
    """Make a class of the same name with another forward, whose instances can be saved."""
    namespace = dict(names)
    exec(compile(source, f"<forward of {kind.__name__}, by onedsl.torch.fuse>", "exec"), namespace)
    modules = {n: value.__name__ for n, value in names.items() if isinstance(value, ModuleType)}
    others = {n: value for n, value in names.items() if n not in modules}

    def reduce(self: nn.Module, _protocol: Any) -> tuple[Any, ...]:
        return _restore, (kind, source, modules, others), dict(vars(self))

    return type(
        kind.__name__,
        (kind,),
        {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "__reduce_ex__": reduce,
            "forward": namespace["forward"],
        },
    )


def _restore(
    kind: type[nn.Module], source: str, modules: dict[str, str], others: dict[str, Any]
) -> nn.Module:
    import importlib

    names = {n: importlib.import_module(module) for n, module in modules.items()}
    made = kind.__new__(kind)
    made.__class__ = _class_with_forward(kind, source, names | others)
    return made
