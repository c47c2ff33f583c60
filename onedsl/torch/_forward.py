"""A forward method that torch.fx wrote, in a module that stays what it is."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from torch import fx, nn


def give_forward(parent: nn.Module, graph: fx.Graph) -> None:
    """Let a module run a graph, in a class of its own class's name and kind."""
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
    names = {n: importlib.import_module(module) for n, module in modules.items()}
    made = nn.Module.__new__(kind)
    made.__class__ = _class_with_forward(kind, source, names | others)
    return made
