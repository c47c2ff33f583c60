"""A training loop. Command line: the number of steps. The script fails after 7 steps."""

import sys

import torch
from torch import nn

steps = int(sys.argv[1])
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("not shown")
for _ in range(steps):
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
if steps == 7:
    raise ValueError("from the script")
