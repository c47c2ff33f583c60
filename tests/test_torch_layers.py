"""The layers with PyTorch's forward pass and onedsl's gradient, against PyTorch's layers."""

from __future__ import annotations

import copy

import helpers
import pytest
from helpers import EPSILON
from torch_helpers import (
    DTYPES,
    LAYERS,
    OURS,
    SHAPES,
    WITHOUT_BIAS,
    check_layer,
    dtypes,
    inputs,
    memories,
    modes,
    nn,
    onedsl_torch,
    random_layer,
    reference_layer,
    tensors,
    torch,
)

import onedsl


@dtypes
@memories
@modes
def test_gradients(dtype, rank, memory, train):
    check_layer(random_layer(rank).train(train), *inputs(rank, dtype, memory))


@dtypes
@modes
@pytest.mark.parametrize(
    "kwargs",
    [
        {"affine": False},
        *WITHOUT_BIAS,
        {"track_running_stats": False},
        {"affine": False, "track_running_stats": False},
        {"momentum": None},
        {"eps": 0.1},
    ],
    ids="-".join,
)
def test_attributes(dtype, train, kwargs):
    # With neither parameters nor buffers, PyTorch rounds the statistics to the input's type.
    rounded = dtype != "f32" and len(kwargs) == 2
    check_layer(random_layer(2, **kwargs).train(train), *inputs(2, dtype), 1 + 3 * rounded)


@modes
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_parameters_of_16_bits(dtype, train):
    """The tolerance is larger, because PyTorch's forward pass rounds the statistics too."""
    layer = random_layer(2, DTYPES[dtype]).train(train)
    check_layer(layer, *inputs(2, dtype), factor=4)


@modes
@pytest.mark.parametrize("frozen", [["weight"], ["bias"], ["weight", "bias"]])
def test_parameters_that_need_no_grad(train, frozen):
    layer = random_layer(2).train(train)
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
    check_layer(layer, *inputs(2, "f32"))


@modes
def test_input_that_needs_no_grad(train):
    layer = random_layer(2).train(train)
    src, diff_dst = inputs(2, "f32")
    twin = reference_layer(layer)
    layer(src).backward(diff_dst)
    twin(src.double()).backward(diff_dst.double())
    assert torch.allclose(layer.weight.grad.double(), twin.weight.grad, rtol=1e-5)
    with torch.no_grad():
        assert not layer(src).requires_grad


@modes
@pytest.mark.parametrize("kind", ["expanded", "strided", "other_order"])
def test_gradients_with_other_strides(train, kind):
    """The gradient of a mean is expanded, that of a transposed output has another axis order."""
    src, diff_dst = inputs(2, "f32")
    diff_dst = {
        "expanded": lambda t: t[..., :1, :1].expand_as(src),
        "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
        "other_order": lambda t: t.to(memory_format=torch.channels_last),
    }[kind](diff_dst)
    check_layer(random_layer(2).train(train), src, diff_dst)


@modes
def test_strided_input(train):
    layer = random_layer(2).train(train)
    src, diff_dst = inputs(2, "f32")
    wide = src.repeat_interleave(2, -1).requires_grad_()
    dense = src.clone().requires_grad_()
    layer(wide[..., ::2]).backward(diff_dst)
    layer.eval().train(train)
    layer(dense).backward(diff_dst)
    assert torch.allclose(wide.grad[..., ::2], dense.grad, rtol=1e-5, atol=1e-6)


@modes
@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
def test_autocast(train, memory):
    """The convolution's output is bf16, the layer's parameters stay f32."""
    generator = torch.Generator().manual_seed(0)
    # No bias: its exact gradient is zero, so the test would compare rounding errors.
    conv = nn.Conv2d(3, 5, 3, bias=False)
    theirs = nn.Sequential(conv, random_layer(2), nn.ReLU(), nn.Conv2d(5, 2, 3))
    ours = copy.deepcopy(theirs)
    theirs[1].__class__ = nn.BatchNorm2d
    src = torch.randn(4, 3, 9, 9, generator=generator)
    if memory == "channels_last":
        src = src.to(memory_format=torch.channels_last)
    seen = []
    ours[1].register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].dtype, go[0].dtype)))
    for model in ours, theirs:
        model.train(train)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(src).square().mean()
        loss.backward()
    assert seen == [(torch.bfloat16, torch.bfloat16)]
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert a.grad.dtype == torch.float32
        assert float((a.grad - b.grad).norm() / b.grad.norm()) < 2**-7


@modes
@pytest.mark.parametrize(
    "make",
    [
        lambda layer, src: (layer.double(), src.double()),
        lambda layer, src: (layer.to("meta"), src.to("meta")),
    ],
    ids=["float64", "meta"],
)
def test_fallback_to_pytorch(make, train):
    layer, src = make(random_layer(2).train(train), inputs(2, "f32")[0])
    twin = copy.deepcopy(layer)
    twin.__class__ = nn.BatchNorm2d
    a, b = src.clone().requires_grad_(), src.clone().requires_grad_()
    layer(a).sum().backward()
    twin(b).sum().backward()
    assert a.grad.dtype == b.grad.dtype
    assert a.grad.is_meta or torch.equal(a.grad, b.grad)


@pytest.mark.parametrize(
    ("shape", "rank"), [((1, 5, 1, 1), 2), ((1, 5), 1), ((4, 3, 6, 7), 2), ((4, 5), 2)]
)
def test_errors_equal_those_of_pytorch(shape, rank):
    ours, src = OURS[rank](5), torch.zeros(shape)
    with pytest.raises(Exception) as theirs:
        LAYERS[rank](5)(src)
    with pytest.raises(type(theirs.value)) as got:
        ours(src)
    assert str(got.value) == str(theirs.value)


@pytest.mark.parametrize("shape", [(0, 5, 6, 7), (4, 5, 0, 7), (0, 5), (4, 0)])
@modes
def test_empty_batches_equal_those_of_pytorch(shape, train):
    rank = max(1, len(shape) - 2)
    results = []
    for kind in OURS[rank], LAYERS[rank]:
        layer = kind(shape[1]).train(train)
        src = torch.zeros(shape, requires_grad=True)
        try:
            layer(src).sum().backward()
            results.append(
                (src.grad.shape, layer.weight.grad.tolist(), layer.running_mean.tolist())
            )
        except (RuntimeError, ValueError, IndexError) as error:
            results.append(str(error))
    assert results[0] == results[1]


@pytest.mark.parametrize("missing", [(0, 1), (0,), (1,)])
def test_evaluation_without_statistics(missing):
    """torch.native_batch_norm crashes for these arguments."""
    src, weight = torch.randn(4, 3, 5), torch.ones(3, requires_grad=True)
    running = [None if at in missing else torch.ones(3) for at in range(2)]
    errors = []
    for function in nn.functional.batch_norm, onedsl_torch.batch_norm:
        with pytest.raises((RuntimeError, ValueError)) as caught:
            function(src, *running, weight, None, False)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@modes
def test_unaligned_tensors_are_copied(train):
    src, diff_dst = inputs(2, "f32")
    raw = torch.frombuffer(
        bytearray(b"\0" + src.numpy().tobytes()), dtype=torch.float32, offset=1
    ).reshape(src.shape)
    assert raw.data_ptr() % 4
    grads = []
    for x in raw, src:
        layer = random_layer(2).train(train)
        layer(x).backward(diff_dst)
        grads.append(layer.weight.grad)
    assert torch.allclose(*grads, rtol=1e-5)
    op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
    _, _, *rest = tensors(SHAPES[2], "f32")
    assert torch.equal(op(raw, diff_dst, *rest).diff_src, op(src, diff_dst, *rest).diff_src)


def test_subnormal_epsilon():
    src = torch.zeros(4, 1)
    grads = []
    for kind in OURS[1], LAYERS[1]:
        x = src.clone().requires_grad_()
        layer = kind(1, eps=1e-39)
        layer(x).backward(torch.tensor([[1.0], [2.0], [3.0], [4.0]]) * 1e-30)
        grads.append(x.grad)
    assert torch.allclose(*grads, rtol=1e-4)


def test_layers_copy_no_tensor():
    child = helpers.run_script("torch_peak.py")
    assert child.returncode == 0, child.stdout + child.stderr
