"""The package onedsl.torch: PyTorch's version, names in saved models."""

import copy
import importlib
import json
import pickle
import re
import shutil
import subprocess
import sys

import helpers
import pytest
from test_torch_memory import AVAILABLE
from torch_helpers import nn, onedsl_torch, torch

from onedsl.torch.__main__ import _speed_up, main


def test_an_older_pytorch_is_an_import_error(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.2+cpu")
    with pytest.raises(ImportError, match=r"requires PyTorch 2\.11 or newer, got 2\.10\.2"):
        importlib.reload(onedsl_torch)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("BatchNormAct1d", {"activation": "relu", "clip": 6.0}),
        ("BatchNormAct3d", {"activation": "silu"}),
        ("BatchNormAct2d", {"activation": "leaky_relu", "negative_slope": 0.1}),
        ("SyncBatchNorm", {}),
    ],
)
def test_saved_layers_name_the_public_module(name, options):
    """Saved models remain loadable when the package's files are renamed."""
    layer = getattr(onedsl_torch, name)(3, **options)
    layer.running_mean.fill_(5)
    saved = pickle.dumps(layer)
    assert b"onedsl.torch" in saved
    assert b"onedsl.torch._" not in saved
    for other in pickle.loads(saved), copy.deepcopy(layer):
        assert type(other) is type(layer)
        assert all(map(torch.equal, other.state_dict().values(), layer.state_dict().values()))
        assert repr(other) == repr(layer)


LOOP = helpers.PROGRAMS / "torch_loop.py"
# With the variable set, --compare has no runs with huge pages alone.
TWO_KINDS = {"THP_MEM_ALLOC_ENABLE": "1"}


@pytest.mark.parametrize("steps", [10**9, 20], ids=["ended", "to the end"])
def test_compare(steps):
    options = ("--compare", "--seconds", "0.5", "--runs", "2")
    environment = {} if steps == 20 else TWO_KINDS
    child = helpers.run_python(
        "-m", "onedsl.torch", *options, LOOP, str(steps), environment=environment
    )
    lines = child.stdout.splitlines()
    has_three = AVAILABLE and not environment
    kinds = ["PyTorch", "PyTorch, huge pages", "onedsl"] if has_three else ["PyTorch", "onedsl"]
    runs = lines[1 : 1 + 2 * len(kinds)]
    assert [line[:20].rstrip() for line in runs] == kinds * 2
    assert lines[0].startswith(f"The script runs {len(runs)} times, for 0.5 s")
    assert all(0 < float(line[20:].split()[0]) < 500 for line in runs)
    assert all(0 <= int(line[20:].split()[4]) < 100 for line in runs)
    speed_ups = [line.partition(": ")[0] for line in lines if line.startswith("speed-up")]
    assert speed_ups == [f"speed-up over {kind}" for kind in kinds[:-1]]
    assert by_layer(child.stdout) == ["1", *["3", "onedsl", "eager"] * 2]


def by_layer(shown):
    """Return the words of the last row of a report in what --compare shows."""
    return shown.split("\n\n")[1].splitlines()[-1].split()


WITH_ONEDSL = helpers.PROGRAMS / "torch_loop_with_onedsl.py"


@pytest.mark.parametrize("how", ["imported", "layers"])
def test_compare_of_a_script_that_uses_onedsl(how):
    """Regression: the runs with PyTorch ran onedsl, so the speed-up was 1.0."""
    options = ("--compare", "--seconds", "0.3", "--runs", "2")
    command = ("-W", "ignore", "-m", "onedsl.torch", *options, WITH_ONEDSL, how)
    child = helpers.run_python(*command, environment=TWO_KINDS)
    assert "onedsl" in by_layer(child.stdout)
    uses_layers = "layers of onedsl, which also run in the runs with PyTorch" in child.stdout
    assert uses_layers == (how == "layers")


def test_runs_of_a_compiled_script_that_uses_onedsl(tmp_path):
    """Without onedsl, as --compare does for PyTorch, and with it."""
    for kind, off in ("PyTorch", "1"), ("onedsl", "0"):
        options = ("--measure", kind, tmp_path / kind, "--seconds", "0.3")
        command = ("-W", "ignore", "-m", "onedsl.torch", *options, WITH_ONEDSL, "compiled")
        helpers.run_python(*command, environment={"ONEDSL_DISABLE": off})
        *_, is_by_onedsl, _ = json.loads((tmp_path / kind).read_text())
        assert is_by_onedsl == (kind == "onedsl")


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (("-m", "torch.distributed.run", LOOP), {}),
        (("torchrun", LOOP), {}),
        ((LOOP, "9"), {"WORLD_SIZE": "2"}),
    ],
)
def test_compare_of_several_processes(command, environment, tmp_path):
    """Regression: the error was that the script did not call step()."""
    (tmp_path / "torchrun").write_text("print(1)")
    options = ("-m", "onedsl.torch", "--compare", *command)
    child = helpers.run_python(*options, environment=environment, status=2, cwd=tmp_path)
    assert "--compare cannot time a script that runs in several processes" in child.stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([3.0, 2.2, 2.4], [2.0, 1.5, 2.1], "1.20 (1.05 to 2.00 by single runs)"),
        ([2.0, 2.0], [2.5, 2.5], "0.80 (0.80 to 0.80 by single runs)"),
        ([3.0, 2.0, 2.4], [2.0, 1.5, 2.1], "unclear, 0.95 to 2.00 by single runs"),
        ([2.0, 2.1], [1.0, 3.0], "unclear, 0.67 to 2.10 by single runs"),
    ],
)
def test_no_speed_up_is_made_of_noise(old, new, expected):
    """Regression: on a busy machine, any ratio of two medians was printed as the speed-up."""
    assert _speed_up(old, new, noisy=False).partition(":\n")[0] == expected
    shown = _speed_up(old, new, noisy=True)
    assert shown.startswith("unclear, ")
    assert "other programs used CPUs" in shown


@pytest.mark.parametrize(
    "command", ["train.py pool", "-m train pool", "train.py -- --compare -x", "folder -- --help"]
)
def test_a_script_runs_as_with_python(tmp_path, command):
    """Regression: workers and exit handlers did not find the script's classes in __main__."""
    (tmp_path / "folder").mkdir()
    for file in "train.py", "folder/__main__.py":
        shutil.copyfile(helpers.PROGRAMS / "torch_pickled.py", tmp_path / file)
    found = []
    for launcher in [], ["-m", "onedsl.torch", "--seconds", "2"]:
        child = helpers.run_python(*launcher, *command.split(), cwd=tmp_path, status=None)
        found.append((child.returncode, child.stdout, child.stderr))
    assert "pickled" in found[0][1]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ("def f(): raise ValueError(1)\nf()", 1),
        ("raise SystemExit(5)", 5),
        ("import sys; sys.exit('words')", 1),
        ("x = = 3", 1),
        ("raise KeyboardInterrupt", -2),
        ("import sys; sys.excepthook = lambda *e: print('own', e[0], e[2].tb_lineno)\n1/0", 1),
        ("try:\n  1/0\nexcept Exception as e:\n  raise KeyError(2) from e", 1),
        ("# coding: latin-1\nprint(ascii('\xe9'))", 0),
        pytest.param(
            *("import sys\nprint(sys.flags.safe_path, sys.path)", 0),
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="-P is of Python 3.11"),
        ),
    ],
)
def test_a_script_ends_as_with_python(tmp_path, content, status):
    script = tmp_path / "train.py"
    script.write_bytes(content.encode("latin-1"))
    options = ["-P"] if "safe_path" in content else []
    python, launched = (
        helpers.run_python(*options, *launcher, script, status=status)
        for launcher in ([], ["-m", "onedsl.torch"])
    )
    assert python.stdout == launched.stdout
    assert python.stderr == launched.stderr


def test_a_script_from_a_pipe():
    """Regression: it was no file. --compare reads a script several times."""
    script = "import sys; print(__file__, sys.argv[1:])"
    for launcher in [], ["-m", "onedsl.torch"]:
        child = helpers.run_python(*launcher, "/dev/stdin", "a", input=script)
        assert child.stdout == "/dev/stdin ['a']\n"
    command = ("-m", "onedsl.torch", "--compare", "/dev/stdin")
    child = helpers.run_python(*command, input=script, status=2)
    assert "script must be a file that can be read several times, got /dev/stdin" in child.stderr


def test_a_closed_pipe_ends_a_script_as_with_python(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("for i in range(10**5): print(i)")
    errors = []
    for launcher in ["", "-m onedsl.torch"]:
        line = f"{sys.executable} {launcher} {script} | head -1; echo ${{PIPESTATUS[0]}}"
        errors.append(helpers.run_program("bash", "-c", line, cwd=tmp_path))
    assert errors[0].stdout == errors[1].stdout
    assert errors[0].stderr == errors[1].stderr


def test_spawned_processes_run_without_onedsl():
    """Unless the script calls enable at its top level; forked ones inherit it."""
    script = helpers.PROGRAMS / "torch_spawned.py"
    for arguments, expected in ([], "True False"), (["enable"], "True True"):
        child = helpers.run_python("-W", "ignore", "-m", "onedsl.torch", script, *arguments)
        assert child.stdout.split() == expected.split()


def test_compare_of_unusual_scripts():
    """Modules that cannot be inspected, a loop that catches SystemExit, a name in Unicode."""
    script = helpers.PROGRAMS / "torch_unusual.py"
    options = ("--compare", "--seconds", "0.3", "--runs", "2")
    ascii_only = {"environment": TWO_KINDS | {"PYTHONIOENCODING": "ascii"}}
    child = helpers.run_python("-W", "error", "-m", "onedsl.torch", *options, script, **ascii_only)
    assert by_layer(child.stdout) == ["gr\\xf6sse", *["3", "onedsl", "eager"] * 2]


@pytest.mark.parametrize(
    "script", [("torch_loop_on_threads.py",), ("torch_loop.py", str(10**9), "10")], ids=str
)
def test_a_timed_run_ends(tmp_path, script):
    """Regression: SystemExit ended one of several threads, or no optimizer was timed any more."""
    file = tmp_path / "times"
    options = ("--measure", "PyTorch", file, "--seconds", "0.3")
    name, *arguments = script
    helpers.run_python("-m", "onedsl.torch", *options, helpers.PROGRAMS / name, *arguments)
    assert json.loads(file.read_text())[0] > 0


def test_compare_without_space_for_its_output():
    options = ("--compare", "--seconds", "0.1", "--runs", "2")
    with open("/dev/full", "w") as full:
        streams = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        command = ("-m", "onedsl.torch", *options, LOOP, "20")
        child = helpers.run_python(*command, status=1, **streams)
    assert re.fullmatch(r"python -m onedsl.torch: error: .*No space left on device\n", child.stderr)


def test_compare_ends_quietly_if_its_pipe_closes():
    with helpers.closed_pipe() as pipe:
        options = ("--compare", "--seconds", "0.1", "--runs", "2")
        child = helpers.run_python("-m", "onedsl.torch", *options, LOOP, "20", **pipe)
    assert child.stderr == ""


@pytest.mark.parametrize(
    ("steps", "message"),
    [(3, "must call step() of an optimizer"), (7, "the script failed with PyTorch: exit status 1")],
)
def test_scripts_that_cannot_be_compared(steps, message):
    command = ("-m", "onedsl.torch", "--compare", LOOP, str(steps))
    child = helpers.run_python(*command, status=1)
    assert message in child.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py"], "script must be a file, got nothing.py"),
        (["-m", "no_such_module"], "script must be a module that can be run, got no_such_module"),
        (["-m", "no_such.module"], "got no_such.module: No module named 'no_such'"),
        ([], "the following arguments are required: script"),
        (["--seconds"], "argument --seconds: expected one argument"),
        (["-m", "--runs"], "argument --runs: expected one argument"),
        (["--seconds", "0", __file__], "--seconds must be positive, got 0.0"),
        (["--runs", "1", __file__], "--runs must be at least 2, got 1"),
    ],
)
def test_invalid_arguments(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["onedsl.torch", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err


def test_torch_fx_traces_layers_as_single_nodes():
    layers = onedsl_torch.BatchNormAct2d(3, activation="relu"), onedsl_torch.SyncBatchNorm(3)
    graph = torch.fx.symbolic_trace(nn.Sequential(*layers)).graph
    assert [node.op for node in graph.nodes] == [
        "placeholder", "call_module", "call_module", "output"
    ]  # fmt: skip
