"""Uses a pool of forked workers after the parent has used onedsl."""

import multiprocessing
import warnings

import numpy as np

import onedsl

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads running
op = onedsl.BatchNormTrainingBackward(1e-5)
x, s = np.ones((64, 64, 32), np.float32), np.ones(32, np.float32)
plan = op.compile(onedsl.TensorSpec.of(x))


def work(i):
    return float(op(x * i, x * i, s, s).diff_beta[0] + plan(x, x, s, s, s).diff_beta[0])


if __name__ == "__main__":
    expected = [4096.0 * (i + 1) for i in range(8)]
    assert [work(i) for i in range(8)] == expected
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(work, range(8)) == expected
