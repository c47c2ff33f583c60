"""The package onedsl.torch: PyTorch's version, names in saved models."""

import importlib
import pickle

import helpers
import pytest
from torch_helpers import nn, onedsl_torch, torch

from onedsl.torch.__main__ import _speed_up, main


def test_an_older_pytorch_is_an_import_error(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.2+cpu")
    with pytest.raises(ImportError, match=r"requires PyTorch 2\.11 or newer, got 2\.10\.2"):
        importlib.reload(onedsl_torch)


@pytest.mark.parametrize("name", ["BatchNormReLU1d", "BatchNormAddReLU3d", "SyncBatchNorm"])
def test_saved_layers_name_the_public_module(name):
    """Saved models remain loadable when the package's files are renamed."""
    layer = getattr(onedsl_torch, name)(3)
    saved = pickle.dumps(layer)
    assert b"onedsl.torch" in saved
    assert b"onedsl.torch._" not in saved
    assert type(pickle.loads(saved)) is type(layer)


TRAIN = """
import sys, torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
model(torch.randn(2, 3, 8, 8)).sum().backward()
import onedsl.torch
print(onedsl.torch.enabled(), *sys.argv[1:])
sys.exit(3)
"""


def test_scripts_run_with_onedsl(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    child = helpers.run_python("-m", "onedsl.torch", str(script), "--epochs", "3", status=3)
    assert child.stdout.splitlines()[-1] == "True --epochs 3"


LOOP = """
import sys, torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("not shown")
for _ in range(int(sys.argv[1])):
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
if sys.argv[1] == "7":
    raise ValueError("from the script")
"""


@pytest.mark.parametrize("steps", [10**9, 20], ids=["ended", "to the end"])
def test_compare(tmp_path, steps):
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    options = ("--compare", "--seconds", "0.5", "--runs", "2")
    child = helpers.run_python("-m", "onedsl.torch", *options, str(script), str(steps))
    lines = child.stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["PyTorch", "onedsl"] * 2
    assert all(0 < float(line.split()[1]) < 500 for line in lines[:4])
    assert lines[5].startswith("speed-up: ")
    assert lines[-1].split() == ["1", *["3", "onedsl", "eager"] * 2]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([3.0, 2.2, 2.4], [2.0, 1.5, 2.1], "speed-up: 1.20 (1.05 to 2.00 by single runs)"),
        ([2.0, 2.0], [2.5, 2.5], "speed-up: 0.80 (0.80 to 0.80 by single runs)"),
        ([3.0, 2.0, 2.4], [2.0, 1.5, 2.1], "speed-up: unclear, 0.95 to 2.00 by single runs"),
        ([2.0, 2.1], [1.0, 3.0], "speed-up: unclear, 0.67 to 2.10 by single runs"),
    ],
)
def test_no_speed_up_is_made_of_noise(old, new, expected):
    """Regression: on a busy machine, any ratio of two medians was printed as the speed-up."""
    assert _speed_up(old, new).partition(":\n")[0] == expected


@pytest.mark.parametrize(
    ("steps", "message"),
    [(3, "must call step() of an optimizer"), (7, "the script failed with PyTorch: exit status 1")],
)
def test_scripts_that_cannot_be_compared(tmp_path, steps, message):
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    command = ("-m", "onedsl.torch", "--compare", str(script), str(steps))
    child = helpers.run_python(*command, status=1)
    assert message in child.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py"], "script must be a file, got nothing.py"),
        (["--seconds", "0", __file__], "--seconds must be positive, got 0.0"),
        (["--runs", "1", __file__], "--runs must be at least 2, got 1"),
    ],
)
def test_invalid_arguments(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["onedsl.torch", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err


def test_modules_run_with_onedsl():
    child = helpers.run_python("-m", "onedsl.torch", "-m", "json.tool", "--help")
    assert "json" in child.stdout


def test_torch_fx_traces_layers_as_single_nodes():
    layers = onedsl_torch.BatchNormReLU2d(3), onedsl_torch.SyncBatchNorm(3)
    graph = torch.fx.symbolic_trace(nn.Sequential(*layers)).graph
    assert [node.op for node in graph.nodes] == [
        "placeholder", "call_module", "call_module", "output"
    ]  # fmt: skip
