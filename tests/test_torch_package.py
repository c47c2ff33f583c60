"""The package onedsl.torch: PyTorch's version, names in saved models, scripts that it runs."""

import copy
import importlib
import pickle
import shutil
import sys

import helpers
import pytest
from torch_helpers import nn, onedsl_torch, torch

from onedsl.torch.__main__ import main


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
        # -2, or 1 where the compiler, which onedsl.torch imports, imports tabulate at the end.
        ("import torch._dynamo\nraise KeyboardInterrupt", None),
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
    assert python.returncode == launched.returncode
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
