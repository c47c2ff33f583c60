"""The command ``onedsl explain``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ..bench import MIN_BYTES, TRIADS, Case, implementations, measure
from ..bench.timing import noise_warning
from ..operators.base import kernel_info
from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..runtime.errors import UnsupportedError
from ..tensors.dtypes import DType, dtype_name
from ..tensors.options import Backend
from ..tensors.spec import DataFormatLike, TensorSpec
from . import options
from .output import console, grid

Lines = Iterator[tuple[str, str]]
"""Lines of the output: (label, text)."""


@click.command(short_help="Show what runs for a tensor, why, and how fast.")
@click.argument("shape", type=options.shape)
@options.tensor_options
@options.choice("--backend", "backend", ("auto", "onednn"), "What computes the gradient.")
@options.seconds(0.5)
def explain(
    shape: tuple[int, ...],
    dtype: DType,
    stats_dtype: DType,
    data_format: DataFormatLike,
    backend: Backend,
    seconds: float,
) -> int:
    """Show what runs for a tensor of this SHAPE, why, and how fast.

    SHAPE is the shape of src in the data format of --format, with the sizes in memory order: a
    PyTorch tensor in channels_last is NXC. The floor is the time that the memory traffic of the
    algorithm takes at the machine's memory bandwidth. A triad (out = a + 2 * b), which is timed
    interleaved with the call, measures this bandwidth. Below 1 MiB the overhead of calls dominates,
    and the floor is not shown.
    """
    op = BatchNormTrainingBackward(1e-5, data_format)
    with options.user_input():
        spec = TensorSpec(shape, dtype)
        info = kernel_info(op, spec, stats_dtype)
    outer, channels, inner = info["geometry"]
    kind = "channels last" if inner == 1 else "each channel is contiguous in planes"
    sizes = f"{outer} x {channels} x {inner} (outer x channels x inner)"
    lines = [("geometry", f"{sizes}: {kind}"), ("elements", f"{outer * inner:,} per channel")]
    status = 0
    try:
        if backend == "onednn":
            graph = op.graph(spec, stats_dtype=stats_dtype).repaired()
            lines += [("runs", repr(graph.compile())), ("graph", str(graph))]
        else:
            lines += [("runs", info["implementation"]), *_schedule(info)]
        if 0 not in shape:
            seen = (outer, channels) if inner == 1 else (outer, inner, channels)
            seen_format = "NXC" if inner == 1 else "NCX"
            case = Case("", seen, spec.dtype, seen_format, stats_dtype=dtype_name(stats_dtype))
            lines += _times(case, "oneDNN" if backend == "onednn" else "onedsl", seconds)
    except UnsupportedError as error:
        lines.append(("runs", f"nothing: {error}"))
        status = options.UNSUPPORTED
    out = console()
    out.print(repr(op))
    out.print(grid(lines))
    return status


def _schedule(info: dict[str, Any]) -> Lines:
    """Yield the lines about a native kernel."""
    if "workers" not in info:
        yield "work", "none, the tensor is empty"
        return
    yield "threads", f"{info['workers']} of {info['num_threads']}, busy {info['busy_share']:.0%}"
    kind = f"rows of {info['row']} contiguous elements" if info["columns"] else "planes"
    segments = f", each in {info['segments']} segments" if info["segments"] > 1 else ""
    yield (
        "summation",
        f"{kind}, with vectors of {info['lanes']} lanes{segments}; rows: {info['rows']:,}, chunks: "
        f"{info['chunks']:,}",
    )
    own, channels = info["own"], info["geometry"][1]
    parts = [f"{own} channels of single threads"] if own > 0 else []
    if own < channels:
        parts.append(f"{channels - own} channels of all threads, {info['panel']} at a time")
    yield "schedule", f"{', '.join(parts)}, in blocks of {info['block']}"
    yield "stores", "non-temporal" if info["non_temporal"] else "ordinary"


def _times(case: Case, name: str, seconds: float) -> Lines:
    """Time a call; yield the lines about traffic, bandwidth and time."""
    calls = implementations(case)
    (row,) = measure({case: {key: calls[key] for key in (name, *TRIADS)}}, seconds)
    reads = "reads src and diff_dst" + (" twice" if case.floor_tensors == 5 else "")
    size = f"{case.floor_tensors * case.tensor_bytes / 2**20:,.2f} MiB"
    yield "memory traffic", f"{size} ({case.floor_tensors} tensors): {reads}, writes diff_src"
    if case.tensor_bytes < MIN_BYTES:
        yield "floor", "unknown below 1 MiB: the overhead of calls exceeds the time of the traffic"
    else:
        bandwidth = 3 * case.tensor_bytes / row.seconds[row.best_triad]
        stores = "non-temporal" if TRIADS[row.best_triad] else "ordinary"
        yield "bandwidth", f"{bandwidth / 1e9:.1f} GB/s (triad on such tensors, {stores} stores)"
        share = row.floor_share(name)
        yield "floor", f"{share * row.time(name) * 1e6:,.1f} µs, {share:.0%} of the time"
    yield "time", f"{row.time(name) * 1e6:,.1f} µs"
    if row.noisy:
        yield "noise", noise_warning()
