"""Enables and disables onedsl's kernels while four threads train, also for the first time."""

import threading

import torch
from torch import nn

import onedsl.torch

torch.set_num_threads(1)
src = torch.randn(4, 5, 6, 6)
errors = []
stop = threading.Event()
started = threading.Barrier(5)


def train():
    started.wait()
    try:
        while not stop.is_set():
            x = src.clone().requires_grad_()
            nn.BatchNorm2d(5)(x).square().sum().backward()
            assert x.grad.isfinite().all()
    except BaseException as error:
        errors.append(error)
        raise


threads = [threading.Thread(target=train) for _ in range(4)]
for thread in threads:
    thread.start()
started.wait()
for _ in range(500):
    onedsl.torch.enable(huge_pages=False)
    onedsl.torch.disable()
    with onedsl.torch.enable(huge_pages=False):
        src.sum()
stop.set()
for thread in threads:
    thread.join()
if not errors:
    print("trained")
