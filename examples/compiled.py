"""An operator that is compiled once and called many times, into memory that is there already."""

import timeit

import numpy as np

import onedsl
from onedsl import testing

SHAPE = (4, 8, 8, 32)  # small, so that the cost of the call itself shows
EPSILON = 1e-5
CALLS = 2000

src, diff_dst, mean, variance, gamma = testing.random_problem(SHAPE, "bf16")
expected = testing.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=EPSILON)
op = onedsl.BatchNormTrainingBackward(EPSILON, "NXC")

# Everything that decides how the gradient is computed is known here, and so decided here.
compiled = op.compile(onedsl.TensorSpec(SHAPE, "bf16"), stats_dtype="f32", gamma=True)
print(f"{op} for {compiled.spec}")
print(f"  runs: {compiled.implementation}, threads: {compiled.num_threads}")

# out: the results go where you say, and nothing is allocated.
out = onedsl.BatchNormGradients(np.empty_like(src), np.empty_like(mean), np.empty_like(mean))
compiled(src, diff_dst, mean, variance, gamma, out=out)
testing.assert_gradients_close(out, expected)
print("into buffers that were there: agrees with the float64 reference")


def compare_calls(what: str, out: onedsl.BatchNormGradients | None) -> None:
    """Time the direct call and the compiled one."""
    arguments = (src, diff_dst, mean, variance, gamma)
    direct = timeit.timeit(lambda: op(*arguments, out=out), number=CALLS) / CALLS
    reused = timeit.timeit(lambda: compiled(*arguments, out=out), number=CALLS) / CALLS
    print(f"  {what}: {direct * 1e6:.1f} us a direct call, {reused * 1e6:.1f} us a compiled one")


compare_calls("new arrays", None)
compare_calls("with out= ", out)

# In place: diff_src may overwrite diff_dst itself, which saves a tensor. No other overlap may be.
in_place = out._replace(diff_src=diff_dst)
compiled(src, diff_dst, mean, variance, gamma, out=in_place)
testing.assert_gradients_close(in_place, expected)
print("diff_src over diff_dst: agrees with the float64 reference")
try:
    compiled(src, diff_dst, mean, variance, gamma, out=out._replace(diff_src=src))
except ValueError as error:
    print(f"diff_src over src is refused: {error}")

# What it was not compiled for is refused as well, in words, before anything is written.
try:
    compiled(src[:2], diff_dst[:2], mean, variance, gamma)
except ValueError as error:
    print(f"another shape is refused: {error}")

# Which kernels are fastest for this shape? autotune times onedsl's and oneDNN's, and keeps one.
tuned = op.compile(onedsl.TensorSpec(SHAPE, "bf16"), autotune=True)
print(f"autotune keeps backend={tuned.backend!r}")
