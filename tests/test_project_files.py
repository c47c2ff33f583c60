"""Facts that several project files repeat are the same in each."""

from __future__ import annotations

import re

import helpers
import pytest

import onedsl


def text(path: str) -> str:
    return (helpers.ROOT / path).read_text()


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("pyproject.toml", r'^version = "(.+)"$'),
        ("CITATION.cff", r"^version: (.+)$"),
        (".conda/recipe.yaml", r'^  version: "(.+)"$'),
    ],
)
def test_one_version(path, pattern):
    assert re.findall(pattern, text(path), re.MULTILINE) == [onedsl.__version__]


def test_the_recipe_has_the_dependencies_of_the_package():
    """The conda recipe lists those of the wheel, except oneDNN's wheel."""
    (always,) = re.findall(r"^always = \[(.*)\]$", text("pyproject.toml"), re.MULTILINE)
    required = set(re.findall(r'"(\w+)(>=[\d.]+)[";]', always))
    run = text(".conda/recipe.yaml").partition("\n  run:\n")[2].partition("\n\n")[0]
    found = set(re.findall(r"- (\w+) (>=[\d.]+)", run))
    assert found == required
    assert len(required) == 3


def test_cmake_is_new_enough_for_the_build():
    """CMakeLists.txt uses COMMAND_ERROR_IS_FATAL, which CMake 3.19 added."""
    assert "COMMAND_ERROR_IS_FATAL" in text("CMakeLists.txt")
    for path, pattern in [
        ("CMakeLists.txt", r"cmake_minimum_required\(VERSION (\d+)\.(\d+)\.\.\."),
        ("pyproject.toml", r'"cmake>=(\d+)\.(\d+)"'),
        (".conda/recipe.yaml", r"cmake >=(\d+)\.(\d+)"),
    ]:
        ((major, minor),) = re.findall(pattern, text(path))
        assert (int(major), int(minor)) >= (3, 19), path


def test_the_extension_imports_nothing_from_the_package():
    """Includes and imports follow the layers: the package passes in what the extension needs."""
    sources = [p for p in (helpers.ROOT / "csrc").rglob("*.*pp") if "import(" in p.read_text()]
    assert sources
    for source in sources:
        assert 'import("onedsl' not in source.read_text(), source


def test_every_file_in_recipes_and_workflows_exists():
    workflows = sorted((helpers.ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    named = [".conda/recipe.yaml", *(str(path.relative_to(helpers.ROOT)) for path in workflows)]
    paths = {
        path
        for name in named
        for path in re.findall(
            r"\b(?:tests|examples)/\w+\.py|\.ci/run|\.conda/\w+\.yaml", text(name)
        )
    }
    assert {"tests/test_matrix.py", "examples/quickstart.py", ".ci/run"} <= paths
    for path in paths:
        assert (helpers.ROOT / path).is_file(), path
