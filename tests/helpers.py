"""Shared by the tests: parametrizations, problems, guarded output buffers, child processes."""

import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import onedsl
from onedsl import testing
from onedsl.graph import Graph, GraphOp
from onedsl.runtime import onednn, run_log

TESTS = Path(__file__).resolve().parent
PROGRAMS = TESTS / "programs"
ROOT = TESTS.parent

FORMATS = [str(data_format) for data_format in onedsl.DataFormat]
BACKENDS = ["auto", "onednn"]
EPSILON = 1e-5

NUMPY = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}
# The op's type table: dtypes of the tensors and of the statistics.
TYPES = [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f32")]

types = pytest.mark.parametrize(("dtype", "stats"), TYPES)
dtypes = pytest.mark.parametrize("dtype", NUMPY)
formats = pytest.mark.parametrize("data_format", FORMATS)
backends = pytest.mark.parametrize("backend", BACKENDS)


def even_problem(
    shape: Iterable[int],
    dtype: str = "f32",
    stats: str = "f32",
    *,
    data_format: str = "NXC",
    seed: int = 0,
) -> testing.Problem:
    """Return a random problem without a channel of small variance.

    In a norm over all channels, the gradients of that channel would exceed those of the others.
    """
    axis = onedsl.DataFormat(data_format).channel_axis
    larger = [*shape]
    larger[axis] += 1
    problem = testing.random_problem(larger, dtype, stats, data_format=data_format, seed=seed)
    return testing.Problem(*(np.delete(a, -1, axis if a.ndim > 1 else 0) for a in problem))


def values_of(problem: testing.Problem) -> dict[str, np.ndarray]:
    """Return arrays for the inputs of every operator, by oneDNN's names."""
    values = problem._asdict() | {"beta": problem.mean / 4, "residual": problem.diff_dst}
    return values | {"dst": np.maximum(problem.src, 0)}


def missing_isa(dtype: str) -> str | None:
    """Return the instruction set that oneDNN needs for a type and this process lacks, or None.

    Follows oneDNN's documentation and the ISA that oneDNN reports, independently of onedsl.
    """
    isa = onednn.cpu_isa()
    newer = "avx10" in isa
    if dtype == "bf16" and not (isa.startswith("avx512_core") or newer):
        return "AVX512"
    if dtype == "f16" and not ("fp16" in isa or "amx" in isa or newer):
        return "AVX512_FP16"
    return None


def runs(backend: str, dtype: str) -> bool:
    """Return whether the backend can run the type in this process."""
    return backend != "onednn" or missing_isa(dtype) is None


def usable(*dtypes: str, backends: list[str] = BACKENDS) -> pytest.MarkDecorator:
    """Parametrize over each type with each backend that can run it in this process.

    test_matrix.py checks that the other pairs raise UnsupportedError.
    """
    pairs = [(d, b) for d in dtypes or NUMPY for b in backends if runs(b, d)]
    return pytest.mark.parametrize(
        ("dtype", "backend"), pairs, ids=["-".join(pair) for pair in pairs]
    )


class SolvedProblem(NamedTuple):
    """A problem and its float64 gradients."""

    problem: testing.Problem
    expected: onedsl.BatchNormGradients


@functools.lru_cache(maxsize=64)
def case(shape: tuple[int, ...], dtype: str, stats: str, data_format: str) -> SolvedProblem:
    """Return a cached problem with its float64 gradients. Its arrays are read-only."""
    problem = testing.random_problem(shape, dtype, stats, data_format=data_format)
    for array in problem:
        array.flags.writeable = False
    options = {"epsilon": EPSILON, "data_format": data_format}
    return SolvedProblem(problem, testing.batch_norm_backward(*problem, **options))


HANGS = 600  # seconds after which a program is said to hang: far more than any needs
# Waiting threads sleep: for more threads than cores.
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
ON_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}


def capped(**caps: str) -> dict[str, str]:
    """Return a child's environment with these caps only, without those of this process."""
    empty = {
        name: "" for name in ("ONEDNN_MAX_CPU_ISA", "ONEDSL_MAX_CPU_ISA") if name in os.environ
    }
    return {**empty, **caps, "PYTHONPATH": str(TESTS)}


def shape_of(data_format: str, batch: int, channels: int, spatial: tuple[int, ...]) -> Any:
    if data_format == "NXC":
        return (batch, *spatial, channels)
    return (batch, channels, *spatial)


def in_order(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Copy an array to dense memory whose axes, slowest first, are `order`."""
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    copy = raw[1:].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def in_record(array: np.ndarray) -> np.ndarray:
    """Copy to a field of a packed record: strides are no multiples of the item size."""
    records = np.zeros(array.shape, [("pad", "u1"), ("value", array.dtype)])
    records["value"] = array
    return records["value"]


GUARD = 256


class Guarded:
    """Output buffers filled with NaN, each between guard bytes that must not change."""

    def __init__(self, *likes: np.ndarray, offset: int = 0) -> None:
        """Allocate a buffer like each array, `offset` items after an aligned address."""
        self.buffers: list[np.ndarray] = []
        self._memory: list[tuple[np.ndarray, np.ndarray]] = []  # with a copy
        for like in likes:
            assert onedsl.TensorSpec.of(like), "outputs must be dense"
            raw = np.full(2 * GUARD + offset * like.itemsize + like.nbytes, 0xA5, np.uint8)
            flat = raw[GUARD + offset * like.itemsize : -GUARD].view(like.dtype)
            flat[...] = np.nan
            self.buffers.append(np.lib.stride_tricks.as_strided(flat, like.shape, like.strides))
            self._memory.append((raw, raw.copy()))

    @property
    def out(self) -> onedsl.BatchNormGradients:
        return onedsl.BatchNormGradients(*self.buffers)

    def check_walls(self) -> None:
        for (raw, before), buffer in zip(self._memory, self.buffers, strict=True):
            start, stop = len(raw) - GUARD - buffer.nbytes, len(raw) - GUARD
            assert np.array_equal(raw[:start], before[:start]), "bytes before an output changed"
            assert np.array_equal(raw[stop:], before[stop:]), "bytes after an output changed"

    def check_untouched(self) -> None:
        for raw, before in self._memory:
            assert np.array_equal(raw, before), "an output was written"


def outputs_like(problem: testing.Problem, offset: int = 0) -> Guarded:
    return Guarded(problem.src, problem.mean, problem.mean, offset=offset)


def run_program(
    *command: str | Path, status: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program, and check its exit status, unless `status` is None."""
    child = subprocess.run(
        [str(word) for word in command],
        check=False,
        **{"capture_output": True, "text": True, "timeout": HANGS} | options,
    )
    output = f"{child.stdout}"[-5000:] + f"{child.stderr}"[-5000:]
    assert status in (None, child.returncode), f"{command}: {output}"
    return child


def run_python(
    *arguments: str | Path, environment: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python in a child process, from a folder without a source tree of onedsl."""
    options = {"cwd": os.path.dirname(sys.executable)} | options
    environment = os.environ | (environment or {})
    return run_program(sys.executable, *arguments, env=environment, **options)


COMPILER = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="compiles a C file: no compiler")


def preloaded(source: str, folder: Path) -> dict[str, str]:
    """Return the environment of a process that loads a C file of programs/ before all others."""
    fake = folder / "libengine.so"
    run_program(COMPILER, "-shared", "-fPIC", "-o", fake, PROGRAMS / source)
    return {"LD_PRELOAD": ":".join(filter(None, [str(fake), os.environ.get("LD_PRELOAD")]))}


@contextlib.contextmanager
def closed_pipe() -> Iterator[dict[str, Any]]:
    """Yield options of `run_program` for a child whose stdout is a pipe that nothing reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield {"capture_output": False, "stdout": writer, "stderr": subprocess.PIPE}
    finally:
        os.close(writer)


def run_child(
    code: str, arguments: tuple[str, ...] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a short program. Longer ones are files in programs/."""
    return run_python("-c", code, *arguments, **options)


def run_script(
    name: str | Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a file of programs/, which may import helpers."""
    environment = {"PYTHONPATH": str(TESTS)} | (environment or {})
    return run_python(PROGRAMS / name, *arguments, environment=environment, **options)


@contextlib.contextmanager
def run_records(operation: str = "") -> Iterator[list[Any]]:
    """Collect the records of the run log, or those of operations whose names contain a text."""
    records: list[Any] = []

    def collect(record: run_log.Record) -> None:
        if operation in getattr(record, "operation", ""):  # calls of PyTorch have none
            records.append(record)

    with run_log.subscribe(collect):
        yield records


def copied(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the names of the arguments that were copied, by the log of the package."""
    return [record.args[0] for record in log.records if record.module == "validation"]


def before_last_line(function: Any) -> Callable[[FrameType], bool]:
    """Return whether a frame is a function's, before its last line."""
    code = function.__code__
    end = max(line for *_, line in code.co_lines() if line)
    return lambda frame: frame.f_code is code and frame.f_lineno < end


def interruptions(
    function: Callable[[], object], interrupted: Callable[[FrameType], bool]
) -> Iterator[int]:
    """Call a function, interrupted at each step of the interpreter in some frames in turn."""
    before = sys.gettrace()
    for number in itertools.count():
        steps = iter(range(number))

        def trace(frame: FrameType, event: str, _: Any, steps: Iterator[int] = steps) -> Any:
            if not interrupted(frame):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps, None) is None:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            function()
            return
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        yield number


def operator_of(text: str) -> onedsl.BatchNormTrainingBackward:
    """Return the operator of a graph of one gradient in JSON."""
    (op,) = Graph.from_json(text).ops
    return onedsl.BatchNormTrainingBackward(op.attrs["epsilon"], op.attrs["data_format"])


def with_tensors(op: GraphOp, **changes: dict[str, Any]) -> GraphOp:
    """Return an op in which the tensors of these ports have other fields."""
    tensors = [dataclasses.replace(t, **changes.get(name, {})) for _, name, t in op.ports]
    inputs, outputs = tuple(tensors[: len(op.inputs)]), tuple(tensors[len(op.inputs) :])
    return dataclasses.replace(op, inputs=inputs, outputs=outputs)
