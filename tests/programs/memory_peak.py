"""Checks that calls allocate no temporaries of the size of a tensor.

Needs MALLOC_MMAP_THRESHOLD_=131072. Otherwise, malloc may keep temporaries that were freed, and use
their memory again.
"""

import sys

import helpers
import numpy as np
from processes import peak

import onedsl
from onedsl import _core

TENSOR = 16 << 20  # bytes

name, backend, planes = sys.argv[1], sys.argv[2], int(sys.argv[3])
dtype = helpers.NUMPY[name]


length = TENSOR // dtype.itemsize // 4 // 24
flat = [np.ones(4 * length * 24, dtype) for _ in range(3)]
for shape in (4, length, 24), (4, 24, length), (1, 2, 48 * length):
    tensors = [memory.reshape(shape) for memory in flat]
    channels = min(24, shape[1])
    stats = [np.ones(channels, np.float32) for _ in range(5)]
    for data_format in ("NXC", "NCX"):
        op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
        # A view with the channels where the format has them.
        reverse = (shape[2] == channels) != (data_format == "NXC")
        src, diff_dst, out = (t.transpose(0, 2, 1) if reverse else t for t in tensors)
        few = (slice(None), slice(64)) if data_format == "NXC" else (..., slice(64))
        small = [np.copy(a[few]) for a in (src, diff_dst, out)]
        op(*small[:2], *stats[:3], out=(small[2], *stats[3:]), backend=backend)
        before = peak()
        op(src, diff_dst, *stats[:3], out=(out, *stats[3:]), backend=backend)
        print(shape, data_format, (peak() - before) / TENSOR)
        assert peak() - before < TENSOR // 8 + planes * shape[2] * 4 * _core.max_threads()

# onedsl's kernels need no copy of channels with gaps. The same measurement detects other copies.
wide = np.ones((shape[0], 2 * shape[1], shape[2]), dtype)[:, ::2]
transposed = np.ones((*shape[2:], *shape[:2]), dtype).transpose(1, 2, 0)
wide_out = np.ones_like(wide.base)[:, ::2]
for pair in (wide, diff_dst), (src, transposed):
    is_copied = backend == "onednn" or pair[1] is transposed
    results = out if is_copied else wide_out
    before = peak()
    op(*pair, *stats[:3], out=(results, *stats[3:]), backend=backend)
    print("strided", (peak() - before) / TENSOR)
    # oneDNN's second call uses the memory of the first one's copies again.
    has_peak = is_copied and (backend == "auto" or pair[0] is wide)
    assert (peak() - before > TENSOR // 2) == has_peak
    assert peak() - before < TENSOR // 8 or has_peak
