"""Trains for two steps where enable may have no effect, and prints onedsl's warnings.

Command line: how the model is run, several ways. Each has a process of its own, and prints a line.
"""

import os
import sys
import warnings

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import onedsl.torch


def train(what, caught, use=lambda model: model, dtype=torch.float32):
    layers = nn.Conv2d(3, 4, 1, dtype=dtype), nn.BatchNorm2d(4, dtype=dtype)
    model = use(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if what.startswith("checkpoint"):
        before = len(caught)
        optimizer.step()  # without gradients
        get_optimizer_state_dict(model, optimizer)  # a step with gradients of zeros
        assert optimizer.state
        assert len(caught) == before
    model(torch.randn(2, 3, 4, 4, dtype=dtype)).sum().backward()
    optimizer.step()


def run(what):
    generator = nn.BatchNorm2d(4)  # which is not trained
    onedsl.torch.enable()
    if what == "disabled":
        onedsl.torch.disable()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        if what in ("fake", "meta"):
            with torch._subclasses.FakeTensorMode() if what == "fake" else torch.device("meta"):
                train(what, caught)
        train(what, caught, lambda model: model[0])  # a discriminator
        in_float64 = [lambda model: model, torch.float64]
        uses = {"compiled": [torch.compile], **dict.fromkeys(["float64", "checkpoint"], in_float64)}
        for _ in range(2):
            train(what, caught, *uses.get(what, []))
    del generator
    print(*(w.message for w in caught if "onedsl" in str(w.message)), sep="\n", flush=True)


ways = sys.argv[1:]
if "compiled" not in ways:
    import torch._inductor.compile_fx
for way in ways:
    if (child := os.fork()) == 0:
        run(way)
        os._exit(0)  # Python's takes a second
    os.waitpid(child, 0)
