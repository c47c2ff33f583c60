"""onedsl.torch: tensors as arguments, the custom op, the layers; PyTorch is the judge."""

from __future__ import annotations

import copy
import io

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core, testing

torch = pytest.importorskip("torch", reason="PyTorch is optional: pip install torch==2.13.0")

from torch import nn  # noqa: E402

import onedsl.torch as onedsl_torch  # noqa: E402 - it needs PyTorch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = {1: (6, 5, 7), 2: (4, 5, 6, 7), 3: (3, 4, 2, 5, 3)}
LAYERS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
OURS = {n: getattr(onedsl_torch, f"BatchNorm{n}d") for n in LAYERS}
CHANNELS_LAST = {1: None, 2: torch.channels_last, 3: torch.channels_last_3d}

dtypes = pytest.mark.parametrize("dtype", DTYPES)
modes = pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
# (rank, memory)
MEMORIES = [(1, "contiguous"), (2, "contiguous"), (2, "channels_last"), (3, "channels_last")]
memories = pytest.mark.parametrize(("rank", "memory"), MEMORIES, ids=str)


def tensor(array, dtype=None):
    array = np.array(array)
    if array.dtype == helpers.NUMPY["bf16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors(shape, dtype, stats="f32", memory="contiguous"):
    made = [tensor(a) for a in helpers.case(shape, dtype, stats, "NCX").problem]
    if memory == "channels_last":
        made[:2] = [t.to(memory_format=CHANNELS_LAST[t.ndim - 2]) for t in made[:2]]
    return made


def back(gradients):
    """As NumPy arrays that the reference can be compared with."""
    return onedsl.BatchNormGradients(
        *(None if t is None else _core.import_array(t.detach()) for t in gradients)
    )


# PyTorch's compilers use, or are, what PyTorch has deprecated.
dynamo = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class TestTensorsAsArguments:
    @helpers.types
    @memories
    def test_results(self, dtype, stats, rank, memory):
        problem = tensors(SHAPES[rank], dtype, stats, memory)
        got = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*problem)
        assert all(type(t) is torch.Tensor for t in got)
        assert got.diff_src.stride() == problem[0].stride()
        assert got.diff_src.dtype == problem[0].dtype
        wanted = helpers.case(SHAPES[rank], dtype, stats, "NCX").with_gamma
        testing.assert_gradients_close(back(got), wanted)

    @helpers.types
    def test_out(self, dtype, stats):
        problem = tensors(SHAPES[2], dtype, stats)
        op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
        out = onedsl.BatchNormGradients(
            *(torch.full_like(t, torch.nan) for t in (problem[0], *problem[3:]))
        )
        pointers = [t.data_ptr() for t in out]
        assert op(*problem, out=out) is out
        assert pointers == [t.data_ptr() for t in out]
        for a, b in zip(out, op(*problem), strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_autograd_finds_that_out_was_written(self, which):
        problem = tensors(SHAPES[2], "f32")
        out = [torch.ones_like(t) for t in (problem[0], *problem[3:])]
        weight = torch.ones_like(out[which], requires_grad=True)
        loss = (weight * out[which]).sum()
        onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*problem, out=tuple(out))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    @pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
    @dtypes
    def test_nothing_is_copied(self, dtype, memory):
        src = tensors(SHAPES[2], dtype, memory=memory)[0]
        seen = _core.import_array(src)
        assert seen.ctypes.data == src.data_ptr()
        assert [s // seen.itemsize for s in seen.strides] == list(src.stride())
        shared = _core.export_array(seen, src)
        assert shared.data_ptr() == src.data_ptr()

    def test_the_other_dialects_and_compiled(self):
        problem = tensors(SHAPES[2], "f32")
        wanted = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*problem)
        spec = onedsl.TensorSpec.of(problem[0])
        compiled = onedsl.BatchNormTrainingBackward(EPSILON, "NCX").compile(spec)
        prop = onedsl.BatchNormTrainingBackprop(EPSILON, "NCX")
        for got in compiled(*problem), prop(*problem):
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        frozen = onedsl.BatchNormalizationGrad(EPSILON)
        shaped = [*problem[:2], *(t.reshape(1, -1, 1, 1) for t in problem[2:])]
        for a, b in zip(frozen(*shaped), frozen(*(t.numpy() for t in shaped)), strict=True):
            assert np.array_equal(a.numpy(), b)

    def test_strided_and_empty(self):
        problem = tensors(SHAPES[2], "f32")
        op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
        wide = [t.repeat_interleave(2, -1)[..., ::2] for t in problem]
        assert all(torch.equal(a, b) for a, b in zip(op(*wide), op(*problem), strict=True))
        empty = op(torch.zeros(0, 3, 4), torch.zeros(0, 3, 4), *torch.zeros(3, 3))
        assert empty.diff_src.shape == (0, 3, 4)
        assert not empty.diff_beta.any()

    @pytest.mark.parametrize(
        ("make", "error", "words"),
        [
            (lambda t: t.requires_grad_(), TypeError, ["requires grad", "src.detach()"]),
            (lambda t: t.to("meta"), (TypeError, ValueError), ["meta"]),
            (lambda t: t.double(), TypeError, ["float64"]),
            (lambda t: t.to_sparse(), TypeError, ["Tensor"]),
            (lambda t: torch.complex(t, t).conj().imag, TypeError, ["resolve_neg()"]),
            (lambda t: torch._efficientzerotensor(t.shape), TypeError, ["Tensor"]),
        ],
        ids=["requires_grad", "meta", "float64", "sparse", "negative", "zero_tensor"],
    )
    def test_refusals(self, make, error, words):
        src, *rest = tensors(SHAPES[2], "f32")
        with pytest.raises(error) as caught:
            onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(make(src), *rest)
        assert str(caught.value).startswith("src")
        assert all(word in str(caught.value) for word in words)

    def test_tensors_without_memory_of_their_own(self):
        """Inside PyTorch's transforms a tensor is a stand-in, whatever its type."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
        src, *rest = tensors(SHAPES[2], "f32")
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises(TypeError):
            op(mode.from_tensor(src), *rest)
        with pytest.raises(TypeError):
            torch.vmap(lambda t: op(t, *rest).diff_src)(torch.stack([src, src]))
        with pytest.raises(TypeError):
            torch.func.grad(lambda t: op(t, *rest).diff_src.sum())(src)

    def test_a_parameter_that_needs_no_grad(self):
        *inputs, gamma = tensors(SHAPES[2], "f32")
        op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
        got = op(*inputs, nn.Parameter(gamma, requires_grad=False))
        assert all(torch.equal(a, b) for a, b in zip(got, op(*inputs, gamma), strict=True))

    def test_results_outlive_everything(self):
        got = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*tensors(SHAPES[2], "f32"))
        view = got.diff_src[1:].view(-1)
        kept = view.clone()
        del got
        torch.empty(1 << 16).fill_(7)
        assert torch.equal(view, kept)


def reference_layer(layer):
    """The same layer of PyTorch's in float64."""
    twin = LAYERS[{v: k for k, v in OURS.items()}[type(layer)]](
        layer.num_features,
        layer.eps,
        layer.momentum,
        layer.affine,
        layer.track_running_stats,
        bias=not layer.affine or layer.bias is not None,
    ).double()
    twin.load_state_dict(layer.state_dict())
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        theirs.requires_grad_(ours.requires_grad)
    return twin.train(layer.training)


def random_layer(rank, dtype=torch.float32, seed=0, **kwargs):
    generator = torch.Generator().manual_seed(seed)
    layer = OURS[rank](SHAPES[rank][1], **kwargs)
    for t in (*layer.parameters(), *layer.buffers()):
        if t.is_floating_point():
            t.data.uniform_(0.5, 2, generator=generator)
    return layer.to(dtype)


def inputs(rank, dtype, memory="contiguous"):
    src, diff_dst, *_ = tensors(SHAPES[rank], dtype, memory=memory)
    return src, diff_dst


def check_layer(layer, src, diff_dst, factor=1):
    """Compare the gradients with float64's, and the output and the state with PyTorch's own."""
    twin = reference_layer(layer)
    like = copy.deepcopy(layer)
    like.__class__ = LAYERS[src.ndim - 2]
    a = src.clone(memory_format=torch.preserve_format).requires_grad_()
    b = src.double().requires_grad_()
    output = layer(a)
    output.backward(diff_dst)
    twin(b).backward(diff_dst.double())
    assert torch.equal(output, like(src))
    for ours, theirs in zip(layer.buffers(), like.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    parameters = [
        None if p is None or not p.requires_grad else (p.grad, q.grad)
        for p, q in ((layer.weight, twin.weight), (layer.bias, twin.bias))
    ]
    got = onedsl.BatchNormGradients(a.grad, *(None if p is None else p[0] for p in parameters))
    wanted = onedsl.BatchNormGradients(b.grad, *(None if p is None else p[1] for p in parameters))
    assert got.diff_src.stride() == src.stride()
    for ours, theirs, own in zip(got, wanted, (src, layer.weight, layer.bias), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is None:
            continue
        assert ours.dtype == own.dtype
        limit = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}[ours.dtype]
        error = float((ours.double() - theirs).norm() / theirs.norm())
        assert error <= factor * limit, error


class TestLayers:
    @dtypes
    @memories
    @modes
    def test_gradients(self, dtype, rank, memory, train):
        check_layer(random_layer(rank).train(train), *inputs(rank, dtype, memory))

    @dtypes
    @modes
    @pytest.mark.parametrize(
        "kwargs",
        [
            {"affine": False},
            {"bias": False},
            {"track_running_stats": False},
            {"affine": False, "track_running_stats": False},
            {"momentum": None},
            {"eps": 0.1},
        ],
        ids="-".join,
    )
    def test_attributes(self, dtype, train, kwargs):
        # With neither parameters nor buffers, PyTorch rounds the statistics to the input's type.
        rounded = dtype != "f32" and len(kwargs) == 2
        check_layer(random_layer(2, **kwargs).train(train), *inputs(2, dtype), 1 + 3 * rounded)

    @modes
    @pytest.mark.parametrize("dtype", ["bf16", "f16"])
    def test_parameters_of_16_bits(self, dtype, train):
        """PyTorch's forward pass rounds the statistics too: as near as its own gradient is."""
        layer = random_layer(2, DTYPES[dtype]).train(train)
        check_layer(layer, *inputs(2, dtype), factor=4)

    @modes
    @pytest.mark.parametrize("frozen", [["weight"], ["bias"], ["weight", "bias"]])
    def test_parameters_that_need_no_grad(self, train, frozen):
        layer = random_layer(2).train(train)
        for name in frozen:
            getattr(layer, name).requires_grad_(False)
        check_layer(layer, *inputs(2, "f32"))

    @modes
    def test_input_that_needs_no_grad(self, train):
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
    def test_gradients_that_lie_otherwise(self, train, kind):
        """The mean of a loss comes back expanded, and a transposed one in another order."""
        src, diff_dst = inputs(2, "f32")
        diff_dst = {
            "expanded": lambda t: t[..., :1, :1].expand_as(src),
            "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
            "other_order": lambda t: t.to(memory_format=torch.channels_last),
        }[kind](diff_dst)
        check_layer(random_layer(2).train(train), src, diff_dst)

    @modes
    def test_strided_input(self, train):
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
    def test_autocast(self, train, memory):
        """The convolution's output is bf16, the layer's parameters stay f32."""
        generator = torch.Generator().manual_seed(0)
        theirs = nn.Sequential(nn.Conv2d(3, 5, 3), random_layer(2), nn.ReLU(), nn.Conv2d(5, 2, 3))
        ours = copy.deepcopy(theirs)
        theirs[1].__class__ = nn.BatchNorm2d
        src = torch.randn(4, 3, 9, 9, generator=generator)
        if memory == "channels_last":
            src = src.to(memory_format=torch.channels_last)
        seen = []
        ours[1].register_full_backward_hook(
            lambda m, gi, go: seen.append((gi[0].dtype, go[0].dtype))
        )
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
    @pytest.mark.parametrize("which", ["input", "weight", "bias"])
    @pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
    def test_gradcheck(self, train, which, memory):
        """Finite differences of the layer itself, in its float32; hence the wide margins."""
        layer = random_layer(2, eps=0.1).train(train)
        layer.momentum = 0.0  # so that each forward pass finds the same layer
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

    def test_a_chain_of_backward_passes_accumulates(self):
        layer = random_layer(2)
        src, diff_dst = inputs(2, "f32")
        layer(src).backward(diff_dst)
        once = layer.weight.grad.clone()
        layer(src).backward(diff_dst)
        assert torch.allclose(layer.weight.grad, 2 * once)

    def test_retained_graphs_give_the_same_again(self):
        layer = random_layer(2)
        src, diff_dst = inputs(2, "f32")
        src.requires_grad_()
        output = layer(src)
        first = torch.autograd.grad(output, src, diff_dst, retain_graph=True)[0]
        assert torch.equal(first, torch.autograd.grad(output, src, diff_dst)[0])

    def test_changes_in_place_between_the_passes_are_found(self):
        layer = random_layer(2)
        src, diff_dst = inputs(2, "f32")
        output = layer(src)
        src.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.backward(diff_dst)

    @modes
    @pytest.mark.parametrize(
        "make",
        [
            lambda layer, src: (layer.double(), src.double()),
            lambda layer, src: (layer.to("meta"), src.to("meta")),
        ],
        ids=["float64", "meta"],
    )
    def test_what_onedsl_has_not_is_pytorch_s(self, make, train):
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
    def test_errors_are_pytorch_s(self, shape, rank):
        ours, src = OURS[rank](5), torch.zeros(shape)
        with pytest.raises(Exception) as theirs:
            LAYERS[rank](5)(src)
        with pytest.raises(type(theirs.value)) as got:
            ours(src)
        assert str(got.value) == str(theirs.value)

    @modes
    def test_second_derivatives(self, train):
        """PyTorch's own, in float64, from the same output."""
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

    @pytest.mark.parametrize("shape", [(0, 5, 6, 7), (4, 5, 0, 7), (0, 5), (4, 0)])
    @modes
    def test_empty_batches_are_pytorch_s(self, shape, train):
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
    def test_evaluation_without_statistics(self, missing):
        """torch.native_batch_norm itself crashes on these."""
        src, weight = torch.randn(4, 3, 5), torch.ones(3, requires_grad=True)
        running = [None if at in missing else torch.ones(3) for at in range(2)]
        errors = []
        for function in nn.functional.batch_norm, onedsl_torch.batch_norm:
            with pytest.raises((RuntimeError, ValueError)) as caught:
                function(src, *running, weight, None, False)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]

    @dynamo
    def test_other_layouts_and_traces_are_pytorch_s(self):
        layer = random_layer(2).eval()
        src, _ = inputs(2, "f32")
        assert torch.allclose(layer(src.to_mkldnn()).to_dense(), layer(src), atol=1e-5)
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(layer, src), file)
        file.seek(0)
        assert torch.equal(torch.jit.load(file)(src), layer(src))

    def test_dispatch_modes_and_traces_see_the_gradient(self):
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.utils._python_dispatch import TorchDispatchMode

        layer = random_layer(2)
        src, diff_dst = inputs(2, "f32")

        def gradient(x, dy):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(layer(x), x, dy)[0]

        traced = make_fx(gradient)(src, torch.ones_like(diff_dst))
        assert torch.allclose(traced(src, diff_dst), gradient(src, diff_dst), atol=1e-6)
        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))

        with Mode():
            gradient(src, diff_dst)
        assert "onedsl.batch_norm_backward.default" in seen

    @modes
    def test_unaligned_tensors_are_copied(self, train):
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

    def test_the_smallest_epsilon(self):
        src = torch.zeros(4, 1)
        grads = []
        for kind in OURS[1], LAYERS[1]:
            x = src.clone().requires_grad_()
            layer = kind(1, eps=1e-39)
            layer(x).backward(torch.tensor([[1.0], [2.0], [3.0], [4.0]]) * 1e-30)
            grads.append(x.grad)
        assert torch.allclose(*grads, rtol=1e-4)

    def test_the_transforms_of_torch_func_are_refused(self):
        layer = random_layer(2, track_running_stats=False)
        src, _ = inputs(2, "f32")
        with pytest.raises(RuntimeError, match="setup_context"):
            torch.func.grad(lambda x: layer(x).square().sum())(src)
        with pytest.raises(RuntimeError, match="setup_context"):
            torch.func.vmap(layer)(torch.stack([src, src]))

    @dynamo
    def test_forward_mode_and_batched_gradients_are_refused(self):
        layer = random_layer(2)
        src, diff_dst = inputs(2, "f32")
        with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError):
            layer(torch.autograd.forward_ad.make_dual(src, diff_dst))
        src.requires_grad_()
        with pytest.raises(RuntimeError, match="Batching rule not implemented"):
            torch.autograd.grad(
                layer(src), src, torch.stack([diff_dst, diff_dst]), is_grads_batched=True
            )


class TestModules:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.branch = nn.ModuleDict({"a": nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))})
            self.head = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))

        def forward(self, x):
            x = self.stem(x)
            return self.head((x + self.branch["a"](x)).mean((2, 3)))

    @pytest.fixture
    def model(self):
        torch.manual_seed(0)
        return self.Model()

    def test_convert(self, model):
        parameters = dict(model.named_parameters())
        layer = model.stem[1]
        model.branch.eval()
        calls = []
        layer.register_forward_hook(lambda *_: calls.append(1))
        assert onedsl_torch.convert(model) is model
        kinds = [type(m) for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert kinds == [OURS[2], OURS[2], OURS[1]]
        assert model.stem[1] is layer
        assert {n: id(p) for n, p in model.named_parameters()} == {
            n: id(p) for n, p in parameters.items()
        }
        assert not model.branch["a"][1].training
        model(torch.randn(2, 3, 4, 4))
        assert calls == [1]
        onedsl_torch.convert(model)
        assert repr(model.stem[1]).startswith("BatchNorm2d(8, eps=1e-05, momentum=0.1")

    def test_revert(self, model):
        ours = onedsl_torch.convert(copy.deepcopy(model))
        assert onedsl_torch.revert(ours) is ours
        assert [type(m) for m in ours.modules()] == [type(m) for m in model.modules()]
        torch.fx.symbolic_trace(ours)

    def test_convert_one_layer_and_leave_others_alone(self):
        assert type(onedsl_torch.convert(nn.BatchNorm3d(3))) is OURS[3]

        class Mine(nn.BatchNorm2d):
            pass

        for layer in Mine(3), nn.LazyBatchNorm2d(), nn.SyncBatchNorm(3), nn.GroupNorm(1, 3):
            assert type(onedsl_torch.convert(layer)) is type(layer)

    def test_state_dict_round_trip(self, model):
        theirs = copy.deepcopy(model)
        ours = onedsl_torch.convert(copy.deepcopy(model))
        for m in theirs, ours:
            m(torch.ones(2, 3, 4, 4).normal_(generator=torch.Generator().manual_seed(0)))
        assert list(ours.state_dict()) == list(theirs.state_dict())
        for source, target in ((ours, self.Model()), (theirs, onedsl_torch.convert(self.Model()))):
            file = io.BytesIO()
            torch.save(source.state_dict(), file)
            file.seek(0)
            target.load_state_dict(torch.load(file, weights_only=True))
            for a, b in zip(
                target.state_dict().values(), theirs.state_dict().values(), strict=True
            ):
                assert torch.equal(a, b)

    def test_whole_models_are_saved_and_copied(self, model):
        ours = onedsl_torch.convert(model)
        file = io.BytesIO()
        torch.save(ours, file)
        file.seek(0)
        for other in (torch.load(file, weights_only=False), copy.deepcopy(ours)):
            assert type(other.stem[1]) is OURS[2]

    @pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
    @pytest.mark.parametrize("dtype", ["f32", "bf16"])
    def test_training_follows_pytorch_s(self, model, memory, dtype):
        theirs, ours = model, onedsl_torch.convert(copy.deepcopy(model))
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(64, 3, 6, 6, generator=generator)
        y = torch.randint(4, (64,), generator=generator)
        losses = []
        for m in theirs, ours:
            if memory == "channels_last":
                m.to(memory_format=torch.channels_last)
            optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
            losses.append([])
            for _ in range(25):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
                    loss = nn.functional.cross_entropy(m(x), y)
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        assert losses[0][-1] < 0.8 * losses[0][0]
        limit = 1e-3 if dtype == "f32" else 0.05
        assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < limit

    @dynamo
    @modes
    @pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
    def test_compile(self, model, train, backend):
        eager = onedsl_torch.convert(model).train(train)
        compiled = copy.deepcopy(eager)
        run = torch.compile(compiled, fullgraph=True, backend=backend)
        for seed in 0, 1:
            x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
            grads = []
            for call, m in ((eager, eager), (run, compiled)):
                m.zero_grad()
                call(x).square().sum().backward()
                grads.append([p.grad for p in m.parameters()])
            scale = max(float(g.norm()) for g in grads[0])
            for a, b in zip(*grads, strict=True):
                assert float((a - b).norm()) < 1e-5 * scale
            for a, b in zip(eager.buffers(), compiled.buffers(), strict=True):
                assert torch.allclose(a, b, rtol=1e-5)

    @dynamo
    def test_the_compiled_backward_pass_is_onedsl_s(self, model):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        ops = []

        def record(graph, _):
            ops.extend(str(node.target) for node in graph.graph.nodes)
            return make_boxed_func(graph.forward)

        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=record, bw_compiler=record)
        run = torch.compile(onedsl_torch.convert(model), fullgraph=True, backend=backend)
        run(torch.randn(4, 3, 5, 5)).sum().backward()
        assert sum("onedsl.batch_norm_backward" in op for op in ops) == 3
        assert not any("native_batch_norm_backward" in op for op in ops)

    def test_eager_layers_do_not_run_pytorch_s_gradient(self, model):
        with torch.profiler.profile() as profile:
            onedsl_torch.convert(model)(torch.randn(4, 3, 5, 5)).sum().backward()
        names = {event.key for event in profile.key_averages()}
        assert "aten::native_batch_norm" in names
        assert not any("batch_norm_backward" in name for name in names if "aten" in name)


class TestOp:
    @modes
    @pytest.mark.parametrize("outputs", ["all", "diff_src"])
    @pytest.mark.parametrize("data_format", ["NCX", "NXC"])
    @pytest.mark.parametrize("requires_grad", [True, False])
    @pytest.mark.parametrize("with_gamma", [True, False])
    @pytest.mark.parametrize("strided", [True, False])
    def test_opcheck(self, train, outputs, data_format, requires_grad, with_gamma, strided):
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

    @helpers.types
    @pytest.mark.parametrize("outputs", ["all", "diff_src"])
    @pytest.mark.parametrize("data_format", ["NCX", "NXC"])
    def test_against_the_reference(self, dtype, stats, outputs, data_format):
        problem = helpers.case((4, 6, 5, 6), dtype, stats, data_format).problem
        for statistics in "batch", "frozen":
            got = onedsl_torch.batch_norm_backward(
                *map(tensor, problem),
                epsilon=EPSILON,
                data_format=data_format,
                statistics=statistics,
                outputs=outputs,
            )
            wanted = testing.batch_norm_backward(
                *problem, epsilon=EPSILON, data_format=data_format, statistics=statistics
            )
            if outputs == "diff_src":
                assert got[1:] == (None, None)
                wanted = onedsl.BatchNormGradients(wanted.diff_src)
            testing.assert_gradients_close(back(got), wanted)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"epsilon": -1.0}, ValueError, "epsilon"),
            ({"data_format": "NHWC"}, ValueError, "data_format"),
            ({"statistics": "running"}, ValueError, "statistics must be"),
            ({"outputs": "diff_gamma"}, ValueError, "outputs must be"),
        ],
    )
    def test_attributes_that_are_wrong(self, change, error, words):
        with pytest.raises(error, match=words):
            onedsl_torch.batch_norm_backward(
                *tensors(SHAPES[2], "f32"), **{"epsilon": EPSILON, **change}
            )

    def test_tensors_that_are_wrong(self):
        src, diff_dst, mean, variance, gamma = tensors(SHAPES[2], "f32")
        call = onedsl_torch.batch_norm_backward
        with pytest.raises(ValueError, match="mean must have shape"):
            call(src, diff_dst, mean[:2], variance, gamma, epsilon=EPSILON)
        with pytest.raises(TypeError, match="diff_dst must be f32 as src is"):
            call(src, diff_dst.bfloat16(), mean, variance, gamma, epsilon=EPSILON)
        with pytest.raises(TypeError, match="float64"):
            call(src.double(), diff_dst, mean, variance, gamma, epsilon=EPSILON)
        with pytest.raises(NotImplementedError, match="onedsl::batch_norm_backward"):
            call(*(t.to_sparse() for t in (src, diff_dst, mean, variance)), epsilon=EPSILON)

    def test_tensors_of_several_devices(self):
        src, diff_dst, *rest = tensors(SHAPES[2], "f32")
        with pytest.raises(RuntimeError, match="src's device"):
            onedsl_torch.batch_norm_backward(src, diff_dst.to("meta"), *rest, epsilon=EPSILON)
        meta = [t.to("meta") for t in (src, diff_dst, *rest)]
        assert onedsl_torch.batch_norm_backward(*meta, epsilon=EPSILON).diff_src.is_meta
        with pytest.raises(RuntimeError, match="one value a channel"):
            onedsl_torch.batch_norm_backward(*meta[:2], meta[2][:1], *meta[3:], epsilon=EPSILON)

    def test_gamma_counts_where_diff_src_is_the_only_output(self):
        src, diff_dst, mean, variance, gamma = tensors(SHAPES[2], "f32")
        call = onedsl_torch.batch_norm_backward
        every = call(src, diff_dst, mean, variance, gamma, epsilon=EPSILON)
        one = call(src, diff_dst, mean, variance, gamma, epsilon=EPSILON, outputs="diff_src")
        assert torch.equal(every.diff_src, one.diff_src)

    @modes
    @pytest.mark.parametrize("with_gamma", [True, False])
    @pytest.mark.parametrize("data_format", ["NCX", "NXC"])
    def test_second_derivatives_by_finite_differences(self, train, with_gamma, data_format):
        """Of the formulas in float64, with mean and variance that follow src in training."""
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
        d_src, d_diff_dst, _, _, d_gamma, *_ = onedsl_torch._double_backward(Context, [u, a, b])
        for at, got in enumerate((d_src, d_diff_dst, d_gamma)):
            if got is None:
                continue
            direction = random(*got.shape)
            step = 1e-6
            ends = []
            for sign in 1, -1:
                moved = [src, diff_dst, gamma]
                moved[at] = moved[at] + sign * step * direction
                ends.append(scalar(*moved))
            slope = (ends[0] - ends[1]) / (2 * step)
            assert float((got * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_no_tensor_is_copied_by_a_layer():
    """Peak memory of forward and backward: input, output and two gradients, and nothing beside."""
    code = """
import re
from pathlib import Path
import torch, onedsl.torch
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
def step(layer, shape, memory, dtype):
    x = torch.ones(shape, dtype=dtype).to(memory_format=memory).requires_grad_()
    y = layer(x)
    y.backward(torch.ones(shape, dtype=dtype).to(memory_format=memory))
    assert x.grad.stride() == x.stride()
    del y
tensor = 32 << 20
for train in True, False:
    layer = onedsl.torch.BatchNorm2d(16).train(train)
    for dtype in torch.float32, torch.bfloat16, torch.float16:
        for memory in torch.contiguous_format, torch.channels_last:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            step(layer, (2, 16, 4, 4), memory, dtype)
            before = peak()
            step(layer, (tensor // dtype.itemsize // (16 << 10), 16, 32, 32), memory, dtype)
            print(train, dtype, memory, (peak() - before) / tensor)
            # x, y, diff_dst, diff_src; to(memory_format) has its source as well.
            assert peak() - before < 4.5 * tensor
"""
    child = helpers.run_child(code)
    assert child.returncode == 0, child.stdout + child.stderr
