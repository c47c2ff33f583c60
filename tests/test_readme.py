"""The documents: their code runs, and what they refer to exists."""

import re

import helpers
import pytest

import onedsl


def blocks(document, language):
    text = (helpers.ROOT / document).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def names_for(code):
    """Return the names that a block of the README uses without defining them."""
    if "onedsl.torch" in code:
        nn = pytest.importorskip("torch").nn
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        return {"model": nn.Sequential(*layers)}
    return {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compilers
@pytest.mark.parametrize("code", blocks("README.md", "python"), ids=lambda code: code[:20])
def test_every_block_runs(code):
    names = names_for(code)
    try:
        exec(code, names)
    finally:
        if "enable()" in code:
            onedsl.torch.disable()


def test_the_first_block_prints_the_documented_output(capsys):
    exec(blocks("README.md", "python")[0], {})
    assert capsys.readouterr().out == blocks("README.md", "text")[0]


def test_the_readme_is_short_and_its_links_exist():
    text = (helpers.ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for link in re.findall(r"\]\((?!http)([^)]+)\)", text):
        assert (helpers.ROOT / link).exists(), link


def test_ci_runs_the_readmes_commands():
    readme = (helpers.ROOT / "README.md").read_text()
    script = (helpers.ROOT / ".ci" / "run").read_text()
    for kind, last_word in (("test", "pytest"), ("example", "compare_data_formats.py")):
        marked = re.search(rf"<!-- {kind} command -->\n```bash\n(.*?)```", readme, re.DOTALL)
        assert marked.group(1).strip().endswith(last_word)
        assert f"readme_command {kind}" in script


def test_every_path_in_contributing_exists():
    text = (helpers.ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?:csrc|onedsl|tests)/[\w./]+)`", text))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (helpers.ROOT / path).exists()] == []


def test_the_changelog_has_the_version_in_the_keep_a_changelog_format():
    changelog = (helpers.ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {onedsl.__version__}" in changelog
    groups = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
