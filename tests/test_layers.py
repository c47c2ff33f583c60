"""Layers: the direction of includes and imports."""

import ast
import graphlib
import re

import helpers
import pytest

CSRC = helpers.ROOT / "csrc"
PACKAGE = helpers.ROOT / "onedsl"

# The folders of csrc that files of a folder may include from.
BELOW = {
    "core": set(),
    "native": {"core"},
    "onednn": {"core"},
    "torch": {"core", "native"},
    "xla": {"core", "native"},
    "python": {"core", "native", "onednn", "torch", "xla"},
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


def imported(name, path, nodes=ast.iter_child_nodes):
    """Yield the modules of onedsl that a module imports, by default not inside of functions."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
        source = f"{base}.{node.module}" if node.module else base
        for alias in node.names:
            full = f"{source}.{alias.name}"
            if full != "onedsl._core":  # the extension imports nothing
                yield full if full in modules() else source


def test_every_folder_of_csrc_has_a_layer():
    assert {path.parent.name for path in sources()} == set(BELOW)


def test_direction_of_includes():
    for path in sources():
        for folder in re.findall(r'^#include "\.\./(\w+)/', path.read_text(), re.MULTILINE):
            assert folder in BELOW[path.parent.name], f"{path} includes from {folder}"


def test_only_bindings_include_python():
    for path in sources():
        if path.parent.name != "python":
            assert not re.search(r"pybind11|Python\.h", path.read_text()), path


def test_imports_have_no_cycle():
    graph = {name: set(imported(name, path)) - {name} for name, path in modules().items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("onedsl.tensors.spec") < order.index("onedsl.operators.validation")
    assert order.index("onedsl.operators.validation") < order.index("onedsl.operators.base")
    assert order.index("onedsl.operators.base") < order.index("onedsl")


def test_underscored_modules_are_imported_in_their_own_package_only():
    for name, path in modules().items():
        for other in imported(name, path, ast.walk):
            package, _, module = other.rpartition(".")
            assert not re.match("_[^_]", module) or f"{name}.".startswith(f"{package}."), (
                f"{name} imports {other}"
            )


@pytest.mark.parametrize("folder", ["torch", "jax", "bench", "cli"])
def test_operators_do_not_import_integrations(folder):
    names = [name for name in modules() if re.match(r"onedsl\.(operators\b|_(?!_main__))", name)]
    assert len(names) > 5
    for name in names:
        found = imported(name, modules()[name])
        assert not any(other.startswith(f"onedsl.{folder}") for other in found), name


def test_the_reference_imports_nothing_that_it_judges():
    names = [name for name in modules() if name.startswith("onedsl.testing")]
    assert len(names) > 2
    for name in names:
        allowed = re.compile(r"onedsl\.(testing|tensors)\b|onedsl$")
        assert all(map(allowed.match, imported(name, modules()[name]))), name
