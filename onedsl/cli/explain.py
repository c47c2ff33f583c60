"""``onedsl explain``."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import click
import numpy as np
import numpy.typing as npt
from rich.table import Table

from ..bench import Case, Memory, copies_past_the_cache, triad_call
from ..bench.table import console
from ..operators._autotune import ones
from ..operators.batch_norm_training_backward import (
    BatchNormTrainingBackward,
    CompiledBatchNormTrainingBackward,
)
from ..runtime.errors import UnsupportedError
from ..runtime.run_log import Run, log_runs_to
from ..runtime.timing import median_seconds
from ..tensors.dtypes import DTYPES, Backend, DType
from ..tensors.spec import DataFormatLike, TensorSpec
from ..testing import check_statistics
from .options import SECONDS, SHAPE, as_usage_errors, with_operator_options
from .overrides import axes_of, dense_strides

Array = npt.NDArray[Any]
Lines = Iterator[tuple[str, str]]
"""What is said: of what, and what."""


@click.command(short_help="Tell what will run for a tensor, and why.")
@click.argument("shape", type=SHAPE)
@with_operator_options
@click.option(
    "--tag",
    help="The axes from the slowest in memory to the fastest, a the first: acdb is an NCX tensor "
    "in PyTorch's channels_last. The default is C order.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "onednn", "native"]),
    default="auto",
    show_default=True,
)
@click.option(
    "--check",
    metavar="FILE.npz",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Arrays src (of SHAPE), mean and variance: are the statistics src's own?",
)
@click.option("--seconds", type=SECONDS, default="0.5", show_default=True, help="Time to measure.")
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
    check: Path | None,
    seconds: float,
) -> int:
    """Tell what will run for a tensor of this SHAPE, why, and how fast.

    SHAPE is src's, as --format has it. The floor is the time in which this machine's memory moves
    the bytes that the algorithm must move, measured by a triad in turns with the calls.
    """
    with as_usage_errors():
        order = list(range(len(shape))) if tag is None else axes_of(tag, len(shape))
        spec = TensorSpec(shape, dtype, dense_strides(shape, order))
        op = BatchNormTrainingBackward(epsilon, data_format)
        findings = None if check is None else _findings(check, spec, data_format)
        compile_for = functools.partial(
            op.compile, spec, stats_dtype=stats_dtype, gamma=gamma, outputs=outputs
        )
        lines = list(_memory(compile_for(backend="native"), order))
        try:
            compiled = compile_for(backend=backend)
        except UnsupportedError as error:
            lines.append(("runs", f"nothing, the partition is not supported: {error}"))
        else:
            lines += _onednn(compiled) if backend == "onednn" else _native(compiled, backend)
            lines += _times(compiled, seconds)
    _show(op, lines, findings)
    return 1 if findings else 0


def _memory(compiled: CompiledBatchNormTrainingBackward, order: list[int]) -> Lines:
    shape = compiled.spec.shape
    words = "C order" if order == sorted(order) else "".join(chr(ord("a") + a) for a in order)
    sizes = " x ".join(str(shape[axis]) for axis in order)
    yield "memory", f"{words}, slowest first {sizes}; strides {compiled.spec.strides}"
    seen = compiled._core.geometry
    outer, channels, inner = seen["outer"], seen["channels"], seen["inner"]
    kind = "the channels lie last" if inner == 1 else "each channel lies in planes"
    yield "geometry", f"{outer} x {channels} x {inner} (outer x channels x inner): {kind}"
    yield "a channel", f"{outer * inner:,} elements"


def _native(compiled: CompiledBatchNormTrainingBackward, backend: str) -> Lines:
    why = ', which "auto" takes in every case' if backend == "auto" else ""
    yield "runs", compiled.implementation + why
    info = compiled._core.kernel_info
    if info is None:
        yield "work", "none: the tensor is empty"
        return
    yield "threads", f"{info['threads']} of {compiled.num_threads}"
    if info["columns"]:
        kind = (
            f"rows of {info['row']} neighbouring elements, vectors of {info['lanes']} lanes across"
        )
    else:
        kind = f"planes, {info['lanes']} lanes along each"
        kind += f"; each in {info['pieces']} pieces" if info["pieces"] > 1 else ""
    chunks = f"{info['rows']:,} rows in {info['chunks']} chunks, to {info['partials']} partial sums"
    yield "summed", f"{kind}; {chunks}"
    sharing = (
        f"every thread takes panels of {info['panel']} channels of its own"
        if info["own_panels"]
        else f"the threads share panels of {info['panel']} channels"
    )
    yield "cut", f"{sharing}, in blocks of {info['block']}"
    stores = (
        "past the caches (non-temporal stores)" if info["non_temporal"] else "through the caches"
    )
    yield "written", stores


def _onednn(compiled: CompiledBatchNormTrainingBackward) -> Lines:
    yield "runs", compiled.implementation
    graph = compiled.graph
    for op in graph.ops:
        yield "op", f"{op.kind} {dict(op.attrs)}"
        yield "shown as", f"{op.inputs[0]} ({op.attrs.get('data_format')})"
    for part in graph.partitions:
        yield "partition", f"{part.id}, {'supported' if part.supported else 'not supported'}"
    runs: list[Run] = []
    with log_runs_to(runs.append):
        _call(compiled, _memory_of(compiled))()
    kernels = dict.fromkeys(kernel for run in runs for kernel in run.kernels)
    yield "kernel", ", ".join(kernels) or "none told"
    yield "threads", str(compiled.num_threads)


def _memory_of(compiled: CompiledBatchNormTrainingBackward) -> Memory:
    """Make tensors in whose turns none is found in the cache."""
    spec = compiled.spec
    number = copies_past_the_cache(3 * math.prod(spec.shape) * spec.numpy_dtype.itemsize)
    names = ("src", "diff_dst", "diff_src")
    copies = [[{name: ones(spec) for name in names}] for _ in range(number)]
    kind = DTYPES[compiled.stats_dtype]
    vectors = ("mean", "variance", "gamma", "diff_gamma", "diff_beta")
    return Memory(
        copies,
        {name: np.ones(compiled.stats_shape, kind) for name in vectors},
        itertools.cycle(range(number)),
    )


def _call(compiled: CompiledBatchNormTrainingBackward, memory: Memory) -> Callable[[], object]:
    vectors = memory.vectors
    gamma = vectors["gamma"] if compiled.gamma else None
    sums = (
        (vectors["diff_gamma"], vectors["diff_beta"]) if compiled.outputs == "all" else (None, None)
    )

    def call() -> object:
        (layer,) = memory.copies[next(memory.turns)]
        out = (layer["diff_src"], *sums)
        inputs = layer["src"], layer["diff_dst"], vectors["mean"], vectors["variance"], gamma
        return compiled(*inputs, out=out)

    return call


def _times(compiled: CompiledBatchNormTrainingBackward, seconds: float) -> Lines:
    seen = compiled._core.geometry
    case = (
        Case("", (seen["outer"], seen["channels"]), compiled.spec.dtype, "NXC")
        if seen["inner"] == 1
        else Case("", (seen["outer"], seen["channels"], seen["inner"]), compiled.spec.dtype, "NCX")
    )
    if not case.bytes:
        yield "moves", "nothing"
        return
    memory = _memory_of(compiled)
    calls = {"call": _call(compiled, memory), "triad": triad_call(memory)}
    times = median_seconds(calls, seconds=seconds)
    rate = 3 * case.tensor_bytes / times["triad"]
    floor = case.floor_bytes / rate
    tensors = case.floor_bytes // case.tensor_bytes
    why = (
        "src and diff_dst are read, diff_src is written"
        if tensors == 3
        else "src and diff_dst are read twice, diff_src is written"
    )
    yield "moves", f"{case.floor_bytes / 2**20:,.2f} MiB, {tensors} tensors: {why}"
    yield "memory gives", f"{rate / 1e9:.1f} GB/s (a triad on tensors of this size)"
    yield "floor", f"{floor * 1e6:,.1f} us"
    yield "takes", f"{times['call'] * 1e6:,.1f} us; share of the floor {floor / times['call']:.0%}"


def _findings(path: Path, spec: TensorSpec, data_format: DataFormatLike) -> list[str]:
    try:
        with path.open("rb") as file:  # NumPy leaves its own open where there is no zip file
            arrays = dict(np.load(file))
    except (BadZipFile, EOFError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no .npz file of numbers: {error}") from None
    for name in ("src", "mean", "variance"):
        if name not in arrays:
            raise ValueError(f"{path} has no array {name!r}; it has {', '.join(arrays) or 'none'}")
    src, mean, variance = (_known_type(arrays[name]) for name in ("src", "mean", "variance"))
    if src.shape != spec.shape:
        raise ValueError(f"{path}: src has shape {src.shape}, and SHAPE is {spec.shape}")
    return check_statistics(src, mean, variance, data_format=data_format)


def _known_type(array: Array) -> Array:
    """NumPy's files keep of bfloat16 that it has two bytes."""
    return array.view(DTYPES["bf16"]) if array.dtype == np.dtype("V2") else array


def _show(
    op: BatchNormTrainingBackward, lines: list[tuple[str, str]], findings: list[str] | None
) -> None:
    out = console()
    out.print(repr(op), markup=False)
    grid = Table.grid(padding=(0, 2))
    for what, words in lines:
        grid.add_row(what, words)
    if findings is not None:
        for finding in findings or ["they are src's own"]:
            grid.add_row("statistics", finding)
    out.print(grid, markup=False)
