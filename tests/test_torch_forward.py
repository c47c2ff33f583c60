"""The forward pass on PyTorch's tensors, and against PyTorch's own."""

from __future__ import annotations

import pytest
from helpers import EPSILON
from test_forward import Inputs

import onedsl
from onedsl import testing

torch = pytest.importorskip("torch")


def test_pytorchs_running_variance_by_the_recipe():
    inputs = Inputs((4, 16, (5, 5)), data_format="NCX")
    running = torch.from_numpy(inputs.mean.copy()), torch.from_numpy(inputs.variance.copy())
    torch.nn.functional.batch_norm(torch.from_numpy(inputs.src), *running, training=True)
    m, count = 0.1, inputs.src.size // 16
    forward = onedsl.BatchNormForwardTraining(1e-5, 1 - m, "NCX")(*inputs.forward)
    assert testing.relative_l2(forward.running_mean, running[0].numpy()) < 1e-6
    unbiased = forward.batch_variance * count / (count - 1)
    recipe = (1 - m) * inputs.variance + m * unbiased
    assert testing.relative_l2(recipe, running[1].numpy()) < 1e-6


def test_tensors_of_pytorch():
    inputs = Inputs((4, 16, (5, 5)), data_format="NCX")
    op = onedsl.BatchNormReLUForwardTraining(EPSILON, data_format="NCX")
    src = torch.from_numpy(inputs.src).to(memory_format=torch.channels_last)
    forward = op(src, *map(torch.from_numpy, inputs.forward[1:]))
    assert isinstance(forward.dst, torch.Tensor)
    assert forward.dst.is_contiguous(memory_format=torch.channels_last)
    expected = op(*inputs.forward)
    assert testing.relative_l2(forward.dst.numpy(), expected.dst) < 1e-6
