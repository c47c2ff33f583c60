"""onedsl.testing against PyTorch, which shares no code with it."""

from __future__ import annotations

import helpers
import numpy as np
import pytest
from helpers import EPSILON
from test_forward import Inputs

import onedsl
from onedsl import testing

torch = pytest.importorskip("torch", reason="PyTorch is an optional second reference")


@pytest.mark.parametrize("statistics", ["batch", "frozen"])
@pytest.mark.parametrize("shape", [(64, 17), (5, 16, 33), (4, 24, 9, 7), (2, 3, 5, 4, 6)], ids=str)
def test_forward_pass_and_its_gradients(shape, statistics):
    """Autograd differentiates the forward pass, batch statistics included, in float64."""
    problem = helpers.case(shape, "f32", "f32", "NCX").problem
    src, diff_dst, mean, variance, gamma = (np.asarray(a, np.float64) for a in problem)
    beta = mean
    options = {"epsilon": EPSILON, "data_format": "NCX"}
    if statistics == "batch":
        axes = onedsl.DataFormat.NCX.summed_axes(src.ndim)
        given, batch = {}, (src.mean(axes), src.var(axes))
    else:
        given, batch = {"mean": mean, "variance": variance}, (mean, variance)

    x, weight, bias = (torch.from_numpy(a.copy()).requires_grad_() for a in (src, gamma, beta))
    running = map(torch.from_numpy, given.values()) if given else (None, None)
    y = torch.nn.functional.batch_norm(x, *running, weight, bias, training=not given, eps=EPSILON)
    y.backward(torch.from_numpy(diff_dst))
    dst = testing.batch_norm(src, gamma, beta, **given, **options)
    assert testing.relative_l2(dst, y.detach().numpy()) < 1e-14
    got = testing.batch_norm_backward(
        src, diff_dst, *batch, gamma, statistics=statistics, **options
    )
    for ours, theirs in zip(got, (x, weight, bias), strict=True):
        assert testing.relative_l2(ours, theirs.grad.numpy()) < 1e-12


def test_running_variance_by_the_documented_formula():
    """PyTorch's running variance from the results of oneDNN's op."""
    inputs = Inputs((4, 16, (5, 5)), data_format="NCX")
    running = torch.from_numpy(inputs.mean.copy()), torch.from_numpy(inputs.variance.copy())
    torch.nn.functional.batch_norm(torch.from_numpy(inputs.src), *running, training=True)
    m, count = 0.1, inputs.src.size // 16
    forward = onedsl.BatchNormForwardTraining(1e-5, 1 - m, "NCX")(*inputs.forward)
    assert testing.relative_l2(forward.running_mean, running[0].numpy()) < 1e-6
    unbiased = forward.batch_variance * count / (count - 1)
    running_variance = (1 - m) * inputs.variance + m * unbiased
    assert testing.relative_l2(running_variance, running[1].numpy()) < 1e-6
