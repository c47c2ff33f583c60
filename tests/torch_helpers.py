"""What the tests of onedsl.torch share: tensors, layers, and PyTorch's own layers as judges.

The files import torch, nn and onedsl_torch from here: without PyTorch they are skipped.
"""

from __future__ import annotations

import copy
import inspect
import threading

import helpers
import numpy as np
import pytest

import onedsl
from onedsl import _core

torch = pytest.importorskip("torch", reason="PyTorch is optional: pip install torch==2.13.0")

from torch import nn  # noqa: E402

import onedsl.torch as onedsl_torch  # noqa: E402 - it needs PyTorch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = {1: (6, 5, 7), 2: (4, 5, 6, 7), 3: (3, 4, 2, 5, 3)}
LAYERS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
OURS = {n: getattr(onedsl_torch, f"BatchNorm{n}d") for n in LAYERS}
# The keyword argument `bias` of PyTorch's batch-norm layers is newer than PyTorch 2.11.
WITHOUT_BIAS = [{"bias": False}] if "bias" in inspect.signature(nn.BatchNorm2d).parameters else []
CHANNELS_LAST = {1: None, 2: torch.channels_last, 3: torch.channels_last_3d}

dtypes = pytest.mark.parametrize("dtype", DTYPES)
modes = pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
# (rank, memory)
MEMORIES = [(1, "contiguous"), (2, "contiguous"), (2, "channels_last"), (3, "channels_last")]
memories = pytest.mark.parametrize(("rank", "memory"), MEMORIES, ids=str)

# PyTorch's compilers use deprecated parts of PyTorch, and torch.jit is deprecated.
dynamo = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.torch.jit:FutureWarning")


def tensor(array):
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


def reference_layer(layer):
    """The same layer of PyTorch's in float64."""
    twin = LAYERS[{v: k for k, v in OURS.items()}[type(layer)]](
        layer.num_features,
        layer.eps,
        layer.momentum,
        layer.affine,
        layer.track_running_stats,
        **({"bias": False} if layer.affine and layer.bias is None else {}),
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


def train_on_threads(src, diff_dst, steps):
    """Take a layer's gradient on four threads at once: each time the same bits as alone."""

    def gradient():
        x = src.clone().requires_grad_()
        nn.BatchNorm2d(src.shape[1])(x).backward(diff_dst)
        return x.grad

    wanted, wrong = gradient(), []

    def work():
        wrong.extend(i for i in range(steps) if not torch.equal(gradient(), wanted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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


class SmallModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.branch = nn.ModuleDict({"a": nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))})
        self.head = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.branch["a"](x)).mean((2, 3)))
