"""Times training steps as a user has them, and draws them: each figure is a process.

    python training_steps.py [--processes 3] [--json FILE] CASE...
    python training_steps.py --draw training_steps.json

A case is NETWORK[:bf16][:contiguous][:compiled]; the default is float32, channels_last and eager.
Networks: mobilenet_v2, efficientnet_b0, resnet50, densenet121 and wide (four 1x1 convolutions of 64
to 128 channels), with 16 images of 128 x 128. Without a case, all networks are timed, eager and
compiled. This takes more than half an hour.

The kinds of an eager case are PyTorch as it is, PyTorch with huge pages (THP_MEM_ALLOC_ENABLE=1),
and onedsl as `enable()` leaves it. The kinds of a compiled case are inductor and the backend
"onedsl", both with huge pages. The processes of the kinds alternate. The script prints their
medians: milliseconds of a step, page faults of a step, and peak memory; and the speed-up over the
first kind, with the range of single processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

NETWORKS = ("mobilenet_v2", "efficientnet_b0", "resnet50", "densenet121", "wide")
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
EAGER: dict[str, dict[str, str]] = {"PyTorch": {}, "PyTorch, huge pages": HUGE_PAGES, "enable": {}}
COMPILED = {"inductor": HUGE_PAGES, "onedsl": HUGE_PAGES}


def conv_bn(
    i: int,
    o: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> list[nn.Module]:
    """Return a convolution, a batch norm and an activation."""
    from torch import nn

    conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(o), *([activation] if activation else [])]


def network(name: str) -> nn.Module:
    """Return a network as its paper defines it, with 100 classes."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, body: Any, shortcut: Any = None, after: Any = None) -> None:
            super().__init__()
            self.body = nn.Sequential(*body)
            self.shortcut = nn.Sequential(*(shortcut or ()))
            self.after = after or nn.Identity()

        def forward(self, x: Any) -> Any:
            return self.after(self.body(x) + self.shortcut(x))

    class Excitation(nn.Module):
        def __init__(self, channels: int, squeezed: int) -> None:
            super().__init__()
            squeeze, excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
            self.scale = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), squeeze, nn.SiLU(), excite, nn.Sigmoid()
            )

        def forward(self, x: Any) -> Any:
            return x * self.scale(x)

    class Dense(nn.Module):
        def __init__(self, channels: int, growth: int = 32) -> None:
            super().__init__()
            first = nn.Conv2d(channels, 4 * growth, 1, bias=False)
            second = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
            norms = nn.BatchNorm2d(channels), nn.BatchNorm2d(4 * growth)
            self.body = nn.Sequential(norms[0], nn.ReLU(), first, norms[1], nn.ReLU(), second)

        def forward(self, x: Any) -> Any:
            return torch.cat([x, self.body(x)], 1)

    def inverted(
        i: int, o: int, expand: int, kernel: int, stride: int, activation: Any, excite: bool
    ) -> nn.Module:
        h = i * expand
        body = conv_bn(i, h, activation=activation()) if expand > 1 else []
        body += conv_bn(h, h, kernel, stride, h, activation())
        body += [Excitation(h, max(1, i // 4))] if excite else []
        body += conv_bn(h, o)
        return Residual(body) if stride == 1 and i == o else nn.Sequential(*body)

    if name in ("mobilenet_v2", "efficientnet_b0"):
        excite = name == "efficientnet_b0"
        activation = nn.SiLU if excite else nn.ReLU6
        rows = {  # expand, channels, repeats, stride, kernel
            False: "1 16 1 1 3|6 24 2 2 3|6 32 3 2 3|6 64 4 2 3|6 96 3 1 3|6 160 3 2 3|6 320 1 1 3",
            True: "1 16 1 1 3|6 24 2 2 3|6 40 2 2 5|6 80 3 2 3|6 112 3 1 5|6 192 4 2 5|6 320 1 1 3",
        }[excite]
        layers, i = conv_bn(3, 32, 3, 2, activation=activation()), 32
        for row in rows.split("|"):
            expand, o, repeats, stride, kernel = map(int, row.split())
            for k in range(repeats):
                first = stride if k == 0 else 1
                layers.append(inverted(i, o, expand, kernel, first, activation, excite))
                i = o
        layers += conv_bn(i, 1280, activation=activation())
        i = 1280
    elif name == "resnet50":
        layers = [*conv_bn(3, 64, 7, 2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
        i = 64
        for width, repeats, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for k in range(repeats):
                s, o = stride if k == 0 else 1, 4 * width
                body = conv_bn(i, width, activation=nn.ReLU())
                body += conv_bn(width, width, 3, s, activation=nn.ReLU()) + conv_bn(width, o)
                shortcut = conv_bn(i, o, 1, s) if k == 0 else None
                layers.append(Residual(body, shortcut, nn.ReLU()))
                i = o
    elif name == "densenet121":
        layers = [*conv_bn(3, 64, 7, 2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
        i = 64
        for number, repeats in enumerate((6, 12, 24, 16)):
            if number:
                half = nn.Conv2d(i, i // 2, 1, bias=False)
                layers += [nn.BatchNorm2d(i), nn.ReLU(), half, nn.AvgPool2d(2)]
                i //= 2
            for _ in range(repeats):
                layers.append(Dense(i))
                i += 32
        layers += [nn.BatchNorm2d(i), nn.ReLU()]
    else:
        layers, i = [], 3
        for o in (64, 64, 128, 128):
            layers += conv_bn(i, o, activation=nn.ReLU())
            i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100))


def measure(case: str, kind: str, num_steps: int) -> None:
    """Run steps, and print their medians."""
    import torch

    name, *options = case.split(":")
    if kind == "enable":
        import onedsl.torch

        onedsl.torch.enable()  # before the first tensor
    torch.manual_seed(0)
    form = torch.contiguous_format if "contiguous" in options else torch.channels_last
    net = network(name).to(memory_format=form)
    x, y = torch.randn(16, 3, 128, 128).contiguous(memory_format=form), torch.randint(100, (16,))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    model = torch.compile(net, backend=kind) if "compiled" in options else net
    rows = []
    for _ in range(6 + num_steps):
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        rows.append(((time.perf_counter() - begin) * 1e3, faults))
    medians = map(statistics.median, zip(*rows[6:], strict=True))
    print(json.dumps([*medians, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10]))


def compare(case: str, processes: int, num_steps: int) -> dict[str, list[list[float]]]:
    """Time the kinds of a case in alternating processes, and print them."""
    kinds = COMPILED if "compiled" in case.split(":") else EAGER
    found: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for kind in [*kinds] * processes:
        command = [__file__, case, "--measure", kind, "--steps", str(num_steps)]
        run = subprocess.run(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            env={**os.environ, **kinds[kind]},
            check=True,
        )
        found[kind].append(json.loads(run.stdout.splitlines()[-1]))
    first = [row[0] for row in next(iter(found.values()))]
    for kind, rows in found.items():
        ms, faults, peak = (statistics.median(column) for column in zip(*rows, strict=True))
        line = f"{case:26} {kind:20} {ms:8.1f} ms {faults:8.0f} faults {peak:6.0f} MB"
        times = [row[0] for row in rows]
        if times != first:
            lowest, highest = min(first) / max(times), max(first) / min(times)
            speed_up = statistics.median(first) / ms
            line += f"  speed-up {speed_up:.2f} ({lowest:.2f} to {highest:.2f})"
        print(line, flush=True)
    return found


def draw(file: Path) -> None:
    """Draw the speeds of a file of measurements, by network, as bars."""
    import matplotlib.pyplot as plt

    machines = json.loads(file.read_text(encoding="utf-8"))
    kinds = {
        ("", "PyTorch"): ("PyTorch, eager", "0.8"),
        ("", "PyTorch, huge pages"): ("PyTorch with huge pages", "0.6"),
        ("", "enable"): ("onedsl.torch.enable()", "tab:orange"),
        (":compiled", "inductor"): ("inductor, compiled", "0.4"),
        (":compiled", "onedsl"): ('backend="onedsl", compiled', "tab:red"),
    }
    figure, axes = plt.subplots(
        1, len(machines), figsize=(5 * len(machines), 4.6), layout="constrained", squeeze=False
    )
    labels: dict[str, Any] = {}
    for axis, (machine, cases) in zip(axes[0], machines.items(), strict=True):
        at, ticks = 0, []
        for name in (name for name in NETWORKS if name in cases):
            of_pytorch = statistics.median(row[0] for row in cases[name]["PyTorch"])
            begin = at
            for (form, kind), (label, color) in kinds.items():
                if rows := cases.get(name + form, {}).get(kind):
                    speed = of_pytorch / statistics.median(row[0] for row in rows)
                    labels[label] = axis.barh(at, speed, 0.9, color=color)
                    axis.text(speed + 0.02, at, f"{speed:.2f}", va="center", fontsize=8)
                    at += 1
            ticks.append(((begin + at - 1) / 2, name))
            at += 1
        axis.set_yticks(*zip(*ticks, strict=True))
        axis.invert_yaxis()
        axis.set_xlim(0, 2)
        axis.set_xlabel("training steps per second, PyTorch eager = 1")
        axis.set_title(machine, fontsize=10)
    ordered = [label for label, _ in kinds.values() if label in labels]
    figure.legend(
        [labels[label] for label in ordered], ordered, loc="outside lower center", ncols=3
    )
    figure.savefig(file.with_suffix(".png"), dpi=110)
    print(f"Picture: {file.with_suffix('.png')}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    both = [*NETWORKS, *(f"{name}:compiled" for name in NETWORKS)]
    parser.add_argument("cases", nargs="*", default=both)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path, help="file to which the measurements are written")
    parser.add_argument("--machine", default="this machine", help="its name in the file")
    parser.add_argument("--draw", type=Path, help="file of measurements to draw")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [case for case in options.cases if case.partition(":")[0] not in NETWORKS]:
        parser.error(f"a network must be one of {', '.join(NETWORKS)}, got {unknown[0]}")
    if options.draw:
        draw(options.draw)
    elif options.measure:
        measure(options.cases[0], options.measure, options.steps)
    else:
        found = {case: compare(case, options.processes, options.steps) for case in options.cases}
        if options.json:
            text = json.dumps({options.machine: found}, indent=1)
            options.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
