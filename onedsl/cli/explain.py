"""The command ``onedsl explain``."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal

import click
import numpy as np

from ..bench.cases import Case
from ..bench.implementations import Memory, copies_beyond_cache, triad_call
from ..operators._autotune import ones
from ..operators.batch_norm_training_backward import (
    BatchNormTrainingBackward,
    CompiledBatchNormTrainingBackward,
)
from ..runtime.errors import UnsupportedError
from ..runtime.timing import NoiseMonitor, median_seconds
from ..tensors.dtypes import DTYPES, Backend, DType
from ..tensors.spec import DataFormatLike, TensorSpec
from .options import POSITIVE, SHAPE, UNSUPPORTED, as_usage_errors, with_operator_options
from .output import console, grid

Lines = Iterator[tuple[str, str]]
"""The lines of the output: (label, text)."""


@click.command(short_help="Show what runs for a tensor, why, and how fast.")
@click.argument("shape", type=SHAPE)
@with_operator_options
@click.option(
    "--tag",
    help="Axes in memory order, the slowest first; a is the first axis of SHAPE. acdb is an NCX "
    "tensor in PyTorch's channels_last format. The default is C order.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "onednn", "native"]),
    default="auto",
    show_default=True,
    help="The argument backend of the Python call.",
)
@click.option(
    "--seconds", type=POSITIVE, default="0.5", show_default=True, help="Time spent on timing."
)
def explain(
    shape: tuple[int, ...],
    dtype: DType,
    stats_dtype: DType,
    data_format: DataFormatLike,
    epsilon: float,
    outputs: Literal["all", "diff_src"],
    gamma: bool,
    tag: str | None,
    backend: Backend,
    seconds: float,
) -> int:
    """Show what runs for a tensor of this SHAPE, why, and how fast.

    SHAPE is the shape of src in the data format of --format. The floor is the time that the memory
    traffic of the algorithm takes at the machine's memory bandwidth. A triad (out = a + 2 * b),
    which is timed interleaved with the call, measures this bandwidth.
    """
    with as_usage_errors():
        order = list(range(len(shape))) if tag is None else axes_of(tag, len(shape))
        spec = TensorSpec(shape, dtype, dense_strides(shape, order))
        op = BatchNormTrainingBackward(epsilon, data_format)
        compile_for = functools.partial(
            op.compile, spec, stats_dtype=stats_dtype, gamma=gamma, outputs=outputs
        )
        native = compile_for(backend="native")
        lines = list(_layout(native, order))
        status = 0
        try:
            compiled = compile_for(backend=backend)
        except UnsupportedError as error:
            lines.append(("runs", f"nothing: {error}"))
            status = UNSUPPORTED
        else:
            lines += _onednn(compiled) if backend == "onednn" else _native(compiled, backend)
            lines += _times(compiled, native, seconds)
    out = console()
    out.print(repr(op), markup=False)
    out.print(grid(lines), markup=False)
    return status


def axes_of(tag: str, rank: int) -> list[int]:
    """Return the axes that a tag lists, from the slowest in memory to the fastest.

    Raises
    ------
    ValueError
        If the tag does not contain each axis once.
    """
    order = [ord(letter) - ord("a") for letter in tag]
    if sorted(order) != list(range(rank)):
        letters = "".join(chr(ord("a") + axis) for axis in range(min(rank, 26)))
        raise ValueError(f"the tag must contain each of {letters!r} once, got {tag!r}")
    return order


def dense_strides(shape: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor.

    `order` lists the axes from the slowest in memory to the fastest.
    """
    strides = [1] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def _layout(compiled: CompiledBatchNormTrainingBackward, order: list[int]) -> Lines:
    """Yield the lines about the memory layout of src, whose axes in memory have this order."""
    shape = compiled.spec.shape
    name = "C order" if order == sorted(order) else "".join(chr(ord("a") + a) for a in order)
    sizes = " x ".join(str(shape[axis]) for axis in order)
    yield "memory layout", f"{name}: {sizes}, slowest first; strides {compiled.spec.strides}"
    geometry = compiled._core.geometry
    outer, channels, inner = geometry["outer"], geometry["channels"], geometry["inner"]
    kind = "channels last" if inner == 1 else "each channel is contiguous in planes"
    yield "geometry", f"{outer} x {channels} x {inner} (outer x channels x inner): {kind}"
    yield "channel size", f"{outer * inner:,} elements"


def _native(compiled: CompiledBatchNormTrainingBackward, backend: str) -> Lines:
    """Yield the lines about a native kernel."""
    reason = ' ("auto" always uses it)' if backend == "auto" else ""
    yield "runs", compiled.implementation + reason
    info = compiled._core.kernel_info
    if info is None:
        yield "work", "none, the tensor is empty"
        return
    yield "threads", f"{info['threads']} of {compiled.num_threads}"
    if info["columns"]:
        kind = f"rows of {info['row']} contiguous elements, with vectors of {info['lanes']} lanes"
    else:
        kind = f"planes, with vectors of {info['lanes']} lanes"
        kind += f", each in {info['segments']} segments" if info["segments"] > 1 else ""
    counts = ", ".join(
        (
            f"{_count(info['rows'], 'row')} in {_count(info['chunks'], 'chunk')}",
            _count(info["partials"], "partial sum"),
        )
    )
    yield "summation", f"{kind}; {counts}"
    sharing = (
        f"each thread has its own panels of {info['panel']} channels"
        if info["own_panels"]
        else f"all threads share each panel of {info['panel']} channels"
    )
    yield "schedule", f"{sharing}, in blocks of {info['block']}"
    yield "stores", "non-temporal" if info["non_temporal"] else "ordinary"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _onednn(compiled: CompiledBatchNormTrainingBackward) -> Lines:
    """Yield the lines about the graph that oneDNN compiled."""
    yield "runs", compiled.implementation
    graph = compiled.graph
    for op in graph.ops:
        yield "op", f"{op.kind} {dict(op.attrs)}"
        yield "oneDNN input", f"{op.inputs[0]} ({op.attrs.get('data_format')})"
    for part in graph.partitions():
        yield "partition", str(part).removeprefix("partition of ")
    yield "changed by onedsl", "; ".join(graph.changes) or "nothing"
    yield "threads", str(compiled.num_threads)


def _memory_of(compiled: CompiledBatchNormTrainingBackward) -> Memory:
    """Return arrays for calls, with so many copies of the tensors that they exceed the cache."""
    spec = compiled.spec
    number = copies_beyond_cache(3 * math.prod(spec.shape) * spec.numpy_dtype.itemsize)
    names = ("src", "diff_dst", "diff_src")
    copies = [{name: ones(spec) for name in names} for _ in range(number)]
    vectors = {
        name: np.ones(compiled.stats_shape, DTYPES[compiled.stats_dtype])
        for name in ("mean", "variance", "gamma", "diff_gamma", "diff_beta")
    }
    return Memory(copies, vectors, itertools.cycle(range(number)))


def _call(compiled: CompiledBatchNormTrainingBackward, memory: Memory) -> Callable[[], object]:
    """Return a function that calls the operator, each time with the next copy of its tensors."""
    vectors = memory.vectors
    gamma = vectors["gamma"] if compiled.gamma else None
    sums = (
        (vectors["diff_gamma"], vectors["diff_beta"]) if compiled.outputs == "all" else (None, None)
    )

    def call() -> object:
        layer = memory.copies[next(memory.next_copy)]
        out = (layer["diff_src"], *sums)
        inputs = layer["src"], layer["diff_dst"], vectors["mean"], vectors["variance"], gamma
        return compiled(*inputs, out=out)

    return call


def _times(
    compiled: CompiledBatchNormTrainingBackward,
    native: CompiledBatchNormTrainingBackward,
    seconds: float,
) -> Lines:
    """Time the call and the triad; yield the lines about memory traffic, bandwidth and time."""
    geometry = native._core.geometry
    outer, channels, inner = geometry["outer"], geometry["channels"], geometry["inner"]
    if inner == 1:
        case = Case("", (outer, channels), compiled.spec.dtype, "NXC")
    else:
        case = Case("", (outer, inner, channels), compiled.spec.dtype, "NCX")
    if not case.tensor_bytes:
        yield "memory traffic", "none"
        return
    memory = _memory_of(compiled)
    info = native._core.kernel_info
    non_temporal = info is not None and bool(info["non_temporal"])
    calls = {"call": _call(compiled, memory), "triad": triad_call(memory, non_temporal)}
    monitor = NoiseMonitor()
    times = median_seconds(calls, seconds=seconds)
    bandwidth = 3 * case.tensor_bytes / times["triad"]
    floor = case.floor_in_triads(non_temporal) * times["triad"]
    tensors = case.floor_tensors
    size = f"{tensors * case.tensor_bytes / 2**20:,.2f} MiB"
    reads = "reads src and diff_dst" + (" twice" if tensors == 5 else "")
    yield "memory traffic", f"{size} ({tensors} tensors): {reads}, writes diff_src"
    triad = f"triad on such tensors, {'non-temporal' if non_temporal else 'ordinary'} stores"
    yield "bandwidth", f"{bandwidth / 1e9:.1f} GB/s ({triad})"
    yield "floor", f"{floor * 1e6:,.1f} µs, {floor / times['call']:.0%} of the time"
    yield "time", f"{times['call'] * 1e6:,.1f} µs"
    if warning := monitor.warning(compiled.num_threads):
        yield "noise", warning
