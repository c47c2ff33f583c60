"""A training loop that uses onedsl. Command line: how. It ends if --compare ends it."""

import sys

import torch
from torch import nn

import onedsl.torch

how = sys.argv[1]
if how == "imported":
    import imported_enable  # noqa: F401 - it calls enable
layers = nn.BatchNorm2d(8), nn.ReLU()
if how == "layers":
    layers = (onedsl.torch.BatchNormAct2d(8, activation="relu"),)
model = nn.Sequential(nn.Conv2d(3, 8, 3), *layers)
step = torch.compile(model, backend="onedsl") if how == "compiled" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    step(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
