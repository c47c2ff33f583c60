"""What the documents say is run."""

import re
from pathlib import Path

import pytest

import onedsl

ROOT = Path(__file__).parents[1]


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.mark.parametrize("code", blocks("README.md", "python"), ids=lambda code: code[:20])
def test_every_block_runs_on_its_own(code):
    for library in ("jax", "torch"):
        if f"import {library}\n" in code:
            pytest.importorskip(library)
    exec(code, {})


def test_the_output_is_what_the_first_block_prints(capsys):
    exec(blocks("README.md", "python")[0], {})
    assert capsys.readouterr().out == blocks("README.md", "text")[0]


def test_the_readme_is_a_first_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    for link in re.findall(r"\]\((?!http)([^)]+)\)", text):
        assert (ROOT / link).exists(), link


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
