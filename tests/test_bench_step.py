"""onedsl bench --step: whole training steps, of tiny images."""

from __future__ import annotations

import importlib.util
import json

import pytest

from onedsl.__main__ import main
from onedsl.cli.bench import NETWORKS, networks


def steps():
    """Give the module, which needs PyTorch."""
    pytest.importorskip("torch", reason="--step trains with PyTorch, which is not installed")
    return pytest.importorskip("onedsl.bench.steps")


def run(words, *more):
    return main(["bench", *words.split(), *more])


def test_step_writes_what_it_shows(tmp_path, capsys):
    found = steps()
    figures, picture = tmp_path / "steps.json", tmp_path / "steps.png"
    tiny = "--step mobilenetv2 --batch 2 --size 32 --rounds 3 --formats NXC"
    assert run(tiny, "--json", str(figures), "--plot", str(picture)) == 0
    shown = capsys.readouterr().out
    document = json.loads(figures.read_text())
    assert document["machine"]["onedsl"]
    assert "2 images of 32 x 32" in document["conditions"]
    lines = [line.split() for line in shown.splitlines() if line.startswith("MobileNetV2")]
    assert len(lines) == len(document["steps"]) == 2
    for line, step in zip(lines, document["steps"], strict=True):
        assert step["case"] == dict(zip(("network", "dtype", "memory"), line, strict=False))
        assert step["case"]["memory"] == "channels_last"
        assert set(step["seconds"]) == set(found.WAYS)
        assert step["ratios"]["PyTorch"] == 1
        ratio = step["ratios"]["enable"]
        assert f"{ratio:.2f}" == line[4]
        assert 0.1 < ratio < 10
        for parts in step["shares"].values():
            assert min(parts.values()) > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_enable_and_fuse_are_what_is_measured(monkeypatch):
    """PyTorch's steps run its own kernels, and the others onedsl's."""
    found = steps()
    import onedsl.torch

    seen = []
    step = found._Trainer.step

    def noting(trainer):
        fused = any(
            "ReLU" in type(m).__name__ for m in trainer.model.modules() if hasattr(m, "eps")
        )
        seen.append((onedsl.torch.enabled(), fused))
        step(trainer)

    monkeypatch.setattr(found._Trainer, "step", noting)
    result = found.measure(found.Case("MobileNetV2", "bf16", "contiguous"), 2, 32, 2)
    plain, enabled, fused = (False, False), (True, False), (True, True)
    warm = timed = profiled = [plain, enabled, fused]
    assert seen == [*warm, *timed, *[enabled, fused, plain], *profiled]
    assert not onedsl.torch.enabled()
    assert result.seconds.keys() == result.shares.keys() == set(found.WAYS)


def test_the_command_line_knows_the_networks():
    """By name, as it can do without PyTorch."""
    steps()
    from onedsl.bench.networks import NETWORKS as ALL

    assert list(ALL) == list(NETWORKS)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("resnet50", ["ResNet-50"]),
        ("dense,ResNet-50", ["ResNet-50", "DenseNet-121"]),
        ("m,mobile", ["MobileNetV2"]),
    ],
)
def test_names_of_networks(text, chosen):
    assert networks(text) == chosen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--step vgg", "no network 'vgg'; there are resnet50, mobilenetv2, densenet121"),
        ("--step resnet50,", "no network ''"),
        ("--step --batch 0", "must be a whole number from 1 up, not '0'"),
        ("--step --size 31", "--size must be at least 32, not 31"),
        ("--step --rounds many", "must be a whole number from 1 up, not 'many'"),
        ("--step --dtypes f16", "--step has the types f32 and bf16"),
        ("--step --seconds 2", "--step does not go with --seconds"),
        ("--step --operations chain", "--step does not go with --operations"),
        ("--step resnet50 small", "--step does not go with WHAT"),
        ("small --batch 3", "--batch goes with --step"),
        ("--rounds 3", "--rounds goes with --step"),
        ("--step --plot steps.gif", "must end in .png, .pdf, .svg"),
    ],
)
def test_mistakes_are_explained(arguments, message, capsys):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.out == ""


def test_one_value_a_channel_is_pytorch_s_to_refuse(capsys):
    steps()
    assert run("--step resnet50 --batch 1 --size 32 --rounds 1") == 2
    assert "Expected more than 1 value per channel" in capsys.readouterr().err


def test_without_pytorch(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    assert run("--step") == 2
    assert "--step needs PyTorch: pip install 'onedsl[torch]'" in capsys.readouterr().err
