"""Checks of the project's files: what several files state agrees, and layers and links hold.

    python .ci/check_project.py

It needs Python 3.10 alone. Each function whose name begins with "check" raises AssertionError.
"""

import ast
import graphlib
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC, PACKAGE = ROOT / "csrc", ROOT / "onedsl"


def text(path: str | Path) -> str:
    """Return the text of a file."""
    return (ROOT / path).read_text()


# ---- Facts ----


def check_one_version() -> None:
    """Check that all files have the same version."""
    found = {
        *re.findall(r'^version = "(.+)"$', text("pyproject.toml"), re.MULTILINE),
        *re.findall(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE),
        *re.findall(r'^  version: "(.+)"$', text(".conda/recipe.yaml"), re.MULTILINE),
    }
    assert len(found) == 1, found
    changelog = text("CHANGELOG.md")
    assert "## Unreleased" in changelog or f"## {found.pop()}" in changelog


def check_changelog_groups() -> None:
    """Check that the changelog has the groups of Keep a Changelog."""
    groups = set(re.findall(r"^### (.+)$", text("CHANGELOG.md"), re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, groups


def check_dependencies_of_the_recipe() -> None:
    """Check that the conda recipe lists those of the wheel, except oneDNN's wheel."""
    (always,) = re.findall(r"^always = \[(.*?)^\]$", text("pyproject.toml"), re.M | re.S)
    required = set(re.findall(r'"(\w+)(>=[\d.]+)[";]', always))
    run = text(".conda/recipe.yaml").partition("\n  run:\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"- (\w+) (>=[\d.]+)", run)) == required
    assert len(required) == 5, required


def check_version_of_cmake() -> None:
    """Check that CMake has COMMAND_ERROR_IS_FATAL, which version 3.19 added."""
    for path, pattern in [
        ("CMakeLists.txt", r"cmake_minimum_required\(VERSION (\d+)\.(\d+)\.\.\."),
        ("pyproject.toml", r'"cmake>=(\d+)\.(\d+)"'),
        (".conda/recipe.yaml", r"cmake >=(\d+)\.(\d+)"),
    ]:
        ((major, minor),) = re.findall(pattern, text(path))
        assert (int(major), int(minor)) >= (3, 19), path


def check_wheels_of_onednn() -> None:
    """Check that no command installs a wheel of 2024 or later, which may lack libdnnl.so.3."""
    paths = ["CMakeLists.txt", "CONTRIBUTING.md", "README.md", ".github/workflows/tests.yml"]
    paths += ["csrc/find_onednn.py", "csrc/onednn/engine.cpp", "onedsl/runtime/import_errors.py"]
    names = r"(?:\binstall|WHEEL).*onednn-(?:devel-)?cpu-gomp(\S*)"
    found = [pin for path in paths for pin in re.findall(names, text(path))]
    assert len(found) >= 7, found
    assert all("<2024" in pin for pin in found), found


# ---- Files ----


def check_named_files_exist() -> None:
    """Check the files that commands and documents name. One had been renamed."""
    named = ["CONTRIBUTING.md", ".ci/run", ".conda/recipe.yaml"]
    named += [str(p.relative_to(ROOT)) for p in ROOT.glob(".github/workflows/*.yml")]
    pattern = r"(?<![\w/.*])(?:csrc|onedsl|tests|examples|\.ci|\.github)/[\w./]*[\w/](?![\w*])"
    paths = {(path, name) for name in named for path in re.findall(pattern, text(name))}
    assert len(paths) > 80, paths
    for path, name in sorted(paths):
        target = ROOT / path
        assert target.is_dir() if path.endswith("/") else target.exists(), f"{name} names {path}"
    # Without a folder, as after "`compute.cpp` there".
    folders = CSRC, PACKAGE, ROOT / "tests"
    existing = {path.name for folder in folders for path in folder.rglob("*.*")}
    for file in re.findall(r"`(\w+\.(?:py|[ch]pp|inl|cmake|txt))`", text("CONTRIBUTING.md")):
        assert file in existing, f"CONTRIBUTING.md names {file}"


def check_table_of_folders() -> None:
    """Check that CONTRIBUTING.md describes every folder of the package and of csrc."""
    cells = re.findall(r"^\| (`\S+/`.*?) \|", text("CONTRIBUTING.md"), re.MULTILINE)
    described = {name for cell in cells for name in re.findall("`([^`]+)/`", cell)}
    paths = [*PACKAGE.rglob("*.py"), *CSRC.rglob("*.?pp")]
    folders = {str(path.parent.relative_to(ROOT)) for path in paths} - {"onedsl", "csrc"}
    assert len(folders) > 15, folders
    assert folders <= described, f"CONTRIBUTING.md's table lacks {sorted(folders - described)}"


def check_top_level() -> None:
    """Check for files that do not belong there. Drawings of an example were committed."""
    ignored = [pattern.strip("/") for pattern in text(".gitignore").split()]
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    found = {name for name in found if not any(fnmatch(name, pattern) for pattern in ignored)}
    documents = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"}
    others = {"csrc", "onedsl", "tests", "examples", "CITATION.cff"}
    assert found == documents | others | {"CMakeLists.txt", "pyproject.toml"}, found


def check_links() -> None:
    """Check links to files, and to their sections as GitHub names them."""

    def anchors(path: Path) -> set[str]:
        headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}

    for document in ("README.md", "examples/README.md"):
        links = re.findall(r"\]\((?!http)([^)]+)\)", text(document))
        assert len(links) > 10, document
        for link in links:
            path, _, anchor = link.partition("#")
            target = (ROOT / document).parent / path if path else ROOT / document
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def check_examples() -> None:
    """Check that the guide names every example, and that a test or its own command runs it."""
    guide, tests = text("examples/README.md"), text("tests/test_examples.py")
    for path in (ROOT / "examples").glob("*.py"):
        assert path.name in guide, path.name
        assert f'"{path.name}"' in tests or f" python {path.name}\n" in guide, path.name
    assert max(len(part.splitlines()) for part in guide.split("\n## ")) <= 55


def check_programs_for_type_checkers() -> None:
    """Check that one uses every public name, and that both checkers reject every mistake."""
    accepted = text("tests/typing/accepted.py")
    for module, package in (("onedsl", PACKAGE), ("testing", PACKAGE / "testing")):
        (names,) = re.findall(r"^__all__ = \[(.*?)\]", text(package / "__init__.py"), re.M | re.S)
        for name in re.findall(r'"(\w+)"', names):
            assert f"{module}.{name}" in accepted or name == "testing", name
    mistakes = text("tests/typing/rejected.py").split("grad = ")[1].splitlines()[1:]
    for line in filter(None, mistakes):
        assert "# type: ignore[" in line, line
        assert "# pyright: ignore[" in line, line


def check_docstrings_of_fields() -> None:
    """Check that each field of an operator's results has a docstring, which editors show."""
    paths = [*(PACKAGE / "operators").glob("*.py"), PACKAGE / "testing/_problems.py"]
    classes = [
        c for p in paths for c in ast.parse(p.read_text()).body if isinstance(c, ast.ClassDef)
    ]
    results = [c for c in classes if any("NamedTuple" in ast.unparse(base) for base in c.bases)]
    assert len(results) >= 7, results
    for result in results:
        for field, after in zip(result.body, [*result.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert is_text, f"{result.name}.{ast.unparse(field.target)}"


# ---- Layers ----

# The folders of csrc that files of a folder may include from.
BELOW = {
    "bench": set(),
    "core": set(),
    "native/kernels": {"core"},
    "native/plan": {"core", "native/kernels"},
    "native": {"core", "native/kernels", "native/plan"},
    "onednn": {"core"},
    "torch": {"core", "native"},
    "xla": {"core", "native"},
    "python": {"bench", "core", "native", "native/plan", "onednn", "torch", "xla"},
}


def check_includes() -> None:
    """Check that C++ files include from the folders below, and only the bindings use Python."""
    sources = [*CSRC.rglob("*.?pp"), *CSRC.rglob("*.inl")]
    folders = {str(path.parent.relative_to(CSRC)) for path in sources}
    assert folders == set(BELOW), f"BELOW and csrc differ in {folders ^ set(BELOW)}"
    for path in sources:
        source, folder = path.read_text(), str(path.parent.relative_to(CSRC))
        files = re.findall(r'^#include "([^"]+)"', source, re.MULTILINE)
        others = {(path.parent / file).resolve().parent for file in files}
        included = {str(other.relative_to(CSRC)) for other in others} - {folder}
        assert included <= BELOW[folder], f"{path} includes from {included}"
        assert folder == "python" or not re.search(r"pybind11|Python\.h", source), path
        assert 'import("onedsl' not in source, path  # the package passes in what it needs


def modules() -> dict[str, Path]:
    """Return the files of the package by the names of their modules."""
    paths = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def imported(name: str, nodes: Callable[[ast.AST], Iterator[ast.AST]]) -> Iterator[str]:
    """Yield the modules of onedsl that a module imports in some of its nodes."""
    known = modules()
    package = name if known[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes(ast.parse(known[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1])
            source = f"{base}.{node.module}" if node.module else base
            for alias in node.names:
                full = f"{source}.{alias.name}"
                if full not in ("onedsl._core", "onedsl._onednn"):  # extensions
                    yield full if full in known else source


def check_imports() -> None:
    """Check for cycles, and for imports of another package's underscored modules."""
    allowed = {
        r"onedsl\.(operators\b|_(?!_main__))": r"onedsl(?!\.(torch|jax|flax|equinox|bench|cli))",
        r"onedsl\.testing": r"onedsl\.(testing|tensors)\b|onedsl$",  # nothing that it judges
    }
    graph = {}
    for name in modules():
        graph[name] = set(imported(name, ast.iter_child_nodes)) - {name}
        for pattern, others in allowed.items():
            found = [o for o in graph[name] if re.match(pattern, name) and not re.match(others, o)]
            assert not found, f"{name} imports {found}"
        for other in imported(name, ast.walk):
            package, _, module = other.rpartition(".")
            is_own = f"{name}.".startswith(f"{package}.")
            assert is_own or not re.match("_[^_]", module), f"{name} imports {other}"
    order = list(graphlib.TopologicalSorter(graph).static_order())
    for below, above in (("tensors.spec", "operators.validation"), ("operators.base", "")):
        assert order.index(f"onedsl.{below}") < order.index(f"onedsl.{above}".rstrip(".")), below


if __name__ == "__main__":
    for name, function in list(globals().items()):
        if name.startswith("check"):
            print(name)
            function()
