"""Compare the time of batch norm's gradient in the data formats NXC and NCX.

    compare_data_formats.py                          the layers of ResNet-50
    compare_data_formats.py 8x40x40x96 4096x4x64     any layers, with the channels last

NXC stores the channels last, NCX second. Every result of onedsl and oneDNN is compared with the
float64 reference first. Then all calls of a layer are timed interleaved, on tensors out of cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import geometric_mean

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure

import onedsl
from onedsl import bench, testing

RESNET50 = [  # batch, height, width, channels
    *("8x112x112x64", "8x56x56x64", "8x56x56x256", "8x28x28x128", "8x28x28x512"),
    *("8x14x14x256", "8x14x14x1024", "8x7x7x512", "8x7x7x2048"),
]
NAMES = tuple(bench.BACKENDS)  # onedsl and oneDNN
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
COLORS = {"NXC": "#0072B2", "NCX": "#D55E00"}
Pair = dict[str, bench.Row]  # the rows of one layer and type, by format


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in text such as 8x40x40x96, three or more."""
    sizes = tuple(int(size) if size.isdecimal() else 0 for size in text.split("x"))
    if len(sizes) < 3 or 0 in sizes:
        raise argparse.ArgumentTypeError(f"must be three or more sizes, got {text!r}")
    return sizes


def compare(shape: tuple[int, ...], dtype: str, seconds: float) -> Pair:
    """Verify both formats in both backends, then time them interleaved."""
    nxc = testing.random_problem(shape, np.dtype(TYPES[dtype]))
    src, diff_dst = (np.moveaxis(array, -1, 1).copy() for array in nxc[:2])
    problems = {"NXC": nxc, "NCX": nxc._replace(src=src, diff_dst=diff_dst)}
    calls = {}
    for data_format, problem in problems.items():
        case = bench.Case("x".join(map(str, shape)), shape, dtype, data_format)
        found = bench.implementations(case, problem)
        calls[case] = {name: found[name] for name in (*NAMES, bench.TRIAD) if name in found}
        expected = testing.batch_norm_backward(
            *problem, epsilon=bench.EPSILON, data_format=onedsl.DataFormat(data_format)
        )
        for name in calls[case].keys() - {bench.TRIAD}:
            verify(f"{case} {name}", calls[case][name](), expected)
    return {row.data_format: row for row in bench.measure(calls, seconds)}


def verify(label: str, got: onedsl.BatchNormGradients, expected: tuple[object, ...]) -> None:
    """Exit if a gradient is wrong. oneDNN has a larger tolerance, because it sums in float32."""
    try:
        testing.assert_close(
            got, expected, backend="onednn" if label.endswith("oneDNN") else "native"
        )
    except AssertionError as error:
        raise SystemExit(f"{label}: {error}") from None


def ncx_over_nxc(pair: Pair, name: str) -> float:
    """Return an implementation's time in NCX over its time in NXC, NaN if it did not run."""
    return pair["NCX"].time(name) / pair["NXC"].time(name)


def conclusion(pairs: list[Pair]) -> str:
    """Return the geometric means of the ratios of the times."""
    parts = []
    for name in NAMES:
        ratios = [ratio for pair in pairs if (ratio := ncx_over_nxc(pair, name)) > 0]
        if ratios:
            parts.append(f"{geometric_mean(ratios):.1f} times ({name})")
    return f"NCX takes {' and '.join(parts)} as long as NXC (geometric mean)"


def draw(path: Path, pairs: list[Pair], notes: list[str]) -> None:
    """Draw a bar for each layer, implementation and format, in a panel for each type."""
    dtypes = list(dict.fromkeys(pair["NXC"].dtype for pair in pairs))
    height = max(5.0, 2.4 + 0.45 * len(pairs) / len(dtypes))
    figure = Figure(figsize=(13, height), layout="constrained")
    for axes, dtype in zip(
        figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0], dtypes, strict=True
    ):
        chosen = [pair for pair in pairs if pair["NXC"].dtype == dtype]
        for i, (name, data_format) in enumerate((n, f) for n in NAMES for f in COLORS):
            rows = [pair[data_format] for pair in chosen]
            # The bandwidth that a call would need to move each of its three tensors once.
            rates = [3e-9 * row.tensor_bytes / row.time(name) for row in rows]
            y = np.arange(len(rows)) + 0.2 * i
            color, faint = COLORS[data_format], 0.4 if name == "oneDNN" else 1.0
            label = f"{name}, {data_format}"
            axes.barh(y, rates, 0.18, color=color, alpha=faint, label=label)
        axes.set_yticks(np.arange(len(chosen)) + 0.3, [pair["NXC"].workload for pair in chosen])
        axes.set_title(dtype, loc="left")
        axes.set_xlabel("GB/s, each tensor counted once")
        axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("\n".join([conclusion(pairs), *notes]))
    figure.savefig(path, dpi=90)


def main() -> None:
    """Run the comparison, print a table and draw a picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", type=parse_shape, metavar="LAYER")
    parser.add_argument("--dtypes", nargs="+", choices=TYPES, default=[*TYPES])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each layer and type")
    parser.add_argument("--save", type=Path, default=Path("compare_data_formats.png"))
    options = parser.parse_args()
    print(bench.describe_machine())
    print(f"{'':24}{'onedsl, µs':^26}{'oneDNN, µs':^26}")
    print(f"{'layer (N, X, C)':18}{'type':6}" + 2 * f"{'NXC':>9}{'NCX':>9}{'ratio':>7} ")
    pairs = []
    for shape in options.layers or map(parse_shape, RESNET50):
        for dtype in options.dtypes:
            pair = compare(shape, dtype, options.seconds)
            pairs.append(pair)
            times = "".join(
                f"{1e6 * pair['NXC'].time(name):9,.0f}{1e6 * pair['NCX'].time(name):9,.0f}"
                f"{ncx_over_nxc(pair, name):7.2f} "
                for name in NAMES
            )
            print(f"{pair['NXC'].workload:18}{dtype:6}{times.replace('nan', '  -')}")
    print(f"Every result agrees with the float64 reference.\n{conclusion(pairs)}.")
    noisy = any(row.noisy for pair in pairs for row in pair.values())
    notes = ["Noisy: other programs used the CPUs."] if noisy else []
    for note in notes:
        print(note)
    draw(options.save, pairs, [bench.describe_machine(), *notes])
    print(f"Picture: {options.save}")


if __name__ == "__main__":
    main()
