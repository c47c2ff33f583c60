"""Runs several calls in one program, and many queued programs, on the first few CPUs."""

import functools
import os
import sys

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

import jax  # noqa: E402 - it counts the CPUs when it is imported
import numpy as np  # noqa: E402

import onedsl.jax  # noqa: E402
from onedsl import testing  # noqa: E402

call = functools.partial(onedsl.jax.batch_norm_backward, epsilon=1e-5)


@jax.jit
def two(src, diff_dst, *rest):
    first, second = call(src, diff_dst, *rest), call(src + 1, 2 * diff_dst, *rest)
    third = call(first.diff_src + second.diff_src, diff_dst, *rest)
    return [a + b + c for a, b, c in zip(first, second, third, strict=True)]


for shape, times in [((1, 8), 300), ((8, 16, 16, 64), 50), ((16, 56, 56, 64), 3)]:
    problem = testing.random_problem(shape)
    one = two(*problem)
    for many in [two(*problem) for _ in range(times)]:
        for a, b in zip(one, many, strict=True):
            np.testing.assert_array_equal(a, b)
