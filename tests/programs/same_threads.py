"""Prints how many threads ten rounds of calls start, and how many the process had before.

    OMP_NUM_THREADS=8 python tests/programs/same_threads.py numpy|torch|jax

Regression: a parallel region of few threads makes libgomp end the others of its team, which the
next region of any library creates again.
"""

import os
import sys

import numpy as np

import onedsl
from onedsl import testing

SHAPES = [(2, 4), (4, 7, 7, 64), (8, 14, 14, 64), (4, 28, 28, 96), (8, 56, 56, 64), (2, 9, 70, 300)]
library = sys.argv[1]


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def numpy_calls() -> None:
    """Run operators on tensors of any strides, whole and in parts.

    oneDNN's own regions of small tensors have few threads.
    """
    for shape in SHAPES:
        src, diff_dst = testing.random_problem(shape)[:2]
        for data_format in ("NXC", "NCX"):
            v = [np.ones(shape[-1] if data_format == "NXC" else shape[1], np.float32)] * 3
            op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
            op(src, diff_dst, *v)
            op(src, np.asfortranarray(diff_dst), *v)
            op.apply(op.reduce(src, diff_dst, *v[:2]), src, diff_dst, *v)
            onedsl.BatchNormForwardTraining(1e-5, data_format=data_format)(src, *v[:2])


def torch_calls() -> None:
    """Train layers, with onedsl and by PyTorch, and run one of PyTorch's own operators between."""
    import torch

    import onedsl.torch

    torch.set_num_threads(8)  # it reads OMP_NUM_THREADS, but takes no more threads than CPUs
    for shape in SHAPES:
        x = torch.ones((shape[0], shape[-1], *shape[1:-1])).requires_grad_()
        onedsl.torch.enable()
        norm = torch.nn.BatchNorm1d if x.ndim == 2 else torch.nn.BatchNorm2d
        act = onedsl.torch.BatchNormAct1d if x.ndim == 2 else onedsl.torch.BatchNormAct2d
        for layer in norm(x.shape[1]), act(x.shape[1], activation="relu"):
            layer(x).sum().backward()
        torch.relu(torch.ones(1 << 20))
        onedsl.torch.disable()


def jax_calls() -> None:
    """Run gradients, as programs of several calls and under vmap."""
    import jax

    import onedsl.jax

    def loss(x, gamma):
        return onedsl.jax.batch_norm(x, gamma, gamma, epsilon=1e-5)[0].sum()

    for shape in SHAPES:
        x, gamma = np.ones(shape, np.float32), np.ones(shape[-1], np.float32)
        jax.block_until_ready(jax.jit(jax.grad(loss))(x, gamma))


calls = {"numpy": numpy_calls, "torch": torch_calls, "jax": jax_calls}[library]
calls()  # starts the teams
before = seen = threads()
for _ in range(10):
    calls()
    seen = seen | threads()
print(len(seen - before), len(before))
