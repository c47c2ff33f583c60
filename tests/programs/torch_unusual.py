"""A training loop with modules that cannot be inspected, an input, and its own exit status."""

import sys

import torch
from torch import nn


class Uninitialized(nn.Module):
    def __init__(self):
        pass


class Unusable(nn.Module):
    def parameters(self):
        raise RuntimeError


model = nn.Sequential(nn.Conv2d(3, 8, 3))
model.add_module("grösse", nn.BatchNorm2d(8))
unused, parent, unusable = Uninitialized(), nn.Module(), Unusable()
parent.model, parent.unused = model, unused
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
assert sys.stdin.read() == "of each run\n"
try:
    while True:
        model(torch.randn(2, 3, 8, 8)).square().sum().backward()
        optimizer.step()
except SystemExit:
    sys.exit(1)
