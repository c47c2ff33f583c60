"""Write results to existing arrays, and the gradient in place of the one that it consumes."""

import argparse

import numpy as np

import onedsl
from onedsl import bench, testing

argparse.ArgumentParser(description=__doc__).parse_args()

SHAPE = (4, 8, 8, 32)  # small, so that the overhead of a call is visible

inputs = testing.random_problem(SHAPE, "bf16")  # src, diff_dst, mean, variance, gamma
expected = testing.batch_norm_backward(*inputs, epsilon=1e-5)
op = onedsl.BatchNormTrainingBackward(epsilon=1e-5, data_format="NXC")

# out: the results are written to existing arrays, and nothing is allocated.
statistic = np.empty_like(inputs.mean)
out = onedsl.BatchNormGradients(np.empty_like(inputs.src), statistic, statistic.copy())
op(*inputs, out=out)
testing.assert_close(out, expected)
print("out=: agrees with the float64 reference")

calls = {"new arrays": lambda: op(*inputs), "with out=": lambda: op(*inputs, out=out)}
for what, seconds in bench.time_calls(calls).seconds.items():
    print(f"  {what}: {seconds * 1e6:.1f} us a call")

# In place: diff_src may be the array diff_dst, which saves a tensor. No other overlap is allowed.
in_place = out._replace(diff_src=inputs.diff_dst)
op(*inputs, out=in_place)
testing.assert_close(in_place, expected)
print("in place: agrees with the float64 reference")
try:
    op(*inputs, out=out._replace(diff_src=inputs.src))
except ValueError as error:
    print(f"another overlap: rejected, because {error}")
