"""PyTorch as a second reference, which shares no code with onedsl or onedsl.testing."""

from __future__ import annotations

import helpers
import numpy as np
import pytest
from helpers import EPSILON, usable
from test_forward import Inputs

import onedsl
from onedsl import testing

torch = pytest.importorskip(
    "torch", reason="PyTorch is an optional second reference: pip install torch"
)

SHAPES = [(64, 17), (5, 16, 33), (4, 24, 9, 7), (2, 3, 5, 4, 6)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"rank_{len(s)}")


def pytorch_gradients(problem: testing.Problem, *, train: bool = True, dtype=torch.float64):
    """Compute the gradients of NCX tensors with PyTorch, from the given statistics."""
    src, diff_dst, mean, variance, gamma = (
        torch.from_numpy(np.array(a, np.float64)).to(dtype) for a in problem
    )
    inverse = 1 / torch.sqrt(variance + EPSILON)
    results = torch.ops.aten.native_batch_norm_backward(
        diff_dst, src, gamma, mean, variance, mean, inverse, train, EPSILON, [True] * 3
    )
    return onedsl.BatchNormGradients(*(r.double().numpy() for r in results))


@shapes
@usable()
def test_operator(shape, dtype, backend):
    problem = helpers.case(shape, dtype, "f32", "NCX").problem
    got = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*problem, backend=backend)
    testing.assert_close(got, pytorch_gradients(problem))


@shapes
@pytest.mark.parametrize("backend", helpers.BACKENDS)
def test_operator_on_channels_last_memory(shape, backend):
    """Views of tensors that PyTorch made channels_last are not copied."""
    problem = helpers.case(shape, "f32", "f32", "NCX").problem
    if len(shape) in (4, 5):
        order = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        src, diff_dst = (
            torch.from_numpy(a.copy()).to(memory_format=order).numpy() for a in problem[:2]
        )
    else:
        src, diff_dst = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in problem[:2])
        src, diff_dst = np.moveaxis(src, -1, 1), np.moveaxis(diff_dst, -1, 1)
    got = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(
        src, diff_dst, *problem[2:], backend=backend
    )
    assert got.diff_src.strides == src.strides
    testing.assert_close(got, pytorch_gradients(problem))


@shapes
@pytest.mark.parametrize("backend", helpers.BACKENDS)
def test_nxc(shape, backend):
    problem = helpers.case(shape, "f32", "f32", "NCX").problem
    src, diff_dst = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in problem[:2])
    got = onedsl.BatchNormTrainingBackward(EPSILON, "NXC")(
        src, diff_dst, *problem[2:], backend=backend
    )
    wanted = pytorch_gradients(problem)
    testing.assert_close(got, wanted._replace(diff_src=np.moveaxis(wanted.diff_src, 1, -1)))


@shapes
def test_pytorch_in_float32(shape):
    problem = helpers.case(shape, "f32", "f32", "NCX").problem
    got = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*problem)
    testing.assert_close(got, pytorch_gradients(problem, dtype=torch.float32), factor=4)


@shapes
@pytest.mark.parametrize("statistics", ["batch", "frozen"])
def test_reference(shape, statistics):
    """PyTorch's training mode has statistics="batch", its evaluation mode "frozen"."""
    problem = helpers.case(shape, "f32", "f32", "NCX").problem
    got = testing.batch_norm_backward(
        *problem, epsilon=EPSILON, data_format="NCX", statistics=statistics
    )
    wanted = pytorch_gradients(problem, train=statistics == "batch")
    for a, b in zip(got, wanted, strict=True):
        assert testing.relative_l2(a, b) < 1e-12


@shapes
def test_autograd_of_the_forward_pass(shape):
    """The gradient of PyTorch's forward pass, batch statistics included."""
    problem = helpers.case(shape, "f32", "f32", "NCX").problem
    src = torch.from_numpy(problem.src.astype("f8")).requires_grad_()
    gamma = torch.from_numpy(problem.gamma.astype("f8")).requires_grad_()
    beta = torch.zeros_like(gamma).requires_grad_()
    y = torch.nn.functional.batch_norm(src, None, None, gamma, beta, training=True, eps=EPSILON)
    y.backward(torch.from_numpy(problem.diff_dst.astype("f8")))
    got = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*problem)
    wanted = onedsl.BatchNormGradients(*(t.grad.numpy() for t in (src, gamma, beta)))
    # onedsl gets mean and variance rounded to f32.
    testing.assert_close(got, wanted, factor=4)


def test_forward_reference():
    problem = helpers.case(SHAPES[2], "f32", "f32", "NCX").problem
    x, gamma, beta = (np.asarray(a, np.float64) for a in (problem.src, problem.gamma, problem.mean))
    wanted = torch.nn.functional.batch_norm(
        *(torch.from_numpy(a) if a is not None else None for a in (x, None, None, gamma, beta)),
        training=True,
        eps=EPSILON,
    )
    got = testing.batch_norm(x, gamma, beta, epsilon=EPSILON, data_format="NCX")
    assert testing.relative_l2(got, wanted.numpy()) < 1e-14


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
