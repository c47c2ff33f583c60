"""fuse and report: what is found in a model, what is left, and why."""

from __future__ import annotations

import copy
import io
import logging

import pytest
from torch_helpers import nn, onedsl_torch, torch

from onedsl.bench import networks  # it needs PyTorch, as torch_helpers does


class Block(nn.Module):
    """A residual block as torchvision has it; tests give it another way through."""

    def __init__(self, way=None):
        super().__init__()
        self.conv, self.first, self.second = (
            nn.Conv2d(4, 4, 1),
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4),
        )
        self.relu, self.identity = nn.ReLU(inplace=True), nn.Identity()
        self.tail = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.way = way

    def forward(self, x):
        return self.way(self, x)


def residual(m, x):
    y = m.relu(m.first(m.conv(x)))
    y = m.second(y)
    y += x
    return m.relu(y)


WAYS = {
    # What a forward method does, and the classes of first, second and the tail's layer after fuse.
    "residual": (residual, "BatchNormReLU2d BatchNormAddReLU2d BatchNorm2d"),
    "layer": (lambda m, x: m.relu(m.first(x)), "BatchNormReLU2d BatchNorm2d BatchNorm2d"),
    "function": (lambda m, x: torch.relu(m.first(x)), "BatchNormReLU2d BatchNorm2d BatchNorm2d"),
    "relu6": (
        lambda m, x: nn.functional.relu6(m.first(x)),
        "BatchNormReLU2d BatchNorm2d BatchNorm2d",
    ),
    "in place": (
        lambda m, x: nn.functional.relu(m.first(x), inplace=True),
        "BatchNormReLU2d BatchNorm2d BatchNorm2d",
    ),
    "method": (lambda m, x: m.first(x).relu_(), "BatchNormReLU2d BatchNorm2d BatchNorm2d"),
    "identity between": (
        lambda m, x: m.relu(m.identity(m.first(x))),
        "BatchNormReLU2d BatchNorm2d BatchNorm2d",
    ),
    "behind a Sequential": (
        lambda m, x: m.relu(m.tail(x)),
        "BatchNorm2d BatchNorm2d BatchNormReLU2d",
    ),
    "two sums": (
        lambda m, x: torch.relu(torch.add(m.first(x), m.second(x))),
        "BatchNormAddReLU2d BatchNorm2d BatchNorm2d",
    ),
    "sum on the right": (
        lambda m, x: m.relu(x + m.first(x)),
        "BatchNormAddReLU2d BatchNorm2d BatchNorm2d",
    ),
    "sum with itself": (lambda m, x: m.relu((y := m.first(x)) + y), "BatchNorm2d " * 3),
    "sum with a number": (lambda m, x: m.relu(m.first(x) + 1), "BatchNorm2d " * 3),
    "sum times a number": (
        lambda m, x: m.relu(torch.add(m.first(x), x, alpha=2)),
        "BatchNorm2d " * 3,
    ),
    "overwritten": (lambda m, x: m.relu(x.clone().add_(m.first(x))), "BatchNorm2d " * 3),
    "two users": (lambda m, x: m.relu(y := m.first(x)) + y, "BatchNorm2d " * 3),
    "two calls": (lambda m, x: m.relu(m.first(x)) + m.relu(m.first(2 * x)), "BatchNorm2d " * 3),
    "in training only": (
        lambda m, x: m.relu(m.first(x)) if m.training else m.first(x),
        "BatchNorm2d " * 3,
    ),
    "by values": (lambda m, x: m.relu(m.first(x)) if x.sum() > 0 else x, "BatchNorm2d " * 3),
}


def gradients(model, x):
    model.zero_grad()
    output = model(x)
    output.square().sum().backward()
    return [output, *(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]


def check_same(one, other, x):
    """In training, and in evaluation after it."""
    wanted, got = gradients(one, x), gradients(other, x)
    scale = max(float(t.detach().abs().max()) for t in wanted)
    for a, b in zip(wanted, got, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6 * scale)
    a, b = (copy.deepcopy(m).eval()(x) for m in (one, other))
    assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture
def x():
    return torch.randn(4, 4, 5, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", WAYS)
def test_ways_through_a_block(name, x):
    way, classes = WAYS[name]
    torch.manual_seed(0)
    model = Block(way)
    fused = copy.deepcopy(model)
    keys = list(fused.state_dict())
    assert onedsl_torch.fuse(fused) is fused
    assert isinstance(fused, Block)
    layers = fused.first, fused.second, fused.tail[1]
    assert [type(layer).__name__ for layer in layers] == classes.split()
    assert list(fused.state_dict()) == keys
    assert [n for n, _ in fused.named_parameters()] == [n for n, _ in model.named_parameters()]
    check_same(model, fused, x)
    onedsl_torch.fuse(fused)  # again
    check_same(model, fused, x)


class Optional(Block):
    def forward(self, x, mask=None):
        return self.relu(self.first(x)) if mask is None else x * mask


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
        self.b = nn.Sequential(self.a[0], nn.Identity())

    def forward(self, x):
        return self.a(x) + self.b(x)


def hooked():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    model[0].register_forward_hook(lambda *_: None)
    return model


def hooked_relu():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    model[1].register_forward_hook(lambda *_: None)
    return model


def parametrized():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Identity())
    return model


class Mine(nn.BatchNorm2d):
    pass


LEFT = {
    "optional": (Optional, "Optional has optional arguments"),
    "shared": (Shared, "the model has it in several places"),
    "hooked": (hooked, "it has hooks"),
    "hooked ReLU": (hooked_relu, "no ReLU is seen behind it"),
    "parametrized": (parametrized, "it is parametrized"),
    "lazy": (
        lambda: nn.Sequential(nn.LazyBatchNorm2d(), nn.ReLU()),
        "it is lazy, and has seen no input yet",
    ),
    "subclass": (
        lambda: nn.Sequential(Mine(4), nn.ReLU()),
        "Mine is another class than PyTorch's BatchNorm1d to 3d",
    ),
    "last": (lambda: nn.Sequential(nn.BatchNorm2d(4)), "no ReLU is seen behind it"),
    "by values": (lambda: Block(WAYS["by values"][0]), "torch.fx cannot trace Block: "),
    "in training only": (
        lambda: Block(WAYS["in training only"][0]),
        "Block goes another way in evaluation",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_named(name, x, caplog):
    make, why = LEFT[name]
    model = make()
    with caplog.at_level(logging.INFO, "onedsl.torch"):
        onedsl_torch.fuse(model)
    first = onedsl_torch.report(model)[0]
    assert first.state == "PyTorch's"
    assert first.fuse.startswith(why)
    assert f"left {first.name} ({first.kind}): {why}" in caplog.text
    assert "fused 0 batch-norm layers" in caplog.text
    model(x)


def test_report(x):
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4), Mine(4))
    onedsl_torch.convert(onedsl_torch.fuse(model))
    other = "Mine is another class than PyTorch's BatchNorm1d to 3d"
    assert onedsl_torch.report(model) == [
        ("0", "BatchNormReLU2d", "fused", "it is fused", ""),
        ("2", "BatchNorm2d", "converted", "", "no ReLU is seen behind it"),
        ("3", "Mine", "PyTorch's", other, other),
    ]
    model(x)


def test_converted_layers_are_fused_too(x):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU6())
    fused = onedsl_torch.fuse(onedsl_torch.convert(copy.deepcopy(model)))
    assert type(fused[1]) is onedsl_torch.BatchNormReLU2d
    assert fused[1].clip == 6
    check_same(model, fused, x)


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6, nn.SiLU])
def test_timm_s_layers(x, act):
    class BatchNormAct2d(nn.BatchNorm2d):
        def __init__(self, channels):
            super().__init__(channels)
            self.drop, self.act = nn.Identity(), act()

        def forward(self, x):
            return self.act(self.drop(super().forward(x)))

    BatchNormAct2d.__module__ = "timm.layers.norm_act"
    model = nn.Sequential(nn.Conv2d(4, 4, 1), BatchNormAct2d(4))
    fused = onedsl_torch.fuse(copy.deepcopy(model))
    name = "BatchNormAct2d" if act is nn.SiLU else "BatchNormReLU2d"
    assert type(fused[1]).__name__ == name
    check_same(model, fused, x)


def test_fused_models_are_saved_and_copied(x):
    model = onedsl_torch.fuse(nn.Sequential(nn.Conv2d(4, 4, 1), Saved(), Saved()))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        assert [r.state for r in onedsl_torch.report(other)][:2] == ["fused", "fused"]
        assert type(other[1]).__name__ == "Saved"
        assert isinstance(other[1], Saved)
        check_same(copy.deepcopy(model), other, x)


class Saved(Block):
    def forward(self, x):
        return residual(self, x)


def test_a_state_dict_fits_both(x):
    torch.manual_seed(0)
    plain, fused = Saved(), onedsl_torch.fuse(Saved())
    fused.load_state_dict(plain.state_dict())
    check_same(plain, fused, x)
    plain.load_state_dict(fused.state_dict())
    check_same(plain, fused, x)


def test_gradients_under_autocast_and_channels_last(x):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(4, 4, 1), Saved()).to(memory_format=torch.channels_last)
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    x = x.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [m(x) for m in (plain, fused)]
    for output in outputs:
        output.float().square().mean().backward()
    assert outputs[1].dtype == torch.bfloat16
    assert outputs[1].is_contiguous(memory_format=torch.channels_last)
    grads = [
        torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None])
        for m in (plain, fused)
    ]
    assert float((grads[0] - grads[1]).norm()) < 0.02 * float(grads[0].norm())


@pytest.mark.parametrize(
    ("name", "fused"), [("resnet50", 49), ("mobilenet_v2", 35), ("densenet121", 121)]
)
def test_networks(name, fused):
    torch.manual_seed(0)
    plain = getattr(networks, name)(10)
    ours = onedsl_torch.fuse(copy.deepcopy(plain))
    assert sum(layer.state == "fused" for layer in onedsl_torch.report(ours)) == fused
    assert list(ours.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        exact = copy.deepcopy(plain).double()(x.double())
        errors = [float((m(x) - exact).norm() / exact.norm()) for m in (plain, ours)]
    assert errors[1] < 3 * errors[0] + 1e-6
