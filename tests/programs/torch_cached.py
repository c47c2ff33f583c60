"""Compiles a model, which PyTorch may have cached, and trains it.

Prints whether it was cached, whether onedsl computes it, and results. Command line: the backend.
"""

import logging
import sys

import torch
from torch import nn
from torch._dynamo.utils import counters

logging.getLogger("onedsl.torch").setLevel(logging.INFO)
logging.basicConfig(format="%(message)s")
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
x = torch.randn(2, 3, 9, 9)
model = torch.compile(model, backend=sys.argv[1])
loss = model(x).square().sum()
loss.backward()
hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
with torch.profiler.profile(acc_events=True) as profile:
    model(x).square().sum().backward()
ours = any("onedsl" in event.key for event in profile.key_averages())
print(hits > 0, ours, f"{float(loss):.3f}", f"{float(next(model.parameters()).grad.norm()):.3f}")
