"""A training loop that changes its optimizer."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
for step in range(10**9):
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizers[step > 9].step()
