"""Training loops on three threads."""

import threading

import torch
from torch import nn


def train(model, optimizer):
    while True:
        model(torch.randn(2, 3, 8, 8)).sum().backward()
        optimizer.step()
        barrier.wait()


barrier = threading.Barrier(3)
for _ in range(3):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    threading.Thread(target=train, args=(model, optimizer)).start()
