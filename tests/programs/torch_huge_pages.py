"""Prints whether PyTorch uses huge pages in some situations, and what onedsl says about it.

Prints the number of warnings, whether huge pages are used, and what `report` shows.

Command line: each argument is a situation, which has a process of its own, forked before PyTorch's
first tensor. Its words are in the order of what happens: "NAME=VALUE" sets a variable, "tensor"
makes one, "enable" and "disable" are onedsl's, "without" is `enable(huge_pages=False)`, "model"
makes a model, "no-threads", "no-proc" and "no-huge-pages" are limits of the process, and "fork" and
"spawn" continue in a child process.
"""

import builtins
import ctypes
import multiprocessing
import os
import pathlib
import sys
import threading
import warnings

import torch
from torch import nn

import onedsl.torch


def huge_pages():
    """Return whether PyTorch aligns large tensors to pages, which it does for huge pages only."""
    tensors = [torch.empty(2 << 20, dtype=torch.uint8) for _ in range(8)]
    return all(tensor.data_ptr() % 4096 == 0 for tensor in tensors)


def no_thread(*arguments):
    """Fail as where the number of processes is limited."""
    raise RuntimeError("can't start new thread")


def hidden(function):
    """Return a function that opens files, without those of the process itself."""

    def opened(path, *arguments, **options):
        if str(path).startswith("/proc/self/"):
            raise FileNotFoundError(path)
        return function(path, *arguments, **options)

    return opened


def happen(words):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if run(words):
            return
    print(sum("have no huge pages" in str(warning.message) for warning in caught))
    print(huge_pages())
    layer = nn.BatchNorm2d(3)
    with onedsl.torch.report(layer) as summary:
        layer(torch.randn(2, 3, 4, 4)).sum().backward()
    print(*[line for line in str(summary).splitlines() if "huge pages" in line], flush=True)


def run(words):
    """Let all happen. Return whether a child process has continued."""
    for number, word in enumerate(words):
        if "=" in word:
            name, _, value = word.partition("=")
            os.environ[name] = value
        elif word == "tensor":
            torch.ones(1)
        elif word == "enable":
            onedsl.torch.enable()
        elif word == "disable":
            onedsl.torch.disable()
        elif word == "without":
            onedsl.torch.enable(huge_pages=False)
        elif word == "model":
            nn.BatchNorm2d(3)
        elif word == "no-threads":
            threading._start_new_thread = no_thread
        elif word == "no-proc":
            pathlib.Path.read_text = hidden(pathlib.Path.read_text)
            builtins.open = hidden(builtins.open)
        elif word == "no-huge-pages":
            ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # as some programs do for their children
        elif word in ("fork", "spawn"):
            child = multiprocessing.get_context(word).Process(
                target=happen, args=(words[number + 1 :],)
            )
            child.start()
            child.join()
            return True
    return False


if __name__ == "__main__":
    for situation in sys.argv[1:]:
        if (child := os.fork()) == 0:
            happen(situation.split())
            os._exit(0)  # Python's takes a second
        os.waitpid(child, 0)
