"""The layers under autograd: finite differences, second derivatives, unsupported transforms."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import EPSILON
from torch_helpers import dynamo, inputs, modes, onedsl_torch, random_layer, reference_layer, torch

from onedsl import testing


@modes
@pytest.mark.parametrize("which", ["input", "weight", "bias"])
@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
def test_gradcheck(train, which, memory):
    """Finite differences in float32, hence the wide tolerances."""
    layer = random_layer(2, eps=0.1).train(train)
    layer.momentum = 0.0  # no forward pass changes the layer
    src, _ = inputs(2, "f32", memory)
    values = {"input": src, "weight": layer.weight.detach(), "bias": layer.bias.detach()}

    def forward(value):
        given = {**values, which: value.float()}
        return onedsl_torch.batch_norm(
            given["input"],
            *(layer.running_mean, layer.running_var, given["weight"], given["bias"]),
            *(train, 0.0, layer.eps),
        ).double()

    value = values[which].double().requires_grad_()
    assert torch.autograd.gradcheck(forward, value, eps=1e-2, atol=5e-3, rtol=5e-3)


def test_gradients_accumulate():
    layer = random_layer(2)
    src, diff_dst = inputs(2, "f32")
    layer(src).backward(diff_dst)
    once = layer.weight.grad.clone()
    layer(src).backward(diff_dst)
    assert torch.allclose(layer.weight.grad, 2 * once)


def test_a_retained_graph_returns_the_same_gradient():
    layer = random_layer(2)
    src, diff_dst = inputs(2, "f32")
    src.requires_grad_()
    output = layer(src)
    first = torch.autograd.grad(output, src, diff_dst, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(output, src, diff_dst)[0])


def test_in_place_changes_between_the_passes_are_detected():
    layer = random_layer(2)
    src, diff_dst = inputs(2, "f32")
    output = layer(src)
    src.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward(diff_dst)


@modes
def test_second_derivatives(train):
    """Compare with PyTorch in float64."""
    layer = random_layer(2).train(train)
    twin = reference_layer(layer)
    src, diff_dst = inputs(2, "f32")
    results = []
    for model, dtype in ((layer, torch.float32), (twin, torch.float64)):
        x = src.to(dtype).requires_grad_()
        g = diff_dst.to(dtype).requires_grad_()
        ends = (x, model.weight, model.bias)
        first = torch.autograd.grad(model(x), ends, g, create_graph=True)
        generator = torch.Generator().manual_seed(1)
        scalar = sum(
            (t * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
            for t in first
        )
        results.append(torch.autograd.grad(scalar, (x, g, model.weight)))
    for ours, theirs in zip(*results, strict=True):
        assert float((ours.double() - theirs).norm() / theirs.norm()) < 3e-6


@modes
@pytest.mark.parametrize("with_gamma", [True, False])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_second_derivatives_by_finite_differences(train, with_gamma, data_format):
    """Check the formulas in float64; in training, mean and variance depend on src."""
    generator = torch.Generator().manual_seed(3)
    shape = (3, 4, 3, 2) if data_format == "NCX" else (3, 3, 2, 4)
    axes = [i for i, size in enumerate(shape) if size != 4]

    def random(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    src, diff_dst, gamma = random(*shape), random(*shape), random(4)
    fixed = src.mean(axes), src.var(axes, correction=0)
    u, a, b = random(*shape), random(4), random(4)

    def scalar(src, diff_dst, gamma):
        mean, variance = (src.mean(axes), src.var(axes, correction=0)) if train else fixed
        wanted = testing.batch_norm_backward(
            *(t.numpy() for t in (src, diff_dst, mean, variance)),
            gamma.numpy() if with_gamma else None,
            epsilon=EPSILON,
            data_format=data_format,
            statistics="batch" if train else "frozen",
        )
        pairs = zip(wanted, (u, a, b), strict=True)
        return sum(float((torch.from_numpy(np.asarray(g)) * t).sum()) for g, t in pairs)

    class Context:
        saved_tensors = (src, diff_dst, *fixed, gamma if with_gamma else None)
        epsilon, sums = EPSILON, True
        statistics = "batch" if train else "frozen"

    Context.data_format = data_format
    d_src, d_diff_dst, _, _, d_gamma, *_ = onedsl_torch._op._double_backward(Context, [u, a, b])
    for i, got in enumerate((d_src, d_diff_dst, d_gamma)):
        if got is None:
            continue
        direction = random(*got.shape)
        step = 1e-6
        ends = []
        for sign in 1, -1:
            moved = [src, diff_dst, gamma]
            moved[i] = moved[i] + sign * step * direction
            ends.append(scalar(*moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        assert float((got * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_transforms_of_torch_func_are_unsupported():
    layer = random_layer(2, track_running_stats=False)
    src, _ = inputs(2, "f32")
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: layer(x).square().sum())(src)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.vmap(layer)(torch.stack([src, src]))


@dynamo
def test_forward_mode_and_batched_gradients_are_unsupported():
    layer = random_layer(2)
    src, diff_dst = inputs(2, "f32")
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError):
        layer(torch.autograd.forward_ad.make_dual(src, diff_dst))
    src.requires_grad_()
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        torch.autograd.grad(
            layer(src), src, torch.stack([diff_dst, diff_dst]), is_grads_batched=True
        )
