"""Run both backends where OpenMP gives fewer threads than OMP_NUM_THREADS, by an argument at once,
or after a graph was compiled: then OpenMP's nesting is limited to no parallel region.
"""

import ctypes
import sys

import onedsl
from onedsl import testing

op = onedsl.BatchNormTrainingBackward(1e-5)
problem = testing.random_problem((8, 7, 7, 16))
expected = op(*problem)
graph = op.graph(onedsl.TensorSpec((8, 7, 7, 16))).repaired().compile()


def check() -> None:
    """Compare the results of all ways to run the op."""
    testing.assert_close(op(*problem), expected)
    testing.assert_close(op(*problem, backend="onednn"), expected)
    testing.assert_close(onedsl.BatchNormGradients(**graph(**problem._asdict())), expected)


check()
if sys.argv[1:] == ["later"]:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split()[-1] for line in maps if "libgomp" in line)
    ctypes.CDLL(path).omp_set_max_active_levels(0)
    check()
    assert onedsl.capabilities().num_threads == 1
