"""Compile an operator once and call it many times, with results in existing arrays."""

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

# compile selects the backend and makes the plan for this shape and these types.
compiled = op.compile(onedsl.TensorSpec(SHAPE, "bf16"), stats_dtype="f32", gamma=True)
print(f"{op} for {compiled.spec}")
print(f"  runs {compiled.implementation} with {compiled.num_threads} threads")

# out: the results are written to existing arrays, and nothing is allocated.
out = onedsl.BatchNormGradients(np.empty_like(src), np.empty_like(mean), np.empty_like(mean))
compiled(src, diff_dst, mean, variance, gamma, out=out)
testing.assert_close(out, expected)
print("out=: agrees with the float64 reference")


def compare_calls(what: str, out: onedsl.BatchNormGradients | None) -> None:
    """Time direct and compiled calls."""
    arguments = (src, diff_dst, mean, variance, gamma)
    direct = timeit.timeit(lambda: op(*arguments, out=out), number=CALLS) / CALLS
    reused = timeit.timeit(lambda: compiled(*arguments, out=out), number=CALLS) / CALLS
    print(f"  {what}: direct call {direct * 1e6:.1f} us, compiled call {reused * 1e6:.1f} us")


compare_calls("new arrays", None)
compare_calls("with out= ", out)

# In place: diff_src may be the array diff_dst, which saves a tensor. No other overlap is allowed.
in_place = out._replace(diff_src=diff_dst)
compiled(src, diff_dst, mean, variance, gamma, out=in_place)
testing.assert_close(in_place, expected)
print("in place: agrees with the float64 reference")
try:
    compiled(src, diff_dst, mean, variance, gamma, out=out._replace(diff_src=src))
except ValueError as error:
    print(f"ValueError: {error}")

# A compiled operator rejects every other shape and type before it writes anything.
try:
    compiled(src[:2], diff_dst[:2], mean, variance, gamma)
except ValueError as error:
    print(f"ValueError: {error}")
