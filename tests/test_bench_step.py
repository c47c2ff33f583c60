"""The benchmark of whole training steps: ``onedsl bench --step``."""

import importlib.util
import json

import helpers
import pytest

from onedsl.__main__ import main
from onedsl.bench import steps


def run(options, *more):
    return main(["bench", *options.split(), *more])


def test_step_writes_a_table_and_json(tmp_path, monkeypatch, capsys):
    """Each way runs in its own processes, in another order in each round."""
    order = []

    def process(case, way, batch, size):
        assert (case, batch, size) == (("mobilenetv2", "f32", "NXC"), 2, 32)
        order.append(way)
        # Round 0 takes 8 s for eager, 4 s for enable, ..., and round 1 ten times as long.
        slow = 10 if len(order) > len(steps.WAYS) else 1
        return slow * 8.0 / 2 ** steps.WAYS.index(way), 1000.0 * slow

    monkeypatch.setattr(steps, "_run", process)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # also without PyTorch
    figures = tmp_path / "steps.json"
    options = "--step mobilenetv2 --batch 2 --size 32 --processes 2 --format NXC"
    assert run(f"{options} --dtype f32", "--json", str(figures)) == 0
    eager, enable, compiled, compiled_onedsl = steps.WAYS
    assert order == [*steps.WAYS, enable, compiled, compiled_onedsl, eager]
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if "5,500" in line]
    assert "mobilenetv2 f32 NXC" in rows[0]
    names = ["eager", "enable", "compile", 'compile, backend="onedsl"']
    over_eager, over_compile = ("1.00", "2.00", "4.00", "8.00"), ("0.25", "0.50", "1.00", "2.00")
    for row, name, *speedups in zip(rows, names, over_eager, over_compile, strict=True):
        assert name in row
        assert row.split()[-3:] == [*speedups, "5,500"]
    document = json.loads(figures.read_text())
    assert document["machine"]["onedsl"]
    assert "2 images of 32 x 32, 2 processes of 5 steps" in document["conditions"]
    (result,) = document["steps"]
    assert result["seconds"][eager] == 44.0
    assert result["page_faults"] == dict.fromkeys(steps.WAYS, 5500.0)


# Of the networks, these two are the fastest ones. Few CPUs have fast instructions for bf16.
@pytest.mark.parametrize("way", steps.WAYS[:2])
def test_a_process_trains(way):
    pytest.importorskip("torch", reason="--step trains with PyTorch, which is not installed")
    seconds, page_faults = steps._run(("unet", "f32", "NXC"), way, 2, 32)
    assert 0 < seconds < 100
    assert page_faults >= 0


def test_training_with_onedsl():
    torch = pytest.importorskip("torch", reason="--step trains with PyTorch")
    import onedsl.torch

    try:
        with helpers.operations_of_runs("Training") as runs:
            seconds, _ = steps.train("regnet_y_400mf", "bf16", "NXC", "enable", 2, 32)
    finally:
        onedsl.torch.disable()
    assert 0 < seconds < 100
    model = onedsl.bench.networks.regnet_y_400mf(10)
    norms = sum(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())
    assert len(runs) == 2 * norms * (3 + steps.ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("way", steps.WAYS[2:])
def test_a_compiled_process_trains(way):
    pytest.importorskip("torch", reason="--step trains with PyTorch, which is not installed")
    assert steps._run(("resnet18", "f32", "NCX"), way, 2, 32)[0] > 0


def test_networks_are_the_published_ones():
    """They have as many parameters, and halve the images as often."""
    torch = pytest.importorskip("torch", reason="--step trains with PyTorch")
    from onedsl.bench import networks

    parameters = {  # torchvision's, and of a U-Net of width 32 for one class: Buda et al.
        "mobilenetv2": 3_504_872,
        "resnet50": 25_557_032,
        "resnet18": 11_689_512,
        "densenet121": 7_978_856,
        "mobilenetv3": 5_483_032,
        "efficientnet_b0": 5_288_548,
        "regnet_y_400mf": 4_344_144,
        "unet": 7_763_041,
    }
    assert tuple(parameters) == steps.NETWORKS
    for name, expected in parameters.items():
        sizes = []
        with torch.device("meta"):
            model = getattr(networks, name)(1 if name == "unet" else 1000)
            for module in model.modules():
                module.register_forward_hook(lambda *call, sizes=sizes: sizes.append(call[2].shape))
            scores = model(torch.empty(2, 3, 64, 64))
        assert sum(p.numel() for p in model.parameters()) == expected
        assert scores.shape == ((2, 1, 64, 64) if name == "unet" else (2, 1000))
        least = min(size[2:] for size in sizes if len(size) == 4 and size[2] > 1)
        assert least == ((4, 4) if name == "unet" else (2, 2))


@pytest.mark.parametrize("name", steps.NETWORKS)
def test_every_part_of_a_network_has_a_gradient(name):
    torch = pytest.importorskip("torch", reason="--step trains with PyTorch")
    from onedsl.bench import networks

    torch.manual_seed(0)
    model = getattr(networks, name)(10)
    scores = model(torch.randn(3, 3, 32, 32))
    torch.nn.functional.cross_entropy(scores, scores.argmin(1)).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--batch 4096 --size 4096", "can't allocate memory"),
        ("--batch 1 --size 32", "Expected more than 1 value per channel"),
    ],
)
def test_errors_of_a_process_are_shown(options, message, capsys):
    pytest.importorskip("torch", reason="--step trains with PyTorch, which is not installed")
    assert run(f"--step resnet50 --processes 1 --format NCX {options}") == 2
    assert message in " ".join(capsys.readouterr().err.split())
