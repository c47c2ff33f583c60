"""onedsl's operators: registration, memory layouts, errors, autograd."""

from __future__ import annotations

import itertools

import pytest
from torch_helpers import DTYPES, nn, torch

import onedsl.torch._operators  # noqa: F401 - it defines the operators

forward = torch.ops.onedsl.batch_norm_training.default
backward = torch.ops.onedsl.batch_norm_training_backward.default
SHAPES = {2: (6, 5), 3: (4, 5, 7), 4: (4, 5, 3, 2), 5: (3, 5, 2, 3, 2)}


def vectors(channels=5):
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(channels, generator=generator) + 0.5 for _ in range(4)]


def layouts(shape):
    """Yield a tensor in each order of its axes, and in layouts that are not dense."""
    generator = torch.Generator().manual_seed(len(shape))
    values = torch.randn(shape, generator=generator)
    for order in itertools.permutations(range(len(shape))):
        inverse = sorted(range(len(shape)), key=order.__getitem__)
        yield values.permute(order).contiguous().permute(inverse)
    yield values.repeat_interleave(2, -1)[..., ::2]  # gaps
    yield values[:1].expand(shape)  # overlap
    yield torch.cat([values.new_zeros(1), values.flatten()])[1:].view(shape)  # an offset


def calls(src, other=None):
    """Yield an operator and its arguments, for every kind of call.

    The tensor `other` is the residual and the gradient of the output.
    """
    weight, bias, mean, variance = vectors(src.shape[1])
    other = src.flip(0) if other is None else other
    for residual, relu in (None, False), (None, True), (other, True):
        yield forward, (src, weight, bias, residual, mean, variance, 0.1, 1e-5, relu, 1.5)
        inputs = (other, src, mean, variance.rsqrt(), weight, bias, residual, relu, 1.5)
        yield backward, inputs
    yield forward, (src, None, None, None, None, None, 0.1, 1e-5, False, None)
    yield backward, (other, src, mean, variance.rsqrt(), None, None, None, False, None)


def kind(tensor):
    return tensor.shape, tensor.dtype, tensor.stride(), tensor.device.type


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", SHAPES)
def test_real_and_fake_results_are_alike(rank, dtype):
    """Regression: the fake result had the strides of src where the real one was contiguous."""
    mode = torch._subclasses.FakeTensorMode()
    for src in layouts(SHAPES[rank]):
        for op, arguments in calls(src.to(DTYPES[dtype])):
            real = op(*arguments)
            with mode:
                fake = op(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a
                            for a in arguments))  # fmt: skip
            assert [kind(t) for t in real] == [
                (t.shape, t.dtype, t.stride(), "cpu") for t in fake
            ], (src.stride(), op)
            assert real[0].stride() == torch.empty_like(src).stride()


@pytest.mark.parametrize("rank", SHAPES)
def test_layouts_do_not_change_results(rank):
    expected = None
    for src in layouts(SHAPES[rank]):
        if src.stride(0) == 0:
            continue
        same = src.flip(0)
        for other in same, same.contiguous(), same.repeat_interleave(2, -1)[..., ::2]:
            results = [t.double() for op, arguments in calls(src, other) for t in op(*arguments)]
            expected = expected or results
            for a, b in zip(results, expected, strict=True):
                assert torch.allclose(a, b, atol=1e-6, rtol=1e-5), (src.stride(), other.stride())


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # opcheck's own, since 2.15
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_operators_are_registered_correctly(dtype):
    src = torch.randn(2, 4, 3, 5).to(DTYPES[dtype])
    for op, arguments in calls(src):
        torch.library.opcheck(op, arguments)
    weight, bias, mean, variance = (t.requires_grad_() for t in vectors(4))
    src, residual = src.requires_grad_(), torch.randn_like(src).requires_grad_()
    running = mean.detach(), variance.detach()
    torch.library.opcheck(forward, (src, weight, bias, residual, *running, 0.1, 1e-5, True, None))


def test_running_statistics_and_saved_values():
    src = torch.randn(8, 5, 6, 7)
    weight, bias, mean, variance = vectors()
    exact = [mean.double(), variance.double()]
    nn.functional.batch_norm(src.double(), *exact, training=True, momentum=0.25, eps=1e-3)
    given = mean.clone(), variance.clone()
    outputs = forward(src, weight, bias, None, mean, variance, 0.25, 1e-3, False, None)
    assert torch.equal(mean, given[0])
    assert torch.equal(variance, given[1])
    batch_variance = src.double().var((0, 2, 3), correction=0)
    wanted = src.double().mean((0, 2, 3)), (batch_variance + 1e-3).rsqrt(), *exact
    for ours, theirs in zip(outputs[1:], wanted, strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=1e-6, atol=1e-7)


def test_the_mask_from_src_is_that_of_dst():
    """Bitwise: the gradient computes dst from the saved values exactly as the forward pass."""
    src = torch.randn(64, 5, 30, 30)
    weight, _, mean, variance = vectors()
    bias = torch.zeros(5)  # dst near 0 is common
    for clip in None, 0.5:
        outputs = forward(src, weight, bias, None, mean, variance, 0.1, 1e-5, True, clip)
        dst, *saved = outputs[:3]
        common = torch.ones_like(src), src, *saved, weight, bias
        from_src = backward(*common, None, True, clip)
        from_dst = backward(*common, dst, True, clip)
        for a, b in zip(from_src[:3], from_dst[:3], strict=True):
            assert torch.equal(a, b)
        inside = dst > 0 if clip is None else (dst > 0) & (dst < clip)
        assert torch.equal(from_dst[3], inside.float())


def test_unsupported_arguments():
    """Every reason: test_torch_kernels.py."""
    src = torch.randn(2, 5, 3, 5)
    weight = torch.rand(5, dtype=torch.float64)
    for reason, arguments, eps in (
        ("parameters and statistics other than float32", (src, weight, None, None), 1e-5),
        ("inputs of this rank", (src[0, 0, 0], None, None, None), 1e-5),
        ("an eps that is not positive", (src, None, None, None), 0.0),
        ("tensors whose shape or dtype is not the input's", (src, None, None, src[:1]), 1e-5),
    ):
        message = f"onedsl's operators do not support .*{reason}"
        with pytest.raises((ValueError, RuntimeError), match=message):
            forward(*arguments, None, None, 0.1, eps, True, None)
    for relu, clip, reason in (
        (False, None, "an addition without a ReLU"),
        (True, float("nan"), "a clip"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=reason):
            forward(src, None, None, src, None, None, 0.1, 1e-5, relu, clip)
        with pytest.raises((ValueError, RuntimeError), match=reason):
            backward(src, src, *torch.ones(2, 5), None, None, src, relu, clip)


def test_errors_of_pytorch_are_its_own():
    """Regression: every one was "a function of PyTorch failed"."""
    if torch.__version__ < "2.12":
        pytest.skip("PyTorch 2.11 has no function that returns the message")
    huge = torch.empty(1, 1, 1).expand(1 << 40, 4, 1 << 10)
    with pytest.raises(RuntimeError, match="allocate"):
        forward(huge, None, None, None, None, None, 0.1, 1e-5, False, None)


def test_second_derivatives_without_a_weight():
    src = torch.randn(4, 5, 3, 3, requires_grad=True)
    found = []
    for x in src, src.double():
        y = forward(x, *[None] * 5, 0.1, 1e-5, True, None)[0] if x is src else (
            nn.functional.batch_norm(x, None, None, training=True).relu()
        )  # fmt: skip
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), src)[0].double())
    assert torch.allclose(*found, rtol=1e-3, atol=1e-3)
