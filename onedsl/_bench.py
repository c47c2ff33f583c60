"""The benchmark behind ``python -m onedsl bench``.

Every figure is a median over rounds that are interleaved, so that all contenders of a row meet the
same minute of the machine; what is claimed are ratios within a row.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core, _timing
from ._capabilities import capabilities
from ._errors import UnsupportedError
from ._operators import Backend, BatchNormTrainingBackward
from ._spec import DataFormat, TensorSpec
from ._types import DTYPES

Array = npt.NDArray[Any]
Call = Callable[[], object]

# (N, C, *spatial), as the layers of these networks have them when they are trained.
WORKLOADS: dict[str, tuple[tuple[int, ...], ...]] = {
    "small": ((1, 8, 4, 4),),
    "ResNet-50": (
        (32, 64, 112, 112),
        (32, 64, 56, 56),
        (32, 256, 56, 56),
        (32, 128, 28, 28),
        (32, 512, 28, 28),
        (32, 1024, 14, 14),
        (32, 512, 7, 7),
        (32, 2048, 7, 7),
    ),
    "MobileNetV2": (
        (32, 32, 112, 112),
        (32, 24, 56, 56),
        (32, 144, 56, 56),
        (32, 192, 28, 28),
        (32, 576, 14, 14),
        (32, 960, 7, 7),
    ),
    "transformer": ((4096, 512), (16384, 768), (32, 768, 128), (16, 1024, 512)),
    "images": ((32, 3, 224, 224),),
}

BACKENDS: tuple[Backend, ...] = ("auto", "onednn", "native")
TORCH = ("torch", "torch out")

# Two OpenMP runtimes in one process (torch brings its own) take the cores from each other while
# their idle threads still spin; a pause before a contender's turn lets the other's go to sleep.
PAUSE_SECONDS = 0.004
MIN_ROUNDS = 5


@dataclass
class Row:
    """One layer in one format and type; times are medians in seconds."""

    workload: str
    shape: tuple[int, ...]
    dtype: str
    data_format: str
    auto_backend: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    triad_bytes_per_second: float = 0.0

    @property
    def bytes(self) -> int:
        """Three tensors: src and diff_dst read, diff_src written."""
        return 3 * math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def triad_share(self, contender: str) -> float:
        """Give the rate of a contender as a share of the machine's own triad."""
        return self.bytes / self.seconds[contender] / self.triad_bytes_per_second

    @property
    def torch(self) -> float:
        """Time of the faster of torch's two calls, NaN where torch is not installed."""
        return min((self.seconds[name] for name in TORCH if name in self.seconds), default=math.nan)


def problems(names: Sequence[str], dtypes: Sequence[str], formats: Sequence[str]) -> Iterator[Row]:
    """List the rows. A tensor of rank 2 is the same in both formats, and comes once."""
    for name in names:
        for shape in WORKLOADS[name]:
            for dtype in dtypes:
                for data_format in formats if len(shape) > 2 else formats[:1]:
                    yield Row(name, shape, dtype, data_format)


def measure(row: Row, seconds: float, triad: tuple[Array, Array, Array]) -> None:
    """Fill in a row's times, spending about the given time on it."""
    contenders, row.auto_backend = _contenders(row)
    contenders["triad"] = lambda: _core.triad(*triad)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < deadline:
        for name, call in contenders.items():
            time.sleep(PAUSE_SECONDS)
            call()  # wakes the contender's threads
            samples[name].append(_timing.seconds(call))
        rounds += 1
    row.seconds = {name: statistics.median(times) for name, times in samples.items()}
    row.triad_bytes_per_second = 3 * triad[0].nbytes / row.seconds.pop("triad")


def _contenders(row: Row) -> tuple[dict[str, Call], str]:
    """Make each contender's call.

    The tensors rotate through more memory than the last cache holds, and every call of whichever
    contender takes the next ones, so that nobody finds them in the cache.
    """
    copies = max(1, min(16, math.ceil(2 * _core.last_cache_bytes() / row.bytes)))
    inputs = [_tensors(row, seed) for seed in range(copies)]
    turn = itertools.cycle(range(copies))
    channels = row.shape[1]
    rng = np.random.default_rng(0)
    mean, variance, gamma = rng.uniform(0.5, 1.5, (3, channels)).astype(np.float32)
    sums = (np.empty_like(mean), np.empty_like(mean))

    op = BatchNormTrainingBackward(1e-5, row.data_format)
    contenders: dict[str, Call] = {}
    auto = ""
    for backend in BACKENDS:
        try:
            compiled = op.compile(TensorSpec.of(inputs[0][0]), backend=backend)
        except UnsupportedError:
            continue
        if backend == "auto":
            auto = compiled.backend

        def call(compiled: Any = compiled) -> object:
            src, diff_dst, diff_src = inputs[next(turn)]
            return compiled(src, diff_dst, mean, variance, gamma, out=(diff_src, *sums))

        contenders[backend] = call
    contenders.update(_torch_contenders(row, inputs, turn, (mean, variance, gamma)))
    return contenders, auto


def _tensors(row: Row, seed: int) -> tuple[Array, Array, Array]:
    """Make src, diff_dst and diff_src in the format's shape and in C order."""
    shape = row.shape
    if DataFormat(row.data_format) is DataFormat.NXC:
        shape = (shape[0], *shape[2:], shape[1])
    rng = np.random.default_rng(seed)
    src = rng.standard_normal(shape, dtype=np.float32).astype(DTYPES[row.dtype])
    return src, src[::-1].copy(), np.ones_like(src)


def _torch_contenders(
    row: Row,
    inputs: list[tuple[Array, Array, Array]],
    turn: Iterator[int],
    statistics_: tuple[Array, Array, Array],
) -> dict[str, Call]:
    """Make torch's calls on the same memory, in the memory format that it has for it."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {}

    def tensor(array: Array) -> Any:
        if array.dtype == DTYPES["bf16"]:
            made = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            made = torch.from_numpy(array)
        if array.ndim > 2 and DataFormat(row.data_format) is DataFormat.NXC:
            if array.ndim == 3:  # torch's channels_last has rank 4
                made = made.unsqueeze(1)
            made = made.movedim(-1, 1)
        return made

    tensors = [tuple(map(tensor, arrays)) for arrays in inputs]
    mean, variance, gamma = map(torch.from_numpy, statistics_)
    invstd = (variance + 1e-5).rsqrt()
    sums = (torch.empty_like(mean), torch.empty_like(mean))
    function = torch.ops.aten.native_batch_norm_backward
    mask = [True, True, True]

    def allocating() -> object:
        src, diff_dst, _ = tensors[next(turn)]
        return function(diff_dst, src, gamma, None, None, mean, invstd, True, 1e-5, mask)

    def preallocated() -> object:
        src, diff_dst, diff_src = tensors[next(turn)]
        return function.out(
            diff_dst, src, gamma, None, None, mean, invstd, True, 1e-5, mask,
            out0=diff_src, out1=sums[0], out2=sums[1],
        )  # fmt: skip

    return {"torch": allocating, "torch out": preallocated}


def triad_arrays() -> tuple[Array, Array, Array]:
    """Make the triad's vectors, far larger than the last cache and aligned."""
    size = max(4 * _core.last_cache_bytes(), 64 << 20)
    out, a, b = (np.ones(size // 4 + 16, np.float32) for _ in range(3))

    def aligned(array: Array) -> Array:
        skip = -array.ctypes.data % 64 // 4
        return array[skip : skip + size // 4]

    return aligned(out), aligned(a), aligned(b)


def geometric_mean(values: Sequence[float]) -> float:
    """Average ratios."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def summary(rows: Sequence[Row]) -> list[str]:
    """Say in ratios what the rows show."""
    lines = []
    with_torch = [row for row in rows if not math.isnan(row.torch)]
    for contender in ("auto", "native"):
        ratios = [row.torch / row.seconds[contender] for row in with_torch]
        if ratios:
            slowest = min(zip(ratios, with_torch, strict=True), key=lambda pair: pair[0])
            lines.append(
                f"{contender} against torch (the faster of its two calls): "
                f"{geometric_mean(ratios):.2f} times as fast (geometric mean of {len(ratios)} "
                f"rows), at least {slowest[0]:.2f} ({_label(slowest[1])})"
            )
    both = [row for row in rows if "onednn" in row.seconds]
    if both:
        ratios = [row.seconds["onednn"] / row.seconds["auto"] for row in both]
        slowest = min(zip(ratios, both, strict=True), key=lambda pair: pair[0])
        lines.append(
            f"auto against oneDNN: {geometric_mean(ratios):.2f} times as fast "
            f"({len(ratios)} rows that oneDNN runs), at least {slowest[0]:.2f} "
            f"({_label(slowest[1])})"
        )
    cache = _core.last_cache_bytes()
    for data_format in ("NCX", "NXC"):
        large = [r for r in rows if r.data_format == data_format and r.bytes > 6 * cache]
        if large:
            shares = [row.triad_share("auto") for row in large]
            lines.append(
                f"auto, {data_format}, far out of cache: {min(shares):.0%} to {max(shares):.0%} of "
                f"the triad's rate ({len(large)} rows)"
            )
    return lines


def _label(row: Row) -> str:
    return f"{'x'.join(map(str, row.shape))} {row.dtype} {row.data_format}"


def table(rows: Sequence[Row]) -> Any:
    """Lay the rows out for a terminal."""
    from rich import box
    from rich.table import Table

    result = Table(
        title="microseconds a call (median), and how many times as fast auto is",
        caption="torch: the faster of its two calls. triad: three tensors' bytes at the machine's "
        "own rate in the same minute",
        box=box.SIMPLE_HEAD,
    )
    for name in ("layer (N, C, X)", "type", "format"):
        result.add_column(name, no_wrap=True)
    for name in (*BACKENDS, "torch", "triad", "vs torch", "vs oneDNN"):
        result.add_column(name, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        if previous not in (None, row.workload):
            result.add_section()
        previous = row.workload
        auto = row.seconds["auto"]
        onednn = row.seconds.get("onednn", math.nan)
        result.add_row(
            "x".join(map(str, row.shape)),
            row.dtype,
            row.data_format,
            *(_microseconds(row.seconds.get(name, math.nan)) for name in BACKENDS),
            _microseconds(row.torch),
            _microseconds(row.bytes / row.triad_bytes_per_second),
            _ratio(row.torch / auto),
            _ratio(onednn / auto),
        )
    return result


def _microseconds(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{seconds * 1e6:,.{1 if seconds < 1e-5 else 0}f}"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write the machine, the versions and the rows."""
    found = capabilities()
    machine = {
        "onedsl": found.onedsl_version,
        "onednn": found.onednn_version,
        "onednn_isa": found.onednn_isa,
        "native_isa": found.native_isa,
        "num_threads": found.num_threads,
        "last_cache_bytes": _core.last_cache_bytes(),
    }
    path.write_text(json.dumps({"machine": machine, "rows": [asdict(r) for r in rows]}, indent=1))


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw each row's rate as a share of the triad's, a panel for each type."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.ticker import PercentFormatter

    rows = [row for row in rows if row.workload != "small"]
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    labels = list(dict.fromkeys((row.shape, row.data_format) for row in rows))
    # Okabe and Ito's colours, told apart by colour-blind readers too.
    styles = {
        "torch": ("#999999", "s"),
        "onednn": ("#0072B2", "D"),
        "auto": ("#D55E00", "o"),
    }
    names = {"torch": "PyTorch", "onednn": "oneDNN", "auto": "onedsl"}
    figure, axes = plt.subplots(
        1,
        len(dtypes),
        figsize=(4.5 + 3.4 * len(dtypes), 1.8 + 0.24 * len(labels)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, dtype in zip(axes[0], dtypes, strict=True):
        for row in rows:
            if row.dtype != dtype:
                continue
            y = labels.index((row.shape, row.data_format))
            shares = {
                "torch": row.bytes / row.torch / row.triad_bytes_per_second,
                "auto": row.triad_share("auto"),
            }
            if "onednn" in row.seconds:
                shares["onednn"] = row.triad_share("onednn")
            axis.plot(
                [min(shares.values()), max(shares.values())], [y, y], color="#dddddd", zorder=1
            )
            for name, share in shares.items():
                colour, marker = styles[name]
                axis.plot(share, y, marker, color=colour, markersize=5.5, zorder=2)
        axis.axvline(1, color="#444444", linewidth=0.8, linestyle=":")
        axis.set_title(dtype, fontsize=12, fontweight="bold")
        axis.set_xlim(0, 1.04)
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(
        range(len(labels)),
        [f"{'x'.join(map(str, shape))}  {data_format}" for shape, data_format in labels],
        fontsize=8,
    )
    axes[0][0].invert_yaxis()
    handles = [
        Line2D([], [], marker=m, color=c, linestyle="", label=names[n])
        for n, (c, m) in styles.items()
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False)
    figure.supxlabel("three tensors' bytes over time, as a share of the triad's rate", fontsize=10)
    ratios = [row.torch / row.seconds["auto"] for row in rows if not math.isnan(row.torch)]
    gain = f": {geometric_mean(ratios):.1f} times as fast as PyTorch" if ratios else ""
    figure.suptitle(
        f"Batch normalization's gradient, {capabilities().num_threads} threads{gain}",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
