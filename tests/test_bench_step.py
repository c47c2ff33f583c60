"""The benchmark of whole training steps: ``onedsl bench --step``."""

from __future__ import annotations

import importlib.util
import json

import pytest

from onedsl.__main__ import main
from onedsl.cli.bench import NETWORKS, parse_networks

# torch.compile uses what PyTorch and Python have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def steps():
    """Import the module, which needs PyTorch."""
    pytest.importorskip("torch", reason="--step trains with PyTorch, which is not installed")
    return pytest.importorskip("onedsl.bench.steps")


def tiny(classes):
    """Return a network that trains in a moment."""
    nn = steps().nn
    layers = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, classes))


def run(options, *more):
    return main(["bench", *options.split(), *more])


def test_step_writes_a_table_json_and_a_picture(tmp_path, monkeypatch, capsys):
    found = steps()
    monkeypatch.setitem(found.NETWORKS, "MobileNetV2", tiny)
    figures, picture = tmp_path / "steps.json", tmp_path / "steps.png"
    options = "--step mobilenetv2 --batch 2 --size 32 --rounds 2 --formats NXC"
    assert run(options, "--json", str(figures), "--plot", str(picture)) == 0
    shown = capsys.readouterr().out
    document = json.loads(figures.read_text())
    assert document["machine"]["onedsl"]
    assert "2 images of 32 x 32" in document["conditions"]
    lines = [line.split() for line in shown.splitlines() if line.startswith("MobileNetV2")]
    assert len(lines) == len(document["steps"]) == 2
    for line, step in zip(lines, document["steps"], strict=True):
        assert step["case"] == dict(zip(("network", "dtype", "memory_format"), line, strict=False))
        assert step["case"]["memory_format"] == "channels_last"
        assert list(step["seconds"]) == [variant.name for variant in found.VARIANTS]
        assert step["ratios"]["PyTorch"] == 1
        assert f"{step['ratios']['enable']:.2f}" == line[4]
        for variant, parts in step["shares"].items():
            if "compile" not in variant:  # inductor's functions compute several parts
                assert min(parts.values()) > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_variants_are_interleaved(monkeypatch):
    """Only the first variant runs without `enable`, and only the last two are compiled."""
    found = steps()
    import onedsl.torch

    prepared, forwards = [], []

    def watched(classes):
        model = tiny(classes)
        model[0].register_forward_hook(lambda *_: forwards.append(onedsl.torch.enabled()))
        return model

    def preparing(variant):
        def prepare(model):
            prepared.append(variant.name)
            return variant.prepare(model)

        return variant._replace(prepare=prepare)

    eager, compiled = found.VARIANTS[:3], found.VARIANTS[3:]
    assert eager[-1].prepare is onedsl.torch.fuse
    for variant in compiled:
        assert type(variant.prepare(tiny(10))).__name__ == "OptimizedModule"
    monkeypatch.setitem(found.NETWORKS, "watched", watched)
    monkeypatch.setattr(found, "VARIANTS", tuple(map(preparing, eager)))
    result = found.measure(found.Case("watched", "bf16", "contiguous"), 2, 32, 2)
    plain, enabled, fused = False, True, True
    warm_up = first = profile = [plain, enabled, fused]
    assert forwards == [*warm_up, *first, *[enabled, fused, plain], *profile]
    assert not onedsl.torch.enabled()
    names = [variant.name for variant in eager]
    assert prepared == list(result.seconds) == list(result.shares) == names


def test_the_command_has_the_names_of_all_networks():
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
    assert parse_networks(text) == chosen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--step vgg", "must be among resnet50, mobilenetv2, densenet121, got 'vgg'"),
        ("--step resnet50,", "got ''"),
        ("--step --batch 0", "'--batch': 0 is not in the range"),
        ("--step --size 31", "'--size': 31 is not in the range 32<=x<=4096"),
        ("--step --size 100000000", "'--size': 100000000 is not in the range"),
        ("--step --rounds many", "'many' is not a valid integer"),
        ("--step --dtypes f16", "--dtypes must be among f32, bf16 with --step, got 'f16'"),
        ("--step --seconds 2", "--seconds cannot be combined with --step"),
        ("--step --operations chain", "--operations cannot be combined with --step"),
        ("--step resnet50 small", "WHAT cannot be combined with --step"),
        ("small --batch 3", "--batch needs --step"),
        ("--rounds 3", "--rounds needs --step"),
        ("--step --plot steps.gif", "must end in .png, .pdf, .svg"),
    ],
)
def test_invalid_options_are_rejected(arguments, message, capsys):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.out == ""


def test_images_beyond_memory(capsys):
    steps()
    assert run("--step resnet50 --batch 65536 --size 4096 --rounds 1") == 2
    assert "not enough memory for 65536 images of 4096 x 4096" in capsys.readouterr().err


def test_one_value_per_channel(monkeypatch, capsys):
    found = steps()
    model = found.nn.Sequential(found.nn.AdaptiveAvgPool2d(1), found.nn.BatchNorm2d(3))
    monkeypatch.setitem(found.NETWORKS, "ResNet-50", lambda _: model)
    assert run("--step resnet50 --batch 1 --size 32 --rounds 1") == 2
    assert "Expected more than 1 value per channel" in capsys.readouterr().err


def test_without_pytorch(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    assert run("--step") == 2
    assert "--step needs PyTorch: pip install 'onedsl[torch]'" in capsys.readouterr().err
