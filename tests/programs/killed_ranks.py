"""Kills one of three training ranks at a random time. The others must raise an error.

Command line: number of runs, seed.
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import ranks
import torch._dynamo  # each child would import it in its first step
from processes import wait
from torch_helpers import nn, onedsl_torch, torch

runs, seed = int(sys.argv[1]), int(sys.argv[2])
WORLD, TIMEOUT, GRACE = 3, 10.0, 10.0
LATEST = 0.3  # seconds after the first steps
GOT_AN_ERROR = 3

torch.set_num_threads(1)  # no threads may exist before a fork


def train(rank: int, store: str) -> None:
    """Train until an error."""
    ranks.init(rank, WORLD, store, TIMEOUT)
    torch.manual_seed(rank)
    layers = [nn.Sequential(nn.Conv2d(4, 4, 3), onedsl_torch.SyncBatchNorm(4)) for _ in range(3)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        optimizer.zero_grad()
        model(torch.randn(2, 4, 9, 9)).square().mean().backward()
        optimizer.step()
        Path(f"{store}{rank}").touch()


def start(rank: int, store: str) -> int:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gloo's messages about lost connections
        try:
            train(rank, store)
        except RuntimeError:  # base class of torch.distributed's errors
            sys.exit(GOT_AN_ERROR)
    return child


numbers = random.Random(seed)
hangs = 0
waits = []
for run in range(runs):
    with tempfile.TemporaryDirectory() as folder:
        children = [start(rank, f"{folder}/store") for rank in range(WORLD)]
        while not all(Path(f"{folder}/store{rank}").exists() for rank in range(WORLD)):
            if ended := [child for child in children if os.waitpid(child, os.WNOHANG)[0]]:
                sys.exit(f"run {run}: {len(ended)} ended before the kill")
            time.sleep(0.002)
        time.sleep(numbers.uniform(0, LATEST))
        victim = children.pop(numbers.randrange(WORLD))
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        os.waitpid(victim, 0)
        codes = [wait(child, TIMEOUT + GRACE) for child in children]
    waits.append(time.monotonic() - killed)
    hangs += codes.count(None)
    if set(codes) - {None, GOT_AN_ERROR}:
        sys.exit(f"run {run}: the others ended with {codes}")
print(f"{runs} runs, {hangs} hangs; seconds from the kill to the end of all others:")
print(f"median {statistics.median(waits):.2f}, most {max(waits):.2f}; timeout {TIMEOUT:g}")
sys.exit(hangs > 0)
