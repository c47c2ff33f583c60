"""A training loop. Command line: the number of steps, and after how many the optimizer changes.

The script fails after 7 steps.
"""

import sys

import torch
from torch import nn

steps, first = (*map(int, sys.argv[1:]), 10**9)[:2]
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
print("not shown")
for step in range(steps):
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizers[step >= first].step()
if steps == 7:
    raise ValueError("from the script")
