"""What the tests of onedsl.torch share: tensors, layers, and PyTorch's own layers as judges.

The files import torch, nn and onedsl_torch from here: without PyTorch they are skipped.
"""

import inspect

import helpers
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is optional: pip install torch==2.13.0")

from torch import nn  # noqa: E402

import onedsl.torch as onedsl_torch  # noqa: E402, F401 - it needs PyTorch

DTYPES = {name: getattr(torch, dtype.name) for name, dtype in helpers.NUMPY.items()}
SHAPES = {1: (6, 5, 7), 2: (4, 5, 6, 7), 3: (3, 4, 2, 5, 3)}
LAYERS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
# The keyword argument `bias` of PyTorch's batch-norm layers is newer than PyTorch 2.11.
WITHOUT_BIAS = [{"bias": False}] if "bias" in inspect.signature(nn.BatchNorm2d).parameters else []
CHANNELS_LAST = {1: None, 2: torch.channels_last, 3: torch.channels_last_3d}

# Relative L2 errors of tensors.
LIMITS = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}

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


def state(channels=5):
    """Return weight, bias, running mean and running variance."""
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(channels, generator=generator) + 0.5 for _ in range(4)]


def relative_error(ours, exact):
    ours, exact = ours.detach().double(), exact.detach().double()
    return float((ours - exact).norm()) / max(float(exact.norm()), 1e-30)


def step(model, src, diff_dst, *residual):
    """Run both passes of a model and return its output, all gradients and the buffers."""
    given = [t.detach().requires_grad_() for t in (src, *residual)]
    dst = model(*given)
    dst.backward(diff_dst)
    return {
        "dst": dst.detach(),
        **{f"diff_{name}": t.grad for name, t in zip(("src", "residual"), given, strict=False)},
        **{f"diff_{name}": p.grad for name, p in model.named_parameters()},
        **dict(model.named_buffers()),
    }


def inputs(rank, dtype, memory="contiguous"):
    src, diff_dst, *_ = tensors(SHAPES[rank], dtype, memory=memory)
    return src, diff_dst


class SmallModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.branch = nn.ModuleDict({"a": nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))})
        self.head = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.branch["a"](x)).mean((2, 3)))


class Plain(nn.Module):
    """A batch norm, and what a test does with its result."""

    def __init__(self, use, norm=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8) if norm is None else norm
        self.use = use

    def forward(self, x):
        y = self.conv(x)
        return self.use(self.norm(y), y)
