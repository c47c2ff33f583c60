"""What stands in several files of the project says the same in each."""

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


def test_the_recipe_needs_what_the_package_needs():
    """The wheel's own list, but for oneDNN's wheel."""
    (always,) = re.findall(r"^always = \[(.*)\]$", text("pyproject.toml"), re.MULTILINE)
    needed = set(re.findall(r'"(\w+)(>=[\d.]+)"', always))
    run = text(".conda/recipe.yaml").partition("\n  run:\n")[2].partition("\n\n")[0]
    found = set(re.findall(r"- (\w+) (>=[\d.]+)", run))
    assert found == needed
    assert len(needed) == 2


def test_the_files_that_are_named_exist():
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
