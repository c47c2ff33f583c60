"""Checks large results where memory runs out, and at the end of the process.

Command line: the names of checks.
"""

import contextlib
import resource
import sys

import torch
from processes import address_space

import onedsl.torch

MB = 1 << 20
ones = torch.ones(16)


def source(megabytes):
    return torch.ones(megabytes * 1024, 16, 16)


def result(src):
    return torch.native_batch_norm(src, None, ones, None, None, True, 0.1, 1e-5)[0]


@contextlib.contextmanager
def no_memory(spare=MB):
    """Limit the memory of the process to a little more than it has."""
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + spare, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def fails(function, *arguments):
    """Return whether a call raises the error that functions look for to reduce the batch size."""
    try:
        function(*arguments)
    except RuntimeError as error:
        if "DefaultCPUAllocator: can't allocate memory" in str(error):
            return True
        raise
    return False


def errors():
    """The errors of all passes are PyTorch's, and the next call works."""
    pair = torch.nn.Sequential(torch.nn.BatchNorm2d(16), torch.nn.ReLU())
    compiled = torch.compile(pair, backend="onedsl")
    fused = onedsl.torch.BatchNormAct2d(16, activation="relu")
    for layer in torch.nn.BatchNorm2d(16), fused, compiled:
        src = source(256).reshape(-1, 16, 64, 64).requires_grad_()
        diff = torch.ones_like(src)
        for _ in range(2):
            torch.autograd.grad(layer(src), src, diff)
        with no_memory():
            assert fails(layer, src)
        dst = layer(src)
        with no_memory():
            assert fails(torch.autograd.grad, dst, src, diff)
        del dst
        torch.autograd.grad(layer(src), src, diff)
    op = onedsl.BatchNormTrainingBackward(1e-5, "NCX")
    inputs = src.detach(), diff, *torch.ones(3, 16)
    with no_memory():
        assert fails(op, *inputs)
    op(*inputs)


def search():
    """A search for a batch size that fits ends with one that trains."""
    # No convolution and no GELU: without memory, oneDNN's raise another error in PyTorch.
    model = torch.nn.Sequential(*(torch.nn.BatchNorm2d(16), torch.nn.Sigmoid()) * 6)

    def train(batch):
        for _ in range(4):
            model(torch.ones(batch, 16, 64, 64)).sum().backward()

    train(2)
    batch = 256
    with no_memory(250 * MB):
        while fails(train, batch):
            batch = batch * 3 // 4
    assert 20 < batch < 256


def process_exit():
    """Results are freed until the process ends."""
    sys.kept = [result(source(4)) for _ in range(5)]
    sys.cycle = [sys.kept]
    sys.cycle.append(sys.cycle)


torch.set_num_threads(1)  # more would only wait for the other programs of the machine
onedsl.torch.enable(huge_pages=False)
for name in sys.argv[1:]:
    globals()[name]()
print("done")
