"""Runs loops that keep small things beside large tensors, and prints how the process grows.

Command line: the loops, separated by commas, and the setting: "PyTorch", "huge pages" (PyTorch's)
or "enable" (onedsl's). Each loop has a process of its own, forked before the first tensor. A line
for each has megabytes above the start: the peak, and what is resident after 50, 100 and 200 steps
of the loop, or after all of its steps, if they are fewer. With forked workers, it has the peak of
the memory of all processes together (shared pages count once).
"""

import os
import random
import sys
from pathlib import Path

LOOPS, SETTING = sys.argv[1:]
if SETTING == "huge pages":
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from processes import peak, resident  # noqa: E402
from torch import nn  # noqa: E402

import onedsl.torch  # noqa: E402

MB = 1 << 20
kept = []
random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(2)


def megabytes(count, make=torch.ones):
    return make(count * MB // 4)


def zeros():
    """Of 12 tensors of 180 MB, 20 numbers each are kept."""
    for _ in range(12):
        kept.append(megabytes(180, torch.zeros)[:20].clone())
        yield


def tensors():
    """Of 12 tensors of 48 MB, 90 numbers each are kept."""
    for _ in range(12):
        kept.append(megabytes(48)[:90].clone())
        yield


def sizes():
    """Tensors of different sizes alternate."""
    for i in range(12):
        large, small = megabytes((140, 90)[i % 2]), megabytes(40)
        kept.append(large[:35] + small[:35])
        del large, small
        yield


def batches():
    """The next batch is made before the last one is freed."""
    batch = megabytes(60)
    for _ in range(12):
        following = megabytes(random.randint(60, 110))
        kept.append(batch[:50].clone())
        batch = following
        yield


def sparse():
    """One element of an array of NumPy is written, after a step."""
    step(network())
    for _ in range(4):
        array = np.zeros(150 * MB // 4, np.float32)
        array[len(array) // 2] = 1
        kept.append(array[0])
        yield


def network(channels=32, blocks=4):
    layers, i = [], 3
    for _ in range(blocks):
        layers += [nn.Conv2d(i, channels, 1), nn.BatchNorm2d(channels), nn.ReLU()]
        i = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 10))


def step(model, batch=16, size=64):
    loss = nn.functional.cross_entropy(
        model(torch.randn(batch, 3, size, size)), torch.randint(10, (batch,))
    )
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=0.01)
    return loss.detach()


def with_hooks(sizes):
    """Hooks keep a mean of each layer's results, for 200 steps."""
    model = network(64, 6)
    for layer in model:
        layer.register_forward_hook(lambda layer, inputs, result: kept.append(result.mean()))
    for i in range(200):
        step(model, *sizes(i))
        yield


def hooks():
    return with_hooks(lambda i: (8, 64))


def hooks_of_sizes():
    return with_hooks(lambda i: (8 + i % 5, 56 + 8 * (i % 3)))


def statistics():
    """The running statistics of each step are kept."""
    model = network(64, 6)
    for _ in range(60):
        step(model)
        kept.append([buffer.clone() for buffer in model.buffers()])
        yield


def random_sizes():
    """Batches and images of random sizes; the losses are kept."""
    model = network(64)
    for _ in range(60):
        kept.append(step(model, random.randint(4, 24), random.randrange(32, 97, 8)))
        yield


def alone():
    """Nothing is kept."""
    model = network(64, 6)
    for _ in range(60):
        step(model)
        yield


def small():
    """Thousands of small tensors are kept."""
    for i in range(40):
        kept.extend(torch.ones(1 + j % 900) for j in range(1000))
        megabytes(2 + i % 29)
        yield


def middle():
    """Tensors of 2 to 30 MB are made and freed."""
    live = []
    for _ in range(200):
        live.append(megabytes(random.randint(2, 30)))
        if len(live) > 6:
            kept.append(live.pop(random.randrange(6))[:10].clone())
        yield


class Data(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return megabytes(self.count) * index


def workers(count):
    """Training and validation have two forked workers each."""
    model = network()
    for _ in range(2):
        for mode in "train", "validate":
            loader = torch.utils.data.DataLoader(Data(count), batch_size=None, num_workers=2)
            for batch in loader:
                kept.append(batch[:5].clone())
                if mode == "train":
                    kept.append(step(model, 8))
                yield


def workers_21():
    return workers(21)


def workers_50():
    return workers(50)


def all_processes():
    """Return the proportional memory of this process and of its children."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = ["self", *(pid for task in tasks for pid in task.read_text().split())]
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if "Pss:" in line)
    return total * 1024


def measure(loop):
    """Run a loop, and print how the process grows."""
    if SETTING == "enable":
        onedsl.torch.enable()
    torch.ones(1)
    step(network(4, 1), 2, 8)  # libraries are loaded
    forks = loop.startswith("workers")
    start = all_processes() if forks else resident()
    highest, after = 0, {}
    for number, _ in enumerate(globals()[loop](), 1):
        if forks:
            highest = max(highest, all_processes())
        if number in (50, 100, 200):
            after[number] = resident() - start
    after = list(after.values()) or [resident() - start]
    highest = (highest if forks else peak()) - start
    print(*(round(n / MB) for n in (highest, *after)), flush=True)


for loop in LOOPS.split(","):
    if (child := os.fork()) == 0:
        measure(loop)
        os._exit(0)  # Python's takes a second
    os.waitpid(child, 0)
