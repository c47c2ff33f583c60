"""Write results to existing arrays, and in place."""

import functools
import timeit

import numpy as np

import onedsl
from onedsl import testing

SHAPE = (4, 8, 8, 32)  # small, so that the overhead of a call is visible
EPSILON = 1e-5
CALLS = 2000

src, diff_dst, mean, variance, gamma = testing.random_problem(SHAPE, "bf16")
expected = testing.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=EPSILON)
op = onedsl.BatchNormTrainingBackward(EPSILON, "NXC")

# out: the results are written to existing arrays, and nothing is allocated.
out = onedsl.BatchNormGradients(np.empty_like(src), np.empty_like(mean), np.empty_like(mean))
op(src, diff_dst, mean, variance, gamma, out=out)
testing.assert_close(out, expected)
print("out=: agrees with the float64 reference")

for what, arrays in (("new arrays", None), ("out=", out)):
    call = functools.partial(op, src, diff_dst, mean, variance, gamma, out=arrays)
    print(f"  {what}: {timeit.timeit(call, number=CALLS) / CALLS * 1e6:.1f} us a call")

# In place: diff_src may be the array diff_dst, which saves a tensor. No other overlap is allowed.
in_place = out._replace(diff_src=diff_dst)
op(src, diff_dst, mean, variance, gamma, out=in_place)
testing.assert_close(in_place, expected)
print("in place: agrees with the float64 reference")
try:
    op(src, diff_dst, mean, variance, gamma, out=out._replace(diff_src=src))
except ValueError as error:
    print(f"ValueError: {error}")
