"""Compare the time of batch norm's gradient in the data formats NXC and NCX.

NXC stores the channels last, NCX second. The layers are those of ResNet-50 and some on photographs,
in every data type. Every result is compared with the float64 reference first. Then onedsl's and
oneDNN's kernels are timed in both formats.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

import onedsl
from onedsl import bench, testing
from onedsl.bench.plot import BLUE, VERMILION, Mark, plot
from onedsl.bench.table import Column, console, microseconds, progress, ratio, table
from onedsl.cli.options import COUNT, names_option, save_option
from onedsl.tensors.dtypes import DTYPES

Gradients = onedsl.BatchNormGradients
Pair = tuple[bench.Row, bench.Row]  # one layer and type in NXC and in NCX
PHOTOS, RESNET50 = "photos", "resnet50"
SHAPES = {  # channels x height, which equals the width
    PHOTOS: "3x208 12x104 48x104",
    RESNET50: "64x112 64x56 256x56 128x56 128x28 512x28 256x28 256x14 1024x14 512x14 512x7 2048x7",
}
LAYERS = [f"{kind}-{shape}" for kind, shapes in SHAPES.items() for shape in shapes.split()]
SECONDS = 0.3  # for each layer and type
MARKS = {
    f"{name} {data_format}": Mark(f"{name}, {data_format}", color, marker, offset)
    for name, marker, offset in (("onedsl", "o", -0.17), ("oneDNN", "D", 0.17))
    for data_format, color in (("NXC", BLUE), ("NCX", VERMILION))
}


def photographs(channels: int, size: int) -> testing.Problem:
    """Return squares of photographs, with patches of pixels as channels."""
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
    diff_dst = np.maximum(dst, 0).astype(np.float32)  # gradient of sum(relu(dst) ** 2) / 2
    return testing.Problem(src, diff_dst, src.mean((0, 1, 2)), src.var((0, 1, 2)), gamma)


def compare(layer: str, dtype: str, problem: testing.Problem) -> Pair:
    """Verify both formats in both backends, then time them interleaved."""
    src, diff_dst = (array.astype(DTYPES[dtype]) for array in problem[:2])
    nxc = problem._replace(src=src, diff_dst=diff_dst)
    src, diff_dst = (np.moveaxis(array, -1, 1).copy() for array in nxc[:2])
    ncx = nxc._replace(src=src, diff_dst=diff_dst)
    expected = testing.batch_norm_backward(*nxc, epsilon=bench.EPSILON)
    calls = {}
    for data_format, inputs in (("NXC", nxc), ("NCX", ncx)):
        case = bench.Case(layer, src.shape, dtype, data_format)
        all_calls = bench.implementations(case, inputs)
        compared = {name: all_calls[name] for name in bench.BACKENDS if name in all_calls}
        calls[case] = compared | {bench.TRIAD: all_calls[bench.TRIAD]}
        for name, call in compared.items():
            gradients = call()
            if data_format == "NCX":
                gradients = gradients._replace(diff_src=np.moveaxis(gradients.diff_src, 1, -1))
            verify(f"{layer} {dtype} {data_format} {name}", gradients, expected)
    in_nxc, in_ncx = bench.measure(calls, SECONDS)
    return in_nxc, in_ncx


def verify(label: str, gradients: Gradients, expected: Gradients) -> None:
    """Exit if a gradient is wrong. oneDNN has a larger tolerance, because it sums in float32."""
    terms = gradients.diff_src.size // gradients.diff_beta.size
    rounding = min(terms * 2.0**-24, 2.0**-8) if label.endswith("oneDNN") else 0
    for name, result, reference in zip(gradients._fields, gradients, expected, strict=True):
        tolerances = testing.TOLERANCES if name == "diff_src" else testing.SUM_TOLERANCES
        tolerance = max(tolerances[onedsl.TensorSpec.of(result).dtype], rounding)
        error = testing.relative_l2(result, reference)
        if not error <= tolerance:
            sys.exit(f"{label}: {name} has a relative L2 error of {error:.2g} > {tolerance:.2g}")


def ncx_over_nxc(pair: Pair, name: str) -> float:
    """Return an implementation's time in NCX over its time in NXC."""
    return pair[1].time(name) / pair[0].time(name)


def conclusion(pairs: Sequence[Pair]) -> str:
    """Return the mean ratios of the times in one sentence."""
    parts = []
    for name in bench.BACKENDS:
        ratios = [ncx_over_nxc(pair, name) for pair in pairs if pair[0].ran(name)]
        if ratios:
            parts.append(f"{bench.geometric_mean(ratios):.1f} times ({name})")
    return f"NCX takes {' and '.join(parts)} as long as NXC"


def columns(name: str) -> list[Column[Pair]]:
    """Return the columns of one implementation."""
    return [
        Column(f"{name}\nNXC", lambda pair: microseconds(pair[0].time(name))),
        Column(f"{name}\nNCX", lambda pair: microseconds(pair[1].time(name))),
        Column("NCX\n/NXC", lambda pair: ratio(ncx_over_nxc(pair, name))),
    ]


@click.command(help=__doc__)
@names_option("--layers", LAYERS)
@names_option("--dtypes", DTYPES)
@click.option(
    "--batch", type=COUNT, default=8, show_default=True, help="Images of ResNet-50's layers."
)
@save_option("compare_data_formats.png")
def main(layers: list[str], dtypes: list[str], batch: int, save: Path | None) -> None:
    """Run the comparison, print a table and draw a picture."""
    out = console()
    out.print(bench.describe_machine())
    pairs: list[Pair] = []
    for layer in progress(layers, "measuring"):
        kind, shape = layer.split("-")
        channels, size = map(int, shape.split("x"))
        if kind == PHOTOS:
            problem = photographs(channels, size)
        else:
            problem = testing.random_problem((batch, size, size, channels))
        pairs += [compare(layer, dtype, problem) for dtype in dtypes]
    labels: list[Column[Pair]] = [
        Column("layer\n(channels x height)", lambda pair: pair[0].workload),
        Column("type", lambda pair: pair[0].dtype),
    ]
    sections = [[p for p in pairs if p[0].workload.startswith(kind)] for kind in SHAPES]
    title = "Batch norm's gradient: median time per call (µs), and time in NCX over time in NXC"
    out.print(table(title, "", [*labels, *columns("onedsl"), *columns("oneDNN")], sections))
    out.print("Every result agrees with the float64 reference.")
    out.print(f"{conclusion(pairs)} (geometric mean of all rows).")
    warning = bench.noise_warning(row for pair in pairs for row in pair)
    for line in warning:
        out.print(line)
    if save:
        shares = {
            (pair[0].dtype, pair[0].workload): {
                f"{name} {row.data_format}": row.bandwidth_share(name)
                for row in pair
                for name in bench.BACKENDS
                if row.ran(name)
            }
            for pair in pairs
        }
        subtitle = (
            "Batch norm's gradient with the channels last (NXC) or second (NCX), geometric mean. "
            f"{bench.describe_machine()}"
        )
        plot(
            save,
            shares,
            MARKS,
            conclusion(pairs),
            "\n".join([subtitle, *warning]),
            "layer, channels x height (= width)",
        )
        out.print(f"Picture: {save}")


if __name__ == "__main__":
    main()
