"""Times training steps as a user has them, and draws their parts: each figure is a process.

    python training_steps.py [--processes 3] [--json FILE] CASE...
    python training_steps.py --parts --json parts.json mobilenet_v2 mobilenet_v2:compiled
    python training_steps.py --draw parts.json [NETWORK...]

A case is NETWORK[:bf16][:contiguous][:compiled]; the default is float32, channels_last and eager.
The networks are mobilenet_v2, efficientnet_b0, resnet50, densenet121, unet (16 to 128 channels),
wide (four 1x1 convolutions of 64 to 128 channels), conv1d (1-D convolutions of signals) and mlp
(tables). Each step has 16 images of 128x128, 16 signals of 16,384 values, or 4,096 rows. Without a
case, all networks are timed, eager and compiled. This takes about an hour.

The kinds of an eager case are PyTorch as it is, PyTorch with huge pages (THP_MEM_ALLOC_ENABLE=1),
and onedsl as `enable()` leaves it. The kinds of a compiled case are inductor and the backend
"onedsl", both with huge pages. The processes of the kinds alternate. A process is repeated if other
programs used the CPUs. The time of a process is the mean of the fastest quarter of its steps,
because other programs, and other guests of a host, only add to it. The script prints the medians of
the processes: milliseconds of a step, page faults of a step, and peak memory; and the speed-up over
the first kind, with the range of single processes.

--ranks divides each batch over processes of DistributedDataParallel. --pin pins each of them to
OMP_NUM_THREADS cores.

--parts also times the parts of a step, by PyTorch's profiler, in further steps of each process. It
adds two kinds to eager cases: the network with `BatchNormAct2d` instead of each batch norm and the
ReLU, ReLU6 or SiLU after it, and the network without batch norm, whose time is the limit for every
batch norm. Compiled kernels contain several operations. Those with batch norm are one part, with
what is fused with it. --draw draws a file of measurements: a bar is as long as a step, and divided
as a profiled step is, which takes a little longer or shorter.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

NETWORKS = ["mobilenet_v2", "efficientnet_b0", "resnet50", "densenet121"]
NETWORKS += ["unet", "wide", "conv1d", "mlp"]
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
EAGER: dict[str, dict[str, str]] = {"PyTorch": {}, "PyTorch, huge pages": HUGE_PAGES, "enable": {}}
LIMITS = {"BatchNormAct2d": HUGE_PAGES, "no batch norm": HUGE_PAGES}
COMPILED = {"inductor": HUGE_PAGES, "onedsl": HUGE_PAGES}

TRIES = 4  # a process is repeated if other programs used CPUs meanwhile
TITLES = {"mobilenet_v2": "MobileNetV2", "resnet50": "ResNet-50"}
INPUTS = {"conv1d": (16, 1, 16384), "mlp": (4096, 64)}

# The parts of a step, by what the profiler calls them. An event belongs to the part of the
# outermost event that has a name of this table. Everything else is "rest".
ACTIVATIONS = "hardtanh|relu|threshold|clamp|silu|sigmoid|gelu"
PARTS = {
    "convolutions": r"aten::(conv\dd|convolution\w*|linear|addmm|mm|bmm)|ConvolutionBackward0"
    r"|onedsl::convolution_backward",  # PyTorch's, with another layout tag
    "batch norm": r"aten::(batch_norm|native_batch_norm_backward)",
    "fused batch norm": r"onedsl::\w+|BatchNorm\w*|\w*cpp_\w*batch_norm\w*",
    "activations": rf"aten::({ACTIVATIONS})\w*",
}


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

    class Level(nn.Module):
        def __init__(self, i: int, o: int, below: Any = None) -> None:
            super().__init__()
            self.first = nn.Sequential(*twice(i, o))
            if below is not None:
                up = nn.Upsample(scale_factor=2)
                self.below = nn.Sequential(nn.MaxPool2d(2), below, up)
                self.last = nn.Sequential(*twice(3 * o, o))

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            return self.last(torch.cat([x, self.below(x)], 1)) if hasattr(self, "below") else x

    def twice(i: int, o: int) -> list[nn.Module]:
        first = conv_bn(i, o, 3, activation=nn.ReLU())
        return [*first, *conv_bn(o, o, 3, activation=nn.ReLU())]

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
    elif name == "unet":
        bottom = Level(64, 128)
        layers, i = [Level(3, 16, Level(16, 32, Level(32, 64, bottom)))], 16
    elif name == "conv1d":
        layers, i = [], 1
        for o in (32, 32, 64, 64, 128, 128):
            conv = nn.Conv1d(i, o, 7, 2 if o > i > 1 else 1, 3, bias=False)
            layers += [conv, nn.BatchNorm1d(o), nn.ReLU()]
            i = o
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(i, 100))
    elif name == "mlp":
        layers, i = [], 64
        for o in (256, 256, 256, 256):
            layers += [nn.Linear(i, o, bias=False), nn.BatchNorm1d(o), nn.ReLU()]
            i = o
        return nn.Sequential(*layers, nn.Linear(i, 100))
    else:
        layers, i = [], 3
        for o in (64, 64, 128, 128):
            layers += conv_bn(i, o, activation=nn.ReLU())
            i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100))


def replace_batch_norms(net: nn.Module, kind: str) -> None:
    """Replace batch norms, and activations that follow them, as a kind of --parts needs it."""
    from torch import nn

    import onedsl.torch

    activations: dict[type, dict[str, Any]] = {nn.SiLU: {"activation": "silu"}}
    activations |= {nn.ReLU: {"activation": "relu"}}
    activations |= {nn.ReLU6: {"activation": "relu", "clip": 6.0}}
    layers = {
        nn.BatchNorm1d: onedsl.torch.BatchNormAct1d,
        nn.BatchNorm2d: onedsl.torch.BatchNormAct2d,
    }
    for sequence in [m for m in net.modules() if isinstance(m, nn.Sequential) and len(m)]:
        layer_and_next = [*zip(sequence, [*list(sequence)[1:], None], strict=True)]
        for k, (layer, after) in enumerate(layer_and_next):
            if type(layer) in layers and kind == "no batch norm":
                sequence[k] = nn.Identity()
            elif type(layer) in layers and type(after) in activations:
                options = activations[type(after)]
                sequence[k] = layers[type(layer)](layer.num_features, **options)
                sequence[k + 1] = nn.Identity()


def measure(case: str, kind: str, num_steps: int, parts: bool) -> None:
    """Run steps, and print a step's time, page faults, peak memory, and the times of its parts."""
    import torch

    name, *options = case.split(":")
    if kind in ("enable", *LIMITS):
        import onedsl.torch

        onedsl.torch.enable()  # before the first tensor
    torch.manual_seed(0)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))  # of torchrun
    images, *sizes = INPUTS.get(name, (16, 3, 128, 128))
    net, x = network(name), torch.randn(images // ranks, *sizes)
    if kind in LIMITS:
        replace_batch_norms(net, kind)
    if "contiguous" not in options and x.dim() == 4:
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    y = torch.randint(100, x.shape[:1])
    # Without batch norm, steps of another rate would soon end in numbers that are not finite.
    optimizer = torch.optim.SGD(net.parameters(), 0.0 if kind == "no batch norm" else 0.01)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net)
    if "compiled" in options:
        import torch._inductor.config

        torch._inductor.config.cpp.enable_kernel_profile = parts
        net = torch.compile(net, backend=kind)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()

    rows = []
    for _ in range(5 + num_steps):
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        rows.append(((time.perf_counter() - begin) * 1e3, faults))
    milliseconds, page_faults = zip(*rows[5:], strict=True)
    found: list[Any] = [statistics.mean(fastest(milliseconds)), statistics.median(page_faults)]
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    if parts:
        found.append(times_of_parts(step, num_steps))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found))
    if ranks > 1:
        torch.distributed.destroy_process_group()


def fastest(steps: Sequence[Any], time_of: Callable[[Any], float] | None = None) -> list[Any]:
    """Return the fastest quarter of steps, which are their times or have times."""
    return sorted(steps, key=time_of)[: max(1, len(steps) // 4)]


def times_of_parts(step: Callable[[], None], num_steps: int) -> dict[str, float]:
    """Return the mean milliseconds of each part, in the fastest quarter of profiled steps."""
    from torch.autograd.profiler import profile

    steps = []
    for _ in range(num_steps):
        with profile(use_kineto=False) as profiler:  # which starts in no time
            begin = time.perf_counter()
            step()
            milliseconds = (time.perf_counter() - begin) * 1e3
        found = dict.fromkeys(PARTS, 0.0)
        for event in profiler.function_events or ():
            parents = [event]
            while parents[-1].cpu_parent is not None:
                parents.append(parents[-1].cpu_parent)
            names = [part_of(each.name) for each in parents]
            if names[0] and not any(names[1:]):
                found[names[0]] += event.cpu_time_total / 1e3
        steps.append({**found, "rest": milliseconds - sum(found.values())})
    chosen = fastest(steps, lambda each: sum(each.values()))
    return {part: statistics.mean(each[part] for each in chosen) for part in steps[0]}


def part_of(name: str) -> str:
    """Return the part that an event of the profiler belongs to, or ""."""
    return next((part for part, pattern in PARTS.items() if re.fullmatch(pattern, name)), "")


def compare(case: str, options: argparse.Namespace) -> dict[str, list[list[Any]]]:
    """Time the kinds of a case in alternating processes, and print them."""
    from onedsl.bench import NoiseMonitor  # not in the processes that are timed

    parts = options.parts
    launcher = [sys.executable]
    if options.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(options.ranks)]
    kinds = COMPILED if "compiled" in case.split(":") else {**EAGER, **(LIMITS if parts else {})}
    found: dict[str, list[list[Any]]] = {kind: [] for kind in kinds}
    for kind in [*kinds] * options.processes:
        command = [__file__, case, "--measure", kind, "--steps", str(options.steps)]
        command += [f"--{name}" for name in ("parts", "pin") if getattr(options, name)]
        for _ in range(TRIES):
            monitor = NoiseMonitor()
            run = subprocess.run(
                [*launcher, *command],
                stdout=subprocess.PIPE,
                # The second variable hides the profiler's messages.
                env={**os.environ, **kinds[kind], "KINETO_LOG_LEVEL": "99"},
                check=True,
            )
            if not monitor.is_noisy(len(os.sched_getaffinity(0))):
                break
        else:
            message = f"{case} {kind}: other programs used the CPUs in each of {TRIES} processes"
            print(message, file=sys.stderr)
        found[kind].append(json.loads(run.stdout.splitlines()[-1]))
    first = [row[0] for row in next(iter(found.values()))]
    for kind, rows in found.items():
        columns = [*zip(*rows, strict=True)]
        ms, faults, peak = map(statistics.median, columns[:3])
        line = f"{case:26} {kind:20} {ms:8.1f} ms {faults:8.0f} faults {peak:6.0f} MB"
        times = columns[0]
        if [*times] != first:
            lowest, highest = min(first) / max(times), max(first) / min(times)
            speed_up = statistics.median(first) / ms
            line += f"  speed-up {speed_up:.2f} ({lowest:.2f} to {highest:.2f})"
        print(line, flush=True)
        if parts:
            shown = (f"{part} {value:.1f}" for part, value in medians_of_parts(rows).items())
            print(f"{'':26} {', '.join(shown)}", flush=True)
    return found


def medians_of_parts(rows: list[list[Any]]) -> dict[str, float]:
    """Return the median milliseconds of each part, without those that are absent."""
    medians = {part: statistics.median(row[3][part] for row in rows) for part in rows[0][3]}
    return {part: value for part, value in medians.items() if value}


def draw(file: Path, chosen: list[str]) -> None:
    """Draw the steps of each chosen network as stacked bars of their parts."""
    import matplotlib.pyplot as plt

    ((machine, cases),) = json.loads(file.read_text(encoding="utf-8")).items()
    labels = {
        ("", "PyTorch"): "PyTorch",
        ("", "PyTorch, huge pages"): "PyTorch, huge pages",
        ("", "enable"): "onedsl.torch.enable()",
        ("", "BatchNormAct2d"): "enable(), BatchNormAct2d",
        (":compiled", "inductor"): "compiled by inductor",
        (":compiled", "onedsl"): 'compiled, backend="onedsl"',
        ("", "no batch norm"): "no batch norm (limit)",
    }
    colors = {
        "convolutions": "0.65",
        "batch norm": "tab:orange",
        "fused batch norm": "tab:red",
        "activations": "tab:blue",
        "rest": "0.85",
    }
    names = {
        "fused batch norm": "batch norm with what is fused with it",
        "rest": "rest: additions, optimizer, loss, Python",
    }
    networks = [name for name in NETWORKS if name in cases and name in chosen]
    figure, axes = plt.subplots(
        1, len(networks), figsize=(5.5 * len(networks), 4), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[0], networks, strict=True):
        found = {
            label: cases.get(name + form, {}).get(kind) for (form, kind), label in labels.items()
        }
        bars = {label: rows for label, rows in found.items() if rows}
        for at, rows in enumerate(bars.values()):
            left, parts = 0.0, medians_of_parts(rows)
            scale = statistics.median(row[0] for row in rows) / sum(parts.values())
            for part, value in parts.items():
                label = names.get(part, part)
                axis.barh(at, value * scale, 0.8, left, color=colors[part], label=label)
                left += value * scale
            axis.text(left, at, f" {left:.0f}", va="center")
        axis.set_yticks(range(len(bars)), [*bars])
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.set_xlabel("milliseconds of a training step: shorter is faster")
        axis.set_title(TITLES.get(name, name))
    handles: dict[str, Any] = {}
    for axis in axes[0]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.suptitle(machine, fontsize=10)
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=3)
    figure.savefig(file.with_suffix(".png"), dpi=110)
    print(f"Picture: {file.with_suffix('.png')}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", action="store_true", help="also time the parts of a step")
    parser.add_argument("--ranks", type=int, default=1, help="processes of torchrun in each run")
    parser.add_argument("--pin", action="store_true", help="give each rank cores of its own")
    both = [*NETWORKS, *(f"{name}:compiled" for name in NETWORKS)]
    parser.add_argument("cases", nargs="*", default=both)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", type=Path, help="file to which the measurements are added")
    parser.add_argument("--machine", default="this machine", help="its name in the file")
    parser.add_argument("--draw", type=Path, help="file of measurements to draw")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [case for case in options.cases if case.partition(":")[0] not in NETWORKS]:
        parser.error(f"a network must be one of {', '.join(NETWORKS)}, got {unknown[0]}")
    if options.draw:
        draw(options.draw, options.cases)
    elif options.measure:
        if options.pin:
            rank, threads = (int(os.environ[name]) for name in ("LOCAL_RANK", "OMP_NUM_THREADS"))
            os.sched_setaffinity(0, range(threads * rank, threads * (rank + 1)))
        measure(options.cases[0], options.measure, options.steps, options.parts)
    else:
        found = {case: compare(case, options) for case in options.cases}
        if options.json:
            file = options.json
            known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            known[options.machine] = {**known.get(options.machine, {}), **found}
            file.write_text(json.dumps(known, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
