"""Data flows one way: no include and no import goes back up, and no file does too much."""

from __future__ import annotations

import ast
import graphlib
import re

import helpers
import pytest

CSRC = helpers.ROOT / "csrc"
PACKAGE = helpers.ROOT / "onedsl"

# A folder of csrc, and those that its files may include from.
BELOW = {
    "core": set(),
    "native": {"core"},
    "onednn": {"core"},
    "plan": {"core", "native", "onednn"},
    "torch": {"core", "plan"},
    "xla": {"core", "plan"},
    "python": {"core", "native", "onednn", "plan", "torch", "xla"},
}


def sources():
    return [*CSRC.rglob("*.?pp"), *CSRC.rglob("*.inl")]


def modules():
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }


def imported(name, path):
    """Modules of onedsl that are imported where a module is, and not inside of its functions."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
        source = f"{base}.{node.module}" if node.module else base
        for alias in node.names:
            full = f"{source}.{alias.name}"
            if full != "onedsl._core":  # the extension imports nothing
                yield full if full in modules() else source


def test_every_folder_of_csrc_has_its_layer():
    assert {path.parent.name for path in sources()} == set(BELOW)


def test_includes_go_down():
    for path in sources():
        for folder in re.findall(r'^#include "\.\./(\w+)/', path.read_text(), re.MULTILINE):
            assert folder in BELOW[path.parent.name], f"{path} includes from {folder}"


def test_there_is_no_python_below_the_bindings():
    for path in sources():
        if path.parent.name != "python":
            assert not re.search(r"pybind11|Python\.h", path.read_text()), path


def test_imports_make_no_circle():
    graph = {name: set(imported(name, path)) - {name} for name, path in modules().items()}
    # The package itself gathers what is below it; modules take from each other.
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("onedsl.tensors.spec") < order.index("onedsl.operators._validation")
    assert order.index("onedsl.operators._validation") < order.index("onedsl.operators._operator")
    assert order.index("onedsl.operators._operator") < order.index("onedsl")


@pytest.mark.parametrize("room", ["torch", "jax", "bench", "cli"])
def test_operators_know_nothing_of_what_uses_them(room):
    below = re.compile(r"onedsl\.(operators\b|_(?!_main__))")
    for name, path in modules().items():
        if below.match(name):
            assert not any(i.startswith(f"onedsl.{room}") for i in imported(name, path)), name


def test_files_are_short():
    for path in [*sources(), *PACKAGE.rglob("*.py")]:
        assert len(path.read_text().splitlines()) < 360, path
