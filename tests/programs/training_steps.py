"""Times training steps as a user has them: each figure is a process, and kinds alternate.

    python tests/programs/training_steps.py [--processes 5] [--steps 16] CASE...

A case is NETWORK[:bf16][:contiguous][:compiled]; the default is float32, channels_last and eager.
Networks: mobilenet_v2, resnet50, densenet121, efficientnet_b0, with 16 images of 128 x 128.

The kinds of a case are PyTorch and onedsl (`enable()`, or the backend), each as it is and with
memory kept. It prints the medians of their processes: milliseconds of a step, page faults of a
step, and peak memory, and by kind the speed-up over PyTorch of the same kind, with the range of
single processes.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

KINDS = ("PyTorch", "onedsl", "PyTorch, kept", "onedsl, kept")


def conv_bn(i, o, kernel=1, stride=1, groups=1, activation=None):
    from torch import nn

    conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(o), *([activation] if activation else [])]


def network(name):
    """Return a network as its paper defines it, with 100 classes."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, body, shortcut=None, after=None):
            super().__init__()
            self.body = nn.Sequential(*body)
            self.shortcut = nn.Sequential(*(shortcut or ()))
            self.after = after or nn.Identity()

        def forward(self, x):
            return self.after(self.body(x) + self.shortcut(x))

    class Excitation(nn.Module):
        def __init__(self, channels, squeezed):
            super().__init__()
            squeeze, excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
            self.scale = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), squeeze, nn.SiLU(), excite, nn.Sigmoid()
            )

        def forward(self, x):
            return x * self.scale(x)

    class Dense(nn.Module):
        def __init__(self, channels, growth=32):
            super().__init__()
            first = nn.Conv2d(channels, 4 * growth, 1, bias=False)
            second = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
            norms = nn.BatchNorm2d(channels), nn.BatchNorm2d(4 * growth)
            self.body = nn.Sequential(norms[0], nn.ReLU(), first, norms[1], nn.ReLU(), second)

        def forward(self, x):
            return torch.cat([x, self.body(x)], 1)

    def inverted(i, o, expand, kernel, stride, activation, excite):
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
        raise SystemExit(f"unknown network {name}")
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100))


def measure(case, kind, num_steps):
    """Run steps, and print their medians."""
    name, *options = case.split(":")
    if kind.endswith("kept"):
        import onedsl

        assert onedsl.keep_memory(), "malloc is not glibc's, or set by the environment"
    import torch

    torch.manual_seed(0)
    form = torch.contiguous_format if "contiguous" in options else torch.channels_last
    net = network(name).to(memory_format=form)
    x, y = torch.randn(16, 3, 128, 128).contiguous(memory_format=form), torch.randint(100, (16,))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    ours, model = kind.startswith("onedsl"), net
    if "compiled" in options:
        model = torch.compile(net, backend="onedsl" if ours else "inductor")
    elif ours:
        import onedsl.torch

        onedsl.torch.enable()
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.cases[0], options.measure, options.steps)
        return
    for case in options.cases:
        found = {kind: [] for kind in KINDS}
        for kind in KINDS * options.processes:
            command = [__file__, case, "--measure", kind, "--steps", str(options.steps)]
            run = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True)
            found[kind].append(json.loads(run.stdout.splitlines()[-1]))
        for kind, rows in found.items():
            ms, faults, peak = (statistics.median(column) for column in zip(*rows, strict=True))
            line = f"{case:32} {kind:14} {ms:8.1f} ms {faults:8.0f} faults {peak:6.0f} MB"
            if kind.startswith("onedsl"):
                of_pytorch = [row[0] for row in found[kind.replace("onedsl", "PyTorch")]]
                lowest = min(of_pytorch) / max(row[0] for row in rows)
                highest = max(of_pytorch) / min(row[0] for row in rows)
                speed_up = statistics.median(of_pytorch) / ms
                line += f"  speed-up {speed_up:.2f} ({lowest:.2f} to {highest:.2f})"
            print(line, flush=True)


if __name__ == "__main__":
    main()
