"""Times calls: for each line of stdin, prints the least seconds of each of the calls.

    echo | ONEDSL_MAX_CPU_ISA=baseline OMP_NUM_THREADS=1 python tests/programs/speed.py

test_speed.py runs this program with several settings, interleaved.
"""

import sys
import time

import numpy as np

import onedsl
from onedsl import testing

op = onedsl.BatchNormTrainingBackward(1e-5)
CALLS = {}
for dtype in ("f32", "bf16", "f16"):  # in the caches, where vectors and threads have most effect
    problem = testing.random_problem((85, 7, 7, 64), dtype)
    out = op(*problem)
    CALLS[dtype] = lambda problem=problem, out=out: op(*problem, out=out)

for _ in sys.stdin:
    least = dict.fromkeys(CALLS, np.inf)
    for name, call in CALLS.items():
        for _ in range(100):
            start = time.perf_counter()
            call()
            least[name] = min(least[name], time.perf_counter() - start)
    print(*least.values(), flush=True)
