"""Checks that the passes of a layer allocate only the input, the output and two gradients."""

from pathlib import Path

import torch
from processes import peak

import onedsl.torch

TENSOR = 32 << 20  # bytes; smaller ones may be kept by malloc when they are freed


def step(layer, shape, memory, dtype):
    x = torch.ones(shape, dtype=dtype).to(memory_format=memory).requires_grad_()
    y = layer(x)
    y.backward(torch.ones(shape, dtype=dtype).to(memory_format=memory))
    assert x.grad.stride() == x.stride()
    del y


onedsl.torch.enable()
layer = torch.nn.BatchNorm2d(16)
for dtype in torch.float32, torch.bfloat16, torch.float16:
    for memory in torch.contiguous_format, torch.channels_last:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        step(layer, (2, 16, 4, 4), memory, dtype)
        before = peak()
        step(layer, (TENSOR // dtype.itemsize // (16 << 10), 16, 32, 32), memory, dtype)
        print(dtype, memory, (peak() - before) / TENSOR)
        # x, y, diff_dst, diff_src, and the sources of to(memory_format).
        assert peak() - before < 4.5 * TENSOR
