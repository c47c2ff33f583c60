"""What the documents say is run."""

import importlib.util
import re
from pathlib import Path

import pytest

import onedsl

ROOT = Path(__file__).parents[1]


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_python_examples_run():
    code = blocks("README.md", "python")
    assert code
    namespace = {}
    missing = [name for name in ("jax", "torch") if importlib.util.find_spec(name) is None]
    for block in code:
        if any(f"import {name}\n" in block for name in missing):
            continue
        exec(block, namespace)
    assert namespace["compiled"].spec == namespace["spec"]


def test_ci_runs_the_readmes_commands():
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    for kind, last_word in (("test", "pytest"), ("example", "compare_data_formats.py")):
        marked = re.search(rf"<!-- {kind} command -->\n```bash\n(.*?)```", readme, re.DOTALL)
        assert marked.group(1).strip().endswith(last_word)
        assert f"readme_command {kind}" in script


@pytest.mark.parametrize(
    "path",
    sorted(set(re.findall(r"`((?:csrc|onedsl)/[\w./]+)`", (ROOT / "CONTRIBUTING.md").read_text()))),
)
def test_files_that_contributors_are_sent_to_exist(path):
    assert (ROOT / path).exists()


def test_the_changelog_knows_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {onedsl.__version__}" in changelog
