"""Run both backends where OpenMP gives fewer threads than OMP_NUM_THREADS, by an argument at once,
or after a graph was compiled: then OpenMP's nesting is limited to no parallel region for a while.
The graphs are compiled again, a large one at first without the memory for it. With "alternating",
the limit comes and goes.
"""

import ctypes
import resource
import sys

import numpy as np
from processes import address_space

import onedsl
from onedsl import testing
from onedsl.runtime import onednn

op = onedsl.BatchNormTrainingBackward(1e-5)
problem = testing.random_problem((8, 7, 7, 16))
expected = op(*problem)
graph = op.graph(onedsl.TensorSpec((8, 7, 7, 16))).repaired().compile()


def check() -> None:
    """Compare the results of all ways to run the op."""
    testing.assert_close(op(*problem), expected)
    testing.assert_close(op(*problem, backend="onednn"), expected)
    testing.assert_close(onedsl.BatchNormGradients(**graph(**problem._asdict())), expected)


def loaded_openmp() -> ctypes.CDLL:
    """Return OpenMP's library."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libgomp" in line))


check()
if sys.argv[1:] == ["alternating"]:
    openmp = loaded_openmp()
    for i in range(10):
        openmp.omp_set_max_active_levels(i % 2)
        check()
        assert graph.num_threads == (8 if i % 2 else 1)
        if i == 1:
            print("compiled for both", flush=True)
if sys.argv[1:] == ["later"]:
    openmp = loaded_openmp()
    # oneDNN may crash if it lacks memory for a small object. For a large one, it returns an error.
    src, vector = np.ones((1, 1 << 22), np.float32), np.ones(1 << 22, np.float32)
    large = op.graph(onedsl.TensorSpec(src.shape), gamma=False).repaired().compile()
    arguments = {"src": src, "diff_dst": src, "mean": vector, "variance": vector}
    out = large(**arguments)
    expected_diff = op(**arguments).diff_src
    limits = resource.getrlimit(resource.RLIMIT_AS)
    for levels in 1, 0:  # when there is memory again
        openmp.omp_set_max_active_levels(0)
        if onednn.version() == (3, 2, 0):  # 3.13.1 compiles nothing after such an error
            resource.setrlimit(resource.RLIMIT_AS, (address_space() + (8 << 20), limits[1]))
            try:
                large(**arguments, out=out)
            except onedsl.OneDNNError as error:
                print(error.status)
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert large.num_threads == 8
        openmp.omp_set_max_active_levels(levels)
        out["diff_src"].fill(np.nan)
        assert np.array_equal(large(**arguments, out=out)["diff_src"], expected_diff)
        check()
    for levels, threads in ((0, 1), (1, 8)):
        openmp.omp_set_max_active_levels(levels)
        check()
        assert onedsl.capabilities().num_threads == graph.num_threads == threads
