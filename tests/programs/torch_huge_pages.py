"""Prints whether PyTorch uses huge pages in some situation, and what onedsl reports about it.

Command line: words in the order of what happens: "tensor" makes one, "enable" and "disable" are
onedsl's, "without" is `enable(huge_pages=False)`, "model" makes a model, and "fork" and "spawn"
continue in a child process.
"""

import multiprocessing
import sys

import torch
from torch import nn

import onedsl.torch


def huge_pages():
    """Return whether PyTorch aligns large tensors to pages, which it does for huge pages only."""
    tensors = [torch.empty(2 << 20, dtype=torch.uint8) for _ in range(8)]
    return all(tensor.data_ptr() % 4096 == 0 for tensor in tensors)


def happen(words):
    for number, word in enumerate(words):
        if word == "tensor":
            torch.ones(1)
        elif word == "enable":
            onedsl.torch.enable()
        elif word == "disable":
            onedsl.torch.disable()
        elif word == "without":
            onedsl.torch.enable(huge_pages=False)
        elif word == "model":
            nn.BatchNorm2d(3)
        elif word in ("fork", "spawn"):
            child = multiprocessing.get_context(word).Process(
                target=happen, args=(words[number + 1 :],)
            )
            child.start()
            child.join()
            sys.exit(child.exitcode)
    print(huge_pages())
    layer = nn.BatchNorm2d(3)
    with onedsl.torch.report(layer) as summary:
        layer(torch.randn(2, 3, 4, 4)).sum().backward()
    print(*[line for line in str(summary).splitlines() if "huge pages" in line], flush=True)


if __name__ == "__main__":
    happen(sys.argv[1:])
