"""Batch norm of a batch that is distributed over MPI processes.

    mpiexec -n 2 python examples/mpi.py

Each process computes the sums of its images, MPI adds them, and each process computes its results
from the total. Rank 0 gathers the results and compares them with those of a single call.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

import onedsl
from onedsl import testing

EPSILON = 1e-5


def moments_of_all(comm: MPI.Comm, moments: onedsl.BatchNormMoments) -> onedsl.BatchNormMoments:
    """Return the moments of all processes: gather them, because they do not add elementwise."""
    vector = moments.to_vector()
    vectors = np.empty((comm.size, vector.size))
    comm.Allgather(vector, vectors)
    total = sum(map(onedsl.BatchNormMoments.from_vector, vectors))
    assert isinstance(total, onedsl.BatchNormMoments)
    return total


def sums_of_all(comm: MPI.Comm, sums: onedsl.BatchNormSums) -> onedsl.BatchNormSums:
    """Return the sums of all processes: their vectors add elementwise."""
    vector = sums.to_vector()
    comm.Allreduce(MPI.IN_PLACE, vector)
    return onedsl.BatchNormSums.from_vector(vector)


def main() -> None:
    """Run the forward and backward pass on all processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=33, help="in the batch")
    parser.add_argument("--save", type=Path, help="file for the results, written by rank 0")
    options = parser.parse_args()

    comm = MPI.COMM_WORLD
    # For simplicity, every process creates the whole batch and keeps its part.
    whole = testing.random_problem((options.images, 14, 14, 64), seed=0)
    mine = np.array_split(np.arange(options.images), comm.size)[comm.rank]
    src, diff_dst, gamma = whole.src[mine], whole.diff_dst[mine], whole.gamma
    running_mean, running_variance = np.zeros_like(gamma), np.ones_like(gamma)
    beta = np.zeros_like(gamma)

    forward = onedsl.BatchNormForwardTraining(EPSILON, momentum=0.9)
    moments = moments_of_all(comm, forward.reduce(src))
    layer = forward.apply(moments, src, running_mean, running_variance, gamma, beta)
    mean, variance = layer.batch_mean, layer.batch_variance

    backward = onedsl.BatchNormTrainingBackward(EPSILON)
    sums = sums_of_all(comm, backward.reduce(src, diff_dst, mean, variance))
    grads = backward.apply(sums, src, diff_dst, mean, variance, gamma)

    results = {**layer._asdict(), **grads._asdict()}
    for name in ("dst", "diff_src"):
        results[name] = np.concatenate(comm.allgather(results[name]))
    if comm.rank == 0:
        alone = forward(whole.src, running_mean, running_variance, gamma, beta)
        inputs = whole.src, whole.diff_dst, alone.batch_mean, alone.batch_variance, gamma
        expected = {**alone._asdict(), **backward(*inputs)._asdict()}
        for name, result in results.items():
            error = testing.relative_l2(result, expected[name].astype(np.float64))
            print(f"{name:>16}: {error:.1e} relative L2 difference to a single call")
        if options.save is not None:
            np.savez(options.save, **results)
        print(f"{comm.size} processes, {moments.count} elements per channel")


if __name__ == "__main__":
    main()
