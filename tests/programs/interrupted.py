"""Interrupts calls as Control-C does. The next call must be correct.

Command line: backend, number of interrupts.
"""

import signal
import sys

import numpy as np

import onedsl
from onedsl import testing

backend, interrupts = sys.argv[1], int(sys.argv[2])
problem = testing.random_problem((4000, 64))
op = onedsl.BatchNormTrainingBackward(1e-5)
expected = [a.tobytes() for a in op(*problem, backend=backend)]
signal.signal(signal.SIGALRM, signal.default_int_handler)
interrupted = 0
for i in range(interrupts):
    out = tuple(np.empty_like(a) for a in (problem.src, *problem[3:]))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + i % 50 * 1e-5)
        while True:
            op(*problem, out=out, backend=backend)
            op(problem.src[:, ::-1], *problem[1:], backend=backend)
    except KeyboardInterrupt:
        interrupted += 1
    if [a.tobytes() for a in op(*problem, out=out, backend=backend)] != expected:
        sys.exit("different bits after an interrupt")
print(f"{interrupted} interrupts")
