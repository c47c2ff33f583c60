"""README and guide: their code runs, and prints what they say."""

import os
import re
import shutil
import sys

import helpers
import pytest

import onedsl

DOCUMENTS = ("README.md", "examples/README.md")
# What a block uses: the module it needs.
MODULES = {name: name for name in ("jax", "flax", "equinox", "torch")}
MODULES |= {"--network": "transformers", "compare_data_formats": "matplotlib"}
MODULES |= dict.fromkeys(("distributed.py", "jax_flax.py", "jax_equinox.py"), "sklearn")
# Commands that take tens of seconds, with options to take less.
SLOW = {"--compare": " --seconds 2 --runs 2", "distributed.py": " --steps 40 --seeds 1"}
SLOW |= {"bench": "", "compare_data_formats.py": ""}
QUICK = {"onedsl explain": " --seconds 0.01"}


def blocks(document):
    """Yield language, code and output of each Python block and each command block."""
    source = (helpers.ROOT / document).read_text()
    pattern = r"^```(python|bash)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?"
    for language, code, output in re.findall(pattern, source, re.DOTALL | re.MULTILINE):
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
        environment = {"PATH": paths, "MPLBACKEND": "Agg", "COLUMNS": "120"}
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "passive"}
        for word, options in (SLOW | QUICK).items():
            code = code.replace(word, word + options)
        # On far more threads than cores, oneDNN's calls take seconds.
        code = code.replace("OMP_NUM_THREADS=28", "OMP_NUM_THREADS=4")
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
