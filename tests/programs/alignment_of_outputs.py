"""Writes diff_src and diff_residual with non-temporal stores at addresses of any alignment.

A non-temporal store to an unaligned address crashes. Tensors fill the last-level cache, and the
rows of 67 channels begin at no cache line.
"""

import itertools

import numpy as np

import onedsl

RESULTS = ("diff_src", "diff_gamma", "diff_beta", "diff_residual")


def at_offset(offset: int, like: np.ndarray) -> np.ndarray:
    """Return an array like another one, `offset` bytes after the start of a cache line."""
    memory = np.empty(like.nbytes + 128, np.uint8)
    return np.ndarray(like.shape, like.dtype, memory, -memory.ctypes.data % 64 + offset)


for data_format, shape in (("NXC", (16_000, 67)), ("NCX", (20, 50, 1049))):
    op = onedsl.BatchNormActTrainingBackward(1e-5, data_format, activation="relu")
    rng = np.random.default_rng(0)
    src, diff_dst, dst = rng.standard_normal((3, *shape), dtype=np.float32)
    channels = shape[1]
    statistics = rng.uniform(0.5, 2, (4, channels)).astype(np.float32)
    masked = np.where(dst > 0, diff_dst, 0)
    expected = onedsl.BatchNormTrainingBackward(1e-5, data_format)(src, masked, *statistics[:3])
    for first, second in itertools.product((0, 4), (0, 4, 32)):
        print(f"{data_format}, diff_src at {first}, diff_residual at {second}", flush=True)
        sums = np.empty((2, channels), np.float32)
        out = (at_offset(first, src), *sums, at_offset(second, src))
        got = op(src, diff_dst, *statistics, dst=dst, diff_residual=True, out=out)
        for name, a, b in zip(RESULTS, got, (*expected, masked), strict=True):
            assert a.tobytes() == b.tobytes(), name
print("done")
