"""Compare the speed of batch norm's gradient in the data formats NXC and NCX.

    compare_data_formats.py                          the layers of ResNet-50
    compare_data_formats.py 8x40x40x96 4096x4x64     any layers, with the channels last

NXC stores the channels last, NCX second. Every result of onedsl and oneDNN is compared with the
float64 reference first. Then single calls of a layer are timed in random order, on tensors out of
cache: calls that allocate their results, and calls that write to given memory. The faster counts.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import geometric_mean
from typing import Literal

import numpy as np
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import onedsl
from onedsl import bench, testing

RESNET50 = [  # batch, height, width, channels
    *("8x112x112x64", "8x56x56x64", "8x56x56x256", "8x28x28x128", "8x28x28x512"),
    *("8x14x14x256", "8x14x14x1024", "8x7x7x512", "8x7x7x2048"),
]
NAMES = tuple(bench.BACKENDS)  # onedsl and oneDNN
TYPES = ("f32", "bf16", "f16")
OPACITY = {"NXC": 1.0, "NCX": 0.45}
Pair = dict[str, bench.Row]  # the rows of one layer and type, by format


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in text such as 8x40x40x96, three or more."""
    sizes = tuple(int(size) if size.isdecimal() else 0 for size in text.split("x"))
    if len(sizes) < 3 or 0 in sizes:
        raise argparse.ArgumentTypeError(f"must be three or more sizes, got {text!r}")
    return sizes


def parse_picture(text: str) -> Path:
    """Return the path of a picture that can be written."""
    path = Path(text)
    if path.suffix[1:] not in (known := FigureCanvasBase.get_supported_filetypes()):
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(known)}, got {text!r}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a writable file, got {text!r}")
    return path


def compare(shape: tuple[int, ...], dtype: Literal["f32", "bf16", "f16"], seconds: float) -> Pair:
    """Verify both formats in both backends, then time them."""
    nxc = testing.random_problem(shape, dtype)
    src, diff_dst = (np.moveaxis(array, -1, 1).copy() for array in nxc[:2])
    problems = {"NXC": nxc, "NCX": nxc._replace(src=src, diff_dst=diff_dst)}
    calls = {}
    for data_format, problem in problems.items():
        case = bench.Case("x".join(map(str, shape)), shape, dtype, data_format)
        found = bench.implementations(case, problem)
        calls[case] = {name: call for name, call in found.items() if name.startswith(NAMES)}
        expected = testing.batch_norm_backward(
            *problem, epsilon=bench.EPSILON, data_format=onedsl.DataFormat(data_format)
        )
        for name, call in calls[case].items():
            verify(f"{case} {name}", call(), expected)
    return {row.data_format: row for row in bench.measure(calls, seconds)}


def verify(label: str, got: onedsl.BatchNormGradients, expected: tuple[object, ...]) -> None:
    """Exit if a gradient is wrong. oneDNN has a larger tolerance, because it sums in float32."""
    try:
        testing.assert_close(got, expected, backend="onednn" if "oneDNN" in label else "auto")
    except AssertionError as error:
        raise SystemExit(f"{label}: {error}") from None


def relative_speed(pair: Pair, name: str) -> float:
    """Return the time in NXC over the time in NCX, NaN if an implementation did not run."""
    return pair["NXC"].time(name) / pair["NCX"].time(name)


def is_noisy(pair: Pair) -> bool:
    """Return whether other programs disturbed a measurement."""
    return any(row.noisy for row in pair.values())


def conclusion(pairs: list[Pair]) -> str:
    """Return the geometric means of the relative speeds, without noisy rows."""
    quiet = [pair for pair in pairs if not is_noisy(pair)]
    parts = []
    for name in NAMES:
        ratios = [ratio for pair in quiet if (ratio := relative_speed(pair, name)) > 0]
        if ratios:
            parts.append(f"{geometric_mean(ratios):.1f} times ({name})")
    if not parts:
        return "No conclusion: other programs used the CPUs in every row"
    note = "" if len(quiet) == len(pairs) else ", without noisy rows"
    return f"NCX is {' and '.join(parts)} as fast as NXC (geometric mean{note})"


def draw(path: Path, pairs: list[Pair], machine: str) -> None:
    """Draw a bar for each layer, implementation and format, in a panel for each type.

    Bars of noisy rows are dotted outlines.
    """
    dtypes = list(dict.fromkeys(pair["NXC"].dtype for pair in pairs))
    height = max(5.0, 2.4 + 0.45 * len(pairs) / len(dtypes))
    figure = Figure(figsize=(13, height), layout="constrained")
    all_axes = figure.subplots(1, len(dtypes), sharex=True, sharey=True, squeeze=False)[0]
    for axes, dtype in zip(all_axes, dtypes, strict=True):
        chosen = [pair for pair in pairs if pair["NXC"].dtype == dtype]
        for i, (name, data_format) in enumerate((n, f) for n in NAMES for f in OPACITY):
            rows = [pair[data_format] for pair in chosen]
            # The bandwidth that a call would need to move each of its three tensors once.
            rates = [3e-9 * row.tensor_bytes / row.time(name) for row in rows]
            y = np.arange(len(rows)) + 0.2 * i
            color, opacity = bench.COLORS[name], OPACITY[data_format]
            bars = axes.barh(y, rates, 0.18, color=color, alpha=opacity)
            for bar, pair in zip(bars, chosen, strict=True):
                if is_noisy(pair):
                    bar.set(fill=False, edgecolor=color, linestyle=":")
        for i, pair in enumerate(chosen):
            if is_noisy(pair):
                axes.annotate(
                    "noisy", (1, i + 0.3), xycoords=axes.get_yaxis_transform(), ha="right"
                )
        axes.set_yticks(np.arange(len(chosen)) + 0.3, [pair["NXC"].workload for pair in chosen])
        axes.set_title(dtype, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    all_axes[len(dtypes) // 2].set_xlabel("GB/s, each tensor counted once: longer is faster")
    handles = [
        Patch(color=bench.COLORS[name], alpha=opacity, label=f"{name}, {data_format}")
        for name in NAMES
        for data_format, opacity in OPACITY.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{conclusion(pairs)}\n{machine}")
    figure.savefig(path, dpi=90)


def main() -> None:
    """Run the comparison, print a table and draw a picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", type=parse_shape, metavar="LAYER")
    parser.add_argument("--dtypes", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each layer and type")
    parser.add_argument("--save", type=parse_picture, default="compare_data_formats.png")
    options = parser.parse_args()
    print(bench.describe_machine())
    print(f"{'':24}{'onedsl, us':^27}{'oneDNN, us':^27}")
    print(f"{'layer (N, X, C)':18}{'type':6}" + 2 * f"{'NXC':>9}{'NCX':>9}{'NXC/NCX':>8} ")
    pairs = []
    for shape in options.layers or map(parse_shape, RESNET50):
        for dtype in options.dtypes:
            pair = compare(shape, dtype, options.seconds)
            pairs.append(pair)
            times = "".join(
                f"{1e6 * pair['NXC'].time(name):9,.0f}{1e6 * pair['NCX'].time(name):9,.0f}"
                f"{relative_speed(pair, name):8.2f} "
                for name in NAMES
            )
            note = "noisy" if is_noisy(pair) else ""
            print(f"{pair['NXC'].workload:18}{dtype:6}{times.replace('nan', '  -')}{note}".rstrip())
    print(f"Every result agrees with the float64 reference.\n{conclusion(pairs)}.")
    draw(options.save, pairs, bench.describe_machine())
    print(f"Picture: {options.save}")


if __name__ == "__main__":
    main()
