"""Runs onedsl's kernels on arrays next to inaccessible pages.

Every input and output ends or begins at such a page, so a kernel that accesses memory beyond an
array crashes. The program prints the name of each run before it starts.

Command line: dtype, dtype of statistics ("frozen" for frozen ones), data format, "layers" for the
other operators.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import sys
from collections.abc import Iterator
from typing import Any

import helpers
import numpy as np
from helpers import EPSILON

import onedsl
from onedsl import _core, testing

CHANNELS = [1, 3, 8, 17, 31, 64, 130]
INNER = [1, 3, 7, 17, 49, 100]
BATCHES = [1, 2, 9, 65]
MOST_ELEMENTS = 12_000

# Axes of an input of rank 4 that the statistics of BatchNormalizationGrad keep.
KEPT = [(), (0,), (1,), (3,), (0, 1), (1, 3), (0, 2), (0, 1, 2, 3)]

_PROTECTED = 0  # PROT_NONE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Memory for one array at a time, between two inaccessible pages."""

    def __init__(self) -> None:
        self._allocate(0)

    def _allocate(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self._bytes = -(-max(nbytes, 1) // page) * page
        self._memory = mmap.mmap(-1, self._bytes + 2 * page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for guard in (address, address + page + self._bytes):
            if _mprotect(guard, page, _PROTECTED) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], side: str) -> np.ndarray:
        """Return an array without accessible memory before its start or after its end."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self._bytes:
            self._allocate(nbytes)
        offset = mmap.PAGESIZE + (0 if side == "start" else self._bytes - nbytes)
        return np.ndarray(shape, dtype, self._memory, offset)


# Reused for all runs, because allocating memory takes longer than a run.
TENSORS = [Guarded() for _ in ("src", "diff_dst", "diff_src")]
STATISTICS = [Guarded() for _ in ("mean", "variance", "gamma", "diff_gamma", "diff_beta")]


def run(name: str, call: Any, inputs: Any, expected: Any, shape: tuple[int, ...]) -> None:
    """Compare a call on guarded arrays with the expected results, at both sides and in place.

    Tensors of the given shape repeat those of inputs, so that no large reference is needed. The
    results then repeat diff_src of expected, and contain multiples of its sums.
    """
    tensor, mean = inputs[0], inputs[2]
    repeats = math.prod(shape) // tensor.size
    for side, in_place in itertools.product(("end", "start"), (False, True)):
        print(f"{name}, guard page at the {side}{', in place' if in_place else ''}", flush=True)
        src, diff_dst, diff_src = (m.array(shape, tensor.dtype, side) for m in TENSORS)
        *statistics, diff_gamma, diff_beta = (
            m.array(mean.shape, mean.dtype, side) for m in STATISTICS
        )
        for array, values in zip((src, diff_dst, *statistics), inputs, strict=True):
            array.reshape(-1, values.size)[...] = values.ravel()
        for array in (diff_src, diff_gamma, diff_beta):
            array[...] = np.nan
        if in_place:
            diff_src = diff_dst
        call(src, diff_dst, *statistics, out=(diff_src, diff_gamma, diff_beta))

        parts = diff_src.reshape(repeats, *tensor.shape)
        bits = parts.view(f"u{parts.itemsize}")
        assert (bits == bits[0]).all(), "repeated elements have different gradients"
        once, *sums = expected
        testing.assert_gradients_close(
            (parts[0], diff_gamma, diff_beta), (once, *(repeats * total for total in sums))
        )


Sizes = tuple[int, int, int]  # batch, channels, inner


def sizes(itemsize: int) -> Iterator[tuple[Sizes, Sizes]]:
    """Yield the sizes of a problem, and those of tensors that contain it once or repeatedly."""
    for batch, channels, inner in itertools.product(BATCHES, CHANNELS, INNER):
        if batch * channels * inner <= MOST_ELEMENTS:
            yield (batch, channels, inner), (batch, channels, inner)
    for inner in (1, 49):
        yield (33, 24, inner), (33, 24, inner)

    # Tensors larger than the last-level cache use non-temporal stores and several threads.
    elements = _core.last_cache_bytes() // 5 // itemsize
    for channels, inner in ((3, 3), (67, 7), (32, 49), (5, 4099)):
        batch = 4099 // (channels * inner) + 1
        repeats = math.ceil(elements / (batch * channels * inner))
        yield (batch, channels, inner), (repeats * batch, channels, inner)
    yield (1, 1, 4099), (1, 1, math.ceil(elements / 4099) * 4099)


def run_batch_statistics(dtype: str, stats: str, data_format: str) -> None:
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)

    def call(*inputs: np.ndarray, out: Any) -> None:
        op(*inputs, out=out, backend="native")

    for once, whole in sizes(helpers.NUMPY[dtype].itemsize):
        small, shape = (helpers.shape_of(data_format, b, c, (i,)) for b, c, i in (once, whole))
        problem = testing.random_problem(small, dtype, stats, data_format=data_format)
        # With src's own statistics, the gradient of a single element would be rounding error only.
        moved = {
            name: (getattr(problem, name) + 1).astype(problem.mean.dtype)
            for name in ("mean", "variance")
        }
        problem = problem._replace(**moved)
        expected = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)
        run(
            f"batch statistics, {dtype}/{stats}, {data_format}, {shape}",
            *(call, problem, expected, shape),
        )


def run_frozen_statistics(dtype: str) -> None:
    op = onedsl.BatchNormalizationGrad(EPSILON)
    odd = (9, 5, 6, 17)
    cases = [(odd, odd, kept) for kept in KEPT]
    for (b, c, i), (whole_b, _, whole_i) in sizes(helpers.NUMPY[dtype].itemsize):
        cases.append(((b, c, i), (whole_b, c, whole_i), (1,)))
        cases.append(((b, i, c), (whole_b, whole_i, c), (2,)))
    rng = np.random.default_rng(0)
    for small, shape, kept in cases:
        keep = [size if axis in kept else 1 for axis, size in enumerate(small)]
        inputs = (
            rng.uniform(0.5, 1.5, small),
            # The factor prevents an overflow of the sums in f16.
            rng.uniform(0.5, 1.5, small) * min(1, 10_000 * math.prod(keep) / math.prod(shape)),
            rng.uniform(-1, 0, keep),
            *(rng.uniform(0.5, 1.5, keep) for _ in range(2)),
        )
        narrow = tuple(array.astype(helpers.NUMPY[dtype]) for array in inputs)
        expected = testing.batch_normalization_grad(*narrow, epsilon=EPSILON)
        run(f"frozen statistics, {dtype}, {shape}, {kept}", op, narrow, expected, shape)


class InPasses:
    """An operator that calls `reduce` on its first inputs, and then `apply`."""

    def __init__(self, op: Any, reduced: int) -> None:
        self._op, self._reduced = op, reduced
        self._schema = op._schema

    def __call__(self, *inputs: Any, out: Any = None, backend: str) -> Any:
        return self._op.apply(self._op.reduce(*inputs[: self._reduced]), *inputs, out=out)

    def __repr__(self) -> str:
        return f"{self._op} in passes"


def gradient_in_passes(epsilon: float, data_format: str) -> InPasses:
    return InPasses(onedsl.BatchNormTrainingBackward(epsilon, data_format), reduced=4)


def forward_in_passes(epsilon: float, data_format: str) -> InPasses:
    op = onedsl.BatchNormForwardTraining(epsilon, data_format=data_format)
    return InPasses(op, reduced=1)


# Operators with the names of their inputs and outputs, the input whose memory the first output may
# use, and options.
VECTORS = ("mean", "variance", "gamma", "beta")
NORMALIZED = ("dst", "running_mean", "running_variance", "batch_mean", "batch_variance")
GRADIENTS = ("diff_src", "diff_gamma", "diff_beta", "diff_residual")
LAYERS = [
    (gradient_in_passes, ("src", "diff_dst", *VECTORS[:3]), GRADIENTS[:3], "diff_dst", {}),
    (forward_in_passes, ("src", *VECTORS), NORMALIZED, "src", {}),
    (onedsl.BatchNormForwardTraining, ("src", *VECTORS), NORMALIZED, "src", {}),
    (onedsl.BatchNormReLUForwardTraining, ("src", *VECTORS, "residual"), NORMALIZED, "src", {}),
    (
        onedsl.BatchNormReLUTrainingBackward,
        ("src", "diff_dst", *VECTORS),
        GRADIENTS[:3],
        "diff_dst",
        {},
    ),
    (
        onedsl.BatchNormReLUTrainingBackward,
        ("src", "diff_dst", *VECTORS, "dst"),
        GRADIENTS,
        "diff_dst",
        {"residual": True},
    ),
]
TENSORS_BY_NAME = ("src", "diff_dst", "residual", "dst", "diff_src", "diff_residual")


def run_layers(dtype: str, stats: str, data_format: str) -> None:
    """Check that the other operators compute the same bits on guarded and on ordinary arrays."""
    memory = {name: Guarded() for name in {*TENSORS_BY_NAME, *VECTORS, *NORMALIZED, *GRADIENTS}}
    narrow, narrow_stats = helpers.NUMPY[dtype], helpers.NUMPY[stats]
    rng = np.random.default_rng(0)
    numbers = rng.uniform(0.5, 1.5, MOST_ELEMENTS)
    large = 8192 // narrow.itemsize * 1024  # uses non-temporal stores and several threads
    shapes = [s for s, _ in sizes(narrow.itemsize) if math.prod(s) <= MOST_ELEMENTS]
    for batch, channels, inner in [*shapes, (large // (67 * 49), 67, 49), (large // 67, 67, 1)]:
        shape = helpers.shape_of(data_format, batch, channels, (inner,))
        for kind, inputs, outputs, in_place_input, options in LAYERS:
            op: Any = kind(EPSILON, data_format=data_format)
            padding = [None] * (len(op._schema.outputs) - len(outputs))

            def array(name: str, side: str, shape: Any = shape, channels: int = channels) -> Any:
                is_tensor = name in TENSORS_BY_NAME
                where = (shape, narrow) if is_tensor else ((channels,), narrow_stats)
                made = memory[name].array(*where, side)
                made.reshape(-1)[...] = np.resize(numbers, made.size)
                return made

            given = [array(name, "end").copy() for name in inputs]
            expected = [a for a in op(*given, **options, backend="native") if a is not None]
            for side, in_place in itertools.product(("end", "start"), (False, True)):
                what = f"guard page at the {side}{', in place' if in_place else ''}"
                print(f"{op}, {dtype}/{stats}, {shape}, {what}", flush=True)
                guarded = {name: array(name, side) for name in inputs}
                out = [array(name, side) for name in outputs]
                if in_place:
                    out[0] = guarded[in_place_input]
                op(*guarded.values(), **options, out=(*out, *padding), backend="native")
                for a, b in zip(out, expected, strict=True):
                    assert a.tobytes() == b.tobytes()


def main(dtype: str, stats: str, data_format: str = "", what: str = "gradient") -> None:
    if what == "layers":
        run_layers(dtype, stats, data_format)
    elif stats == "frozen":
        run_frozen_statistics(dtype)
    else:
        run_batch_statistics(dtype, stats, data_format)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
