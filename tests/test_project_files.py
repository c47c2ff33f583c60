"""README, changelog and other project files: their code runs, and their facts agree."""

import os
import re
import runpy
import shutil
import sys
from fnmatch import fnmatch

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
    (always,) = re.findall(r"^always = \[(.*?)^\]$", text("pyproject.toml"), re.M | re.S)
    required = set(re.findall(r'"(\w+)(>=[\d.]+)[";]', always))
    run = text(".conda/recipe.yaml").partition("\n  run:\n")[2].partition("\n\n")[0]
    found = set(re.findall(r"- (\w+) (>=[\d.]+)", run))
    assert found == required
    assert len(required) == 5


def test_files_that_contributing_names_exist():
    """Regression: a command named a program that had been renamed."""
    paths = re.findall(
        r"[ `]((?:csrc|onedsl|tests|\.ci|\.github)/[\w./]+)[ `]", text("CONTRIBUTING.md")
    )
    assert len(paths) > 80
    assert [path for path in paths if not (helpers.ROOT / path).exists()] == []


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


def test_a_folder_without_onednn_is_not_ignored(tmp_path, monkeypatch):
    """Regression: CMAKE_PREFIX_PATH without oneDNN's CMake files silently selected PyPI's."""
    find = runpy.run_path(str(helpers.ROOT / "csrc" / "find_onednn.py"))["environment_config"]
    for name in ("dnnl_DIR", "dnnl_ROOT", "DNNLROOT", "CMAKE_PREFIX_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    assert find() is None
    for name in ("dnnl_ROOT", "DNNLROOT", "CMAKE_PREFIX_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
        with pytest.raises(FileNotFoundError, match=rf"must have oneDNN's .*, got {tmp_path}\. "):
            find()
        monkeypatch.delenv(name)
    monkeypatch.setenv("CMAKE_PREFIX_PATH", str(tmp_path))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert find() is None
    folder = tmp_path / "lib" / "x86_64-linux-gnu" / "cmake" / "dnnl"
    folder.mkdir(parents=True)
    (folder / "dnnl-config.cmake").touch()
    assert find() == folder


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
    assert {"tests/test_layers.py", "examples/quickstart.py", ".ci/run"} <= paths
    for path in paths:
        assert (helpers.ROOT / path).is_file(), path


# ---- Documents ----


DOCUMENTS = ("README.md", "examples/README.md")
# What a block uses: the module it needs.
MODULES = {"jax": "jax", "flax": "flax", "torch": "torch", "--network": "transformers"}
MODULES |= {"distributed.py": "sklearn", "compare_data_formats": "matplotlib"}
# Commands that take tens of seconds, with options to take less.
SLOW = {"--compare": " --seconds 2 --runs 2", "distributed.py": " --steps 40 --seeds 1"}
SLOW |= {"bench": "", "compare_data_formats.py": ""}


def blocks(document):
    """Yield language, code and output of each Python block and each command block."""
    pattern = r"^```(python|bash)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?"
    for language, code, output in re.findall(pattern, text(document), re.DOTALL | re.MULTILINE):
        if language == "python" or document != "README.md":  # .ci/run runs the README's commands
            slow = language == "bash" and any(word in code for word in SLOW)
            marks = [pytest.mark.slow] if slow else []
            lines = code.splitlines()
            name = f"{document}: {lines[2] if language == 'python' else lines[0]}"
            yield pytest.param(language, code, output, id=name[:60], marks=marks)


def names_for(code):
    """Return the names that a block uses without defining them."""
    if "model" in code:
        torch = pytest.importorskip("torch")
        layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()

        def train(model):
            model(torch.randn(2, 3, 8, 8)).sum().backward()

        return {"torch": torch, "model": torch.nn.Sequential(*layers), "train": train}
    return {
        "my_backend": lambda *inputs, epsilon: onedsl.BatchNormTrainingBackward(epsilon, "NCX")(
            *inputs
        )
    }


def masked(line):
    """Return a line without the values of its numbers and its spaces."""
    return re.sub(r"\d[\d,]*(\.\d+)?", "0", re.sub(r"\s+", " ", line)).strip()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compilers
@pytest.mark.parametrize(
    ("language", "code", "output"), [block for path in DOCUMENTS for block in blocks(path)]
)
def test_every_block_prints_what_is_documented(language, code, output, tmp_path, capsys):
    """The lines of Python blocks are exact, those of commands except for numbers; "..." is any."""
    for word, module in MODULES.items():
        if word in code:
            pytest.importorskip(module)
    if language == "python":
        try:
            exec(code, names_for(code))
        finally:
            if "enable()" in code:
                onedsl.torch.disable()
        shown = capsys.readouterr().out
    else:
        shutil.copytree(helpers.ROOT / "examples", tmp_path / "examples")
        paths = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        environment = {"PATH": paths, "MPLBACKEND": "Agg", "COLUMNS": "120", "NO_COLOR": "1"}
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "passive"}
        for word, options in SLOW.items():
            code = code.replace(word, word + options)
        if "graph.json" in code and "export" not in code:
            code = f"onedsl export 8x40x40x96 -o graph.json\n{code}"
        shown = helpers.run_program(
            *("bash", "-euo", "pipefail", "-c", code),
            env=os.environ | environment,
            cwd=tmp_path / "examples",
            timeout=600,
        ).stdout
    documented = output.splitlines()
    if language == "bash":
        documented, shown = [*map(masked, documented)], "\n".join(map(masked, shown.splitlines()))
    pattern = "\n".join(documented)
    pattern = re.escape(pattern).replace(r"\.\.\.", r"(?:.|\n)*")
    assert re.fullmatch(pattern, shown.strip()) or not output, shown


def anchors(document):
    """Return the links to the sections of a document, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", text(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_exist(document):
    links = re.findall(r"\]\((?!http)([^)]+)\)", text(document))
    assert len(links) > 10
    folder = (helpers.ROOT / document).parent
    for link in links:
        path, _, anchor = link.partition("#")
        target = (folder / path if path else helpers.ROOT / document).resolve()
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.relative_to(helpers.ROOT)), link


def test_the_guide_names_every_example_in_sections_of_a_screen():
    guide = text("examples/README.md")
    for path in (helpers.ROOT / "examples").glob("*.py"):
        assert path.name in guide, path.name
    assert max(len(part.splitlines()) for part in guide.split("\n## ")) <= 55


def test_ci_runs_the_readmes_commands():
    readme = text("README.md")
    script = text(".ci/run")
    for kind, last_word in (("test", "pytest"), ("example", "compare_data_formats.py")):
        marked = re.search(rf"<!-- {kind} command -->\n```bash\n(.*?)```", readme, re.DOTALL)
        assert marked.group(1).strip().endswith(last_word)
        assert f"readme_command {kind}" in script


def test_the_changelog_has_the_version_in_the_keep_a_changelog_format():
    changelog = text("CHANGELOG.md")
    assert "## Unreleased" in changelog or f"## {onedsl.__version__}" in changelog
    groups = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_top_level_has_only_known_files():
    """Regression: drawings that an example had written there were committed."""
    ignored = [pattern.strip("/") for pattern in text(".gitignore").split()]
    found = {path.name for path in helpers.ROOT.iterdir() if not path.name.startswith(".")}
    kept = {name for name in found if not any(fnmatch(name, pattern) for pattern in ignored)}
    folders = {"csrc", "onedsl", "tests", "examples"}
    documents = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"}
    assert kept == folders | documents | {"CITATION.cff", "CMakeLists.txt", "pyproject.toml"}
    assert {path.name for path in (helpers.ROOT / ".ci").iterdir()} == {"pdoc", "run", "sanitize"}


def test_commands_install_no_sycl_build():
    """oneDNN's wheels of 2024 and later may not contain libdnnl.so.3."""
    paths = ["CMakeLists.txt", "CONTRIBUTING.md", "README.md", ".github/workflows/tests.yml"]
    paths += ["csrc/find_onednn.py", "csrc/onednn/engine.cpp", "onedsl/runtime/import_errors.py"]
    names = r"onednn-(?:devel-)?cpu-gomp(\S*)"
    found = [
        pin for path in paths for pin in re.findall(rf"(?:install|WHEEL).*{names}", text(path))
    ]
    assert len(found) >= 7
    assert all("<2024" in pin for pin in found), found


def test_a_system_wide_onednn_adds_no_requirement(tmp_path, monkeypatch):
    """Without the wheel, which isolated builds install, CMake may find the system's oneDNN."""
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    for name in ("dnnl_DIR", "dnnl_ROOT", "DNNLROOT", "CMAKE_PREFIX_PATH"):
        monkeypatch.delenv(name, raising=False)
    found = runpy.run_path(str(helpers.ROOT / "csrc" / "find_onednn.py"))
    dependencies, names = found["dynamic_metadata"], found["dynamic_metadata"].__globals__
    monkeypatch.setitem(names, "wheel_config", lambda: tmp_path)
    assert dependencies({"always": ["numpy"]}, {}) == {
        "dependencies": ["numpy", found["RUN_WHEEL"]]
    }
    monkeypatch.setitem(names, "wheel_config", lambda: None)
    assert dependencies({"always": ["numpy"]}, {}) == {"dependencies": ["numpy"]}
