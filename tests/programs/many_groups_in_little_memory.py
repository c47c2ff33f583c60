"""Runs many groups of channels on several threads without memory for a group's scratch."""

import resource

import numpy as np

import onedsl

CHANNELS = 100_000
KEPT = (16, 1, CHANNELS)
op = onedsl.BatchNormalizationGrad(1e-5)
x, statistics = np.ones((16, 2, CHANNELS), np.float32), np.ones(KEPT, np.float32)
out = (np.empty_like(x), np.empty_like(statistics), np.empty_like(statistics))
plan = op.compile(onedsl.TensorSpec.of(x), KEPT)
info = plan._core.kernel_info
assert info["groups"] == 16
assert info["threads"] > 1

small = np.ones((4096, 64), np.float32)
onedsl.BatchNormTrainingBackward(1e-5)(small, small, *[small[0]] * 2)  # starts the threads
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), limits[1]))
try:
    op(x, x, *[statistics] * 3, out=out)
except MemoryError:
    print("MemoryError")
resource.setrlimit(resource.RLIMIT_AS, limits)
assert (op(x, x, *[statistics] * 3, out=out).output_bias_gradient == 2).all()
