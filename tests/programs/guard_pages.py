"""Runs onedsl's kernels on arrays next to inaccessible pages.

Every input and output ends or begins at such a page, so a kernel that accesses memory beyond an
array crashes. The results must have the bits of those on ordinary arrays. The program prints the
name of each run before it starts.

Command line: dtype, dtype of statistics ("frozen" for frozen ones), data format.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import sys
from typing import Any

import helpers
import numpy as np
from helpers import EPSILON

import onedsl

CHANNELS = [1, 3, 8, 17, 31, 64, 130]
INNER = [1, 3, 7, 17, 49, 100]
BATCHES = [1, 2, 9, 65]
MOST_ELEMENTS = 12_000
SMALL = [s for s in itertools.product(BATCHES, CHANNELS, INNER) if math.prod(s) <= MOST_ELEMENTS]

# Axes of an input of rank 4 that the statistics of BatchNormalizationGrad keep.
KEPT = [(), (0,), (1,), (3,), (0, 1), (1, 3), (0, 2), (0, 1, 2, 3)]

_PROTECTED = 0  # PROT_NONE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Memory for one array at a time, between two inaccessible pages.

    It is reused for all runs, because allocating memory takes longer than a run.
    """

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
BACKWARD = (("src", "diff_dst", *VECTORS[:3]), GRADIENTS[:3], "diff_dst", {})
MASKED = ("src", "diff_dst", *VECTORS)
LAYERS = [
    (onedsl.BatchNormTrainingBackward, *BACKWARD),
    (gradient_in_passes, *BACKWARD),
    (forward_in_passes, ("src", *VECTORS), NORMALIZED, "src", {}),
    (onedsl.BatchNormForwardTraining, ("src", *VECTORS), NORMALIZED, "src", {}),
    (onedsl.BatchNormReLUForwardTraining, ("src", *VECTORS, "residual"), NORMALIZED, "src", {}),
    (onedsl.BatchNormReLUTrainingBackward, MASKED, GRADIENTS[:3], "diff_dst", {}),
    (
        onedsl.BatchNormReLUTrainingBackward,
        (*MASKED, "dst"),
        GRADIENTS,
        "diff_dst",
        {"residual": True},
    ),
]
TENSORS = ("src", "diff_dst", "residual", "dst", "diff_src", "diff_residual")
MEMORY = {name: Guarded() for name in {*TENSORS, *VECTORS, *NORMALIZED, *GRADIENTS}}
NUMBERS = np.random.default_rng(0).uniform(0.5, 1.5, MOST_ELEMENTS)


def run(op: Any, layer: Any, dtypes: Any, shape: Any, stats_shape: Any) -> None:
    """Compare the bits of a call on guarded arrays, at both sides and in place, with plain ones."""
    inputs, outputs, in_place_input, options = layer
    padding = [None] * (len(op._schema.outputs) - len(outputs))

    def array(name: str, side: str) -> np.ndarray:
        is_tensor = name in TENSORS
        made = MEMORY[name].array(shape if is_tensor else stats_shape, dtypes[not is_tensor], side)
        made.reshape(-1)[...] = np.resize(NUMBERS, made.size)
        return made

    given = [array(name, "end").copy() for name in inputs]
    expected = [a for a in op(*given, **options, backend="native") if a is not None]
    for side, in_place in itertools.product(("end", "start"), (False, True)):
        what = f"guard page at the {side}{', in place' if in_place else ''}"
        print(f"{op}, {dtypes[0]}, {shape}, {stats_shape}, {what}", flush=True)
        guarded = {name: array(name, side) for name in inputs}
        out = [array(name, side) for name in outputs]
        if in_place:
            out[0] = guarded[in_place_input]
        op(*guarded.values(), **options, out=(*out, *padding), backend="native")
        for a, b in zip(out, expected, strict=True):
            assert a.tobytes() == b.tobytes()


def main(dtype: str, stats: str, data_format: str = "") -> None:
    data = helpers.NUMPY[dtype]
    rows = 8192 // data.itemsize * 1024 // 67  # uses non-temporal stores and several threads
    large = [(rows // 49, 67, 49), (rows, 67, 1), (1, 1, 67 * rows)]
    if stats != "frozen":
        dtypes = (data, helpers.NUMPY[stats])
        for (batch, channels, inner), (kind, *layer) in itertools.product(SMALL + large, LAYERS):
            op = kind(EPSILON, data_format=data_format)
            shape = helpers.shape_of(data_format, batch, channels, (inner,))
            run(op, layer, dtypes, shape, (channels,))
    else:
        cases = [((9, 5, 6, 17), kept) for kept in KEPT]
        cases += [(shape, kept) for shape in SMALL + large for kept in ((1,), (2,))]
        for shape, kept in cases:
            keep = tuple(size if axis in kept else 1 for axis, size in enumerate(shape))
            run(onedsl.BatchNormalizationGrad(EPSILON), BACKWARD, (data, data), shape, keep)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
