"""Show what a data format costs: NXC (channels last) against NCX (channels second).

The layers are ResNet-50's, and some on photographs, in every data type. Each result is checked
against the float64 reference first; then onedsl's kernels and oneDNN's are timed in both formats.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ml_dtypes
import numpy as np

import onedsl
from onedsl import bench, testing
from onedsl.bench import arguments
from onedsl.bench.plot import BLUE, VERMILION, Mark, plot
from onedsl.bench.table import Column, console, microseconds, progress, ratio, table

Gradients = onedsl.BatchNormGradients
Pair = tuple[bench.Row, bench.Row]  # one layer in one type: in NXC, and in NCX
PHOTOS, RESNET50 = "photos", "resnet50"
SHAPES = {  # channels, then height and width
    PHOTOS: "3x208 12x104 48x104",
    RESNET50: "64x112 64x56 256x56 128x56 128x28 512x28 256x28 256x14 1024x14 512x14 512x7 2048x7",
}
LAYERS = [f"{kind}-{shape}" for kind, shapes in SHAPES.items() for shape in shapes.split()]
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
SECONDS = 0.3  # of timing for each layer and type
MARKS = {
    f"{who} {data_format}": Mark(f"{who}, {data_format}", colour, shape, offset)
    for who, shape, offset in (("onedsl", "o", -0.17), ("oneDNN", "D", 0.17))
    for data_format, colour in (("NXC", BLUE), ("NCX", VERMILION))
}


def photographs(channels: int, size: int) -> testing.Problem:
    """Cut photographs into squares, with patches for channels, as a first convolution sees them."""
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    photos = np.stack(load_sample_images().images).astype(np.float32) / 128 - 1
    side = round((channels / 3) ** 0.5)
    step = max(1, side // 2)
    windows = np.lib.stride_tricks.sliding_window_view(photos, (side, side), (1, 2))
    patches = windows[:, ::step, ::step]
    corners = np.ndindex(patches.shape[1] // size, patches.shape[2] // size)
    squares = [patches[:, y * size :, x * size :][:, :size, :size] for y, x in corners]
    src = np.concatenate(squares).reshape(-1, size, size, channels)
    gamma = np.linspace(0.5, 1.5, channels, dtype=np.float32)
    dst = testing.batch_norm(src, gamma, epsilon=bench.EPSILON)
    diff_dst = np.maximum(dst, 0).astype(np.float32)  # of the loss sum(relu(dst) ** 2) / 2
    return testing.Problem(src, diff_dst, src.mean((0, 1, 2)), src.var((0, 1, 2)), gamma)


def compare(layer: str, dtype: str, wide: testing.Problem) -> Pair:
    """Verify both formats in both backends, then time them in turns."""
    narrow = DTYPES[dtype]
    nxc = wide._replace(src=wide.src.astype(narrow), diff_dst=wide.diff_dst.astype(narrow))
    src, diff_dst = (np.moveaxis(array, -1, 1).copy() for array in nxc[:2])
    ncx = nxc._replace(src=src, diff_dst=diff_dst)
    expected = testing.batch_norm_backward(*nxc, epsilon=bench.EPSILON)
    calls = {}
    for data_format, problem in (("NXC", nxc), ("NCX", ncx)):
        case = bench.Case(layer, src.shape, dtype, data_format)
        memory = bench.memory(case, problem)
        every_call = bench.onedsl_calls(case, memory)
        compared = {who: every_call[who] for who in bench.BACKENDS if who in every_call}
        calls[case] = compared | {bench.TRIAD: bench.triad_call(memory)}
        for who, call in compared.items():
            gradients = call()
            if data_format == "NCX":
                gradients = gradients._replace(diff_src=np.moveaxis(gradients.diff_src, 1, -1))
            verify(f"{layer} {dtype} {data_format} {who}", gradients, expected)
    in_nxc, in_ncx = bench.measure(calls, SECONDS)
    return in_nxc, in_ncx


def verify(what: str, gradients: Gradients, expected: Gradients) -> None:
    """Stop if a gradient is wrong; oneDNN gets more, because it adds long sums in float32."""
    terms = gradients.diff_src.size // gradients.diff_beta.size
    rounding = min(terms * 2.0**-24, 2.0**-8) if what.endswith("oneDNN") else 0
    for name, got, wanted in zip(gradients._fields, gradients, expected, strict=True):
        allowed = testing.TOLERANCES if name == "diff_src" else testing.SUM_TOLERANCES
        tolerance = max(allowed[onedsl.TensorSpec.of(got).dtype], rounding)
        error = testing.relative_l2(got, wanted)
        if not error <= tolerance:
            sys.exit(f"{what}: {name} is off by {error:.2g} (relative L2), over {tolerance:.2g}")


def cost(pair: Pair, who: str) -> float:
    """Give NCX's time over NXC's."""
    return pair[1].time(who) / pair[0].time(who)


def finding(pairs: Sequence[Pair]) -> str:
    """Put into one sentence what NCX costs."""
    costs = {who: [cost(p, who) for p in pairs if p[0].ran(who)] for who in bench.BACKENDS}
    parts = [f"{bench.geometric_mean(c):.1f} ({who})" for who, c in costs.items() if c]
    return f"NCX takes {' and '.join(parts)} times NXC's time"


def columns(who: str) -> list[Column[Pair]]:
    """Show what a contender took."""
    return [
        Column(f"{who}\nNXC", lambda pair: microseconds(pair[0].time(who))),
        Column(f"{who}\nNCX", lambda pair: microseconds(pair[1].time(who))),
        Column("NCX\n/NXC", lambda pair: ratio(cost(pair, who))),
    ]


def main() -> None:
    """Run the comparison, and print and draw what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", **arguments.names("layer", LAYERS))
    parser.add_argument("--dtypes", **arguments.names("dtype", list(DTYPES)))
    parser.add_argument("--batch", type=arguments.count, default=8, help="of ResNet-50's layers")
    parser.add_argument("--save", **arguments.save("compare_data_formats.png"))
    chosen = parser.parse_args()
    out = console()
    out.print(bench.machine())
    pairs: list[Pair] = []
    for layer in progress(chosen.layers, "measuring"):
        kind, shape = layer.split("-")
        channels, size = map(int, shape.split("x"))
        if kind == PHOTOS:
            problem = photographs(channels, size)
        else:
            problem = testing.random_problem((chosen.batch, size, size, channels))
        pairs += [compare(layer, dtype, problem) for dtype in chosen.dtypes]
    labels: list[Column[Pair]] = [
        Column("layer", lambda p: p[0].workload),
        Column("type", lambda p: p[0].dtype),
    ]
    sections = [[p for p in pairs if p[0].workload.startswith(kind)] for kind in SHAPES]
    title = "microseconds a call (median), and NCX's time over NXC's"
    out.print(table(title, "", [*labels, *columns("onedsl"), *columns("oneDNN")], sections))
    out.print("Every result agrees with the float64 reference.")
    out.print(f"{finding(pairs)}, in the geometric mean of the table's lines.")
    warning = bench.disturbance(row for pair in pairs for row in pair)
    for line in warning:
        out.print(line)
    if chosen.save:
        shares = {
            (p[0].dtype, p[0].workload): {
                f"{who} {row.data_format}": row.triad_share(who)
                for row in p
                for who in bench.BACKENDS
                if row.ran(who)
            }
            for p in pairs
        }
        subtitle = f"Geometric mean. Layers: channels x height = width. {bench.machine()}"
        plot(chosen.save, shares, MARKS, finding(pairs), "\n".join([subtitle, *warning]))
        out.print(f"Picture: {chosen.save}")


if __name__ == "__main__":
    main()
