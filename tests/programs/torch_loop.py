"""A training loop. Command line: the number of steps, and how it uses onedsl, if it does.

The script fails after 7 steps.
"""

import sys

import torch
from torch import nn

steps, how = int(sys.argv[1]), sys.argv[2:]
layers = nn.BatchNorm2d(32), nn.ReLU()
if how:
    import onedsl.torch
if how == ["enable"]:
    onedsl.torch.enable()
elif how == ["layers"]:
    layers = (onedsl.torch.BatchNormAct2d(32, activation="relu"),)
model = nn.Sequential(nn.Conv2d(3, 32, 3), *layers)
run = torch.compile(model, backend="onedsl") if how == ["compiled"] else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("not shown")
for _ in range(steps):
    run(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
if steps == 7:
    raise ValueError("from the script")
