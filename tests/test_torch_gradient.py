"""onedsl.torch.batch_norm_backward, the custom op."""

from __future__ import annotations

import itertools

import helpers
import pytest
from helpers import EPSILON
from torch_helpers import SHAPES, dynamo, modes, nn, onedsl_torch, tensor, tensors, torch

import onedsl
from onedsl import testing
from onedsl.torch import _gradient


# opcheck of PyTorch 2.15 reads .grad of tensors that are not leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@modes
@pytest.mark.parametrize("outputs", ["all", "diff_src"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("with_gamma", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_opcheck(train, outputs, data_format, requires_grad, with_gamma, strided):
    src, diff_dst, mean, variance, gamma = tensors((4, 5, 6, 5), "f32")
    if strided:
        src = src.repeat_interleave(2, -1)[..., ::2]
    for t in src, diff_dst, gamma:
        t.requires_grad_(requires_grad)
    torch.library.opcheck(
        torch.ops.onedsl.batch_norm_backward.default,
        (
            *(src, diff_dst, mean, variance, gamma if with_gamma else None),
            *(EPSILON, data_format, "batch" if train else "frozen", outputs == "all"),
        ),
    )


def test_the_gradient_of_an_expanded_tensor_has_pytorchs_strides():
    src = torch.randn(1, 3, 5, 5).expand(4, 3, 5, 5)
    diff_src, *_ = torch.ops.onedsl.batch_norm_backward(
        src, torch.randn(4, 3, 5, 5), *torch.ones(2, 3), None, EPSILON, "NCX", "batch", False
    )
    assert diff_src.stride() == torch.empty_like(src).stride()


@helpers.types
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_against_the_reference(dtype, stats, data_format):
    problem = helpers.case((4, 6, 5, 6), dtype, stats, data_format).problem
    for statistics in "batch", "frozen":
        got = onedsl_torch.batch_norm_backward(
            *map(tensor, problem),
            epsilon=EPSILON,
            data_format=data_format,
            statistics=statistics,
        )
        expected = testing.batch_norm_backward(
            *problem, epsilon=EPSILON, data_format=data_format, statistics=statistics
        )
        testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"data_format": "NHWC"}, ValueError, "data_format"),
        ({"statistics": "running"}, ValueError, "statistics must be"),
        ({"output_mask": (True, True)}, ValueError, r"output_mask must be .*, got \(True, True\)"),
        ({"output_mask": True}, ValueError, "output_mask must be three bools, got True"),
        ({"output_mask": "all"}, ValueError, "output_mask must be three bools, got 'all'"),
    ],
)
def test_invalid_attributes(change, error, message):
    with pytest.raises(error, match=message):
        onedsl_torch.batch_norm_backward(
            *tensors(SHAPES[2], "f32"), **{"epsilon": EPSILON, **change}
        )


def test_invalid_tensors():
    src, diff_dst, mean, variance, gamma = tensors(SHAPES[2], "f32")
    call = onedsl_torch.batch_norm_backward
    with pytest.raises(ValueError, match="mean must have shape"):
        call(src, diff_dst, mean[:2], variance, gamma, epsilon=EPSILON)
    with pytest.raises(TypeError, match="diff_dst must be f32 like src"):
        call(src, diff_dst.bfloat16(), mean, variance, gamma, epsilon=EPSILON)
    with pytest.raises(TypeError, match="float64"):
        call(src.double(), diff_dst, mean, variance, gamma, epsilon=EPSILON)
    cut = torch.cat([src.new_zeros(9), src.flatten()])[9:].view(src.shape)
    call(cut, diff_dst, mean, variance, gamma, epsilon=EPSILON)
    cut.untyped_storage().resize_(0)  # regression: the process ended
    with pytest.raises(ValueError, match=r"^src must have a storage of \d+ bytes or more, got 0"):
        call(cut, diff_dst, mean, variance, gamma, epsilon=EPSILON)
    with pytest.raises(NotImplementedError, match="onedsl::batch_norm_backward"):
        call(*(t.to_sparse() for t in (src, diff_dst, mean, variance)), epsilon=EPSILON)


def test_tensors_on_different_devices():
    src, diff_dst, *rest = tensors(SHAPES[2], "f32")
    with pytest.raises(RuntimeError, match="src's device"):
        onedsl_torch.batch_norm_backward(src, diff_dst.to("meta"), *rest, epsilon=EPSILON)
    meta = [t.to("meta") for t in (src, diff_dst, *rest)]
    assert onedsl_torch.batch_norm_backward(*meta, epsilon=EPSILON).diff_src.is_meta
    with pytest.raises(RuntimeError, match="one value per channel"):
        onedsl_torch.batch_norm_backward(*meta[:2], meta[2][:1], *meta[3:], epsilon=EPSILON)


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)), ids=str)
def test_output_mask_is_that_of_pytorch(mask):
    """Also gamma affects diff_src as the only output."""
    src, diff_dst, mean, variance, gamma = tensors(SHAPES[2], "f32")
    inputs = diff_dst, src, gamma, None, None, mean, (variance + EPSILON).rsqrt()
    wanted = torch.ops.aten.native_batch_norm_backward(*inputs, True, EPSILON, mask)
    call = onedsl_torch.batch_norm_backward
    src.requires_grad_()
    got = call(src, diff_dst, mean, variance, gamma, epsilon=EPSILON, output_mask=mask)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    if any(mask):  # the second derivatives with respect to the returned gradients
        (second,) = torch.autograd.grad([t.sum() for t in got if t is not None], src)
        every = call(src, diff_dst, mean, variance, gamma, epsilon=EPSILON)
        kept = [t.sum() for t, keep in zip(every, mask, strict=True) if keep]
        assert torch.equal(second, torch.autograd.grad(kept, src)[0])


@modes
@pytest.mark.parametrize("with_gamma", [True, False])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_second_derivatives(train, with_gamma, data_format):
    """The formulas in float64 against autograd; in training, mean and variance depend on src."""
    generator = torch.Generator().manual_seed(3)
    shape = (3, 4, 3, 2) if data_format == "NCX" else (3, 3, 2, 4)
    axis = onedsl.DataFormat(data_format).channel_axis

    def random(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    src, diff_dst = random(*shape).requires_grad_(), random(*shape).requires_grad_()
    gamma, beta = random(4).requires_grad_(), torch.zeros(4).double().requires_grad_()
    axes = onedsl.DataFormat(data_format).summed_axes(4)
    mean, variance = (a.detach() for a in (src.mean(axes), src.var(axes, correction=0)))
    cotangents = [random(*shape), random(4), random(4)]

    scale = gamma if with_gamma else torch.ones_like(gamma).requires_grad_()
    running = (None, None) if train else (mean, variance)
    y = nn.functional.batch_norm(
        src.movedim(axis, 1), *running, scale, beta, train, eps=EPSILON
    ).movedim(1, axis)
    first = torch.autograd.grad(y, (src, scale, beta), diff_dst, create_graph=True)
    wanted = torch.autograd.grad(first, (src, diff_dst, scale), cotangents)

    class Context:
        saved_tensors = (src, diff_dst, mean, variance, gamma if with_gamma else None)
        epsilon, sums = EPSILON, True
        statistics = "batch" if train else "frozen"

    Context.data_format = data_format
    got = _gradient._double_backward(Context, cotangents)
    assert (got[4] is None) == (not with_gamma)
    for ours, exact in zip((*got[:2], got[4]), wanted, strict=True):
        assert ours is None or torch.allclose(ours, exact, rtol=1e-9, atol=1e-9)


@dynamo
def test_the_function_compiles_to_one_graph():
    problem = tensors((4, 5, 6, 7), "f32")

    def gradients(*tensors):
        return onedsl_torch.batch_norm_backward(*tensors, epsilon=1e-5)

    compiled = torch.compile(gradients, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*problem), gradients(*problem), strict=True):
        assert torch.equal(a, b)
