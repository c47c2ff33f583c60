"""Runs valid and invalid calls of every kind, and measures the growth of the process.

    python tests/programs/flat_memory.py 1000000

Command line: number of calls. Prints the growth in bytes after the first tenth of the calls.
"""

import sys

import numpy as np
from processes import resident

import onedsl
from onedsl import testing

CALLS = int(sys.argv[1])


op = onedsl.BatchNormTrainingBackward(1e-5)
forward = onedsl.BatchNormForwardTraining(1e-5)
relu_forward = onedsl.BatchNormReLUForwardTraining(1e-5)
relu_backward = onedsl.BatchNormReLUTrainingBackward(1e-5, clip=6.0)
frozen = onedsl.BatchNormalizationGrad(1e-5)
problems = {dtype: testing.random_problem((64, 24), dtype) for dtype in ("f32", "bf16", "f16")}
src, diff_dst, *statistics = problems["f32"]
rows = [a.reshape(1, 24) for a in statistics]
strided = np.repeat(src, 2, 0)[::2]
out = tuple(np.empty_like(a) for a in (src, *statistics[:2]))
graph = op.graph(onedsl.TensorSpec((64, 24)))
compiled = graph.repaired().compile()


def rejected() -> None:
    try:
        op(src, diff_dst[:1], *statistics)
    except ValueError:
        return
    sys.exit("this must be rejected")


KINDS = [
    *(lambda problem=problem: op(*problem) for problem in problems.values()),
    lambda: compiled(**problems["f32"]._asdict()),
    lambda: op(src, diff_dst, *statistics, out=out),
    lambda: op(src, diff_dst, *statistics, backend="onednn"),
    lambda: op(src, diff_dst, *statistics[:2], outputs="diff_src"),
    lambda: op(strided, diff_dst, *statistics),
    lambda: frozen(src, diff_dst, *rows),
    lambda: graph.repaired().compile(),
    lambda: forward(src, *statistics, statistics[0]),
    lambda: forward(src, *statistics, statistics[0], backend="onednn"),
    lambda: relu_forward(src, *statistics, statistics[0], diff_dst),
    lambda: relu_backward(src, diff_dst, *statistics, statistics[0]),
    lambda: relu_backward(src, diff_dst, *statistics, statistics[0], src, residual=True),
    lambda: onedsl.BatchNormTrainingBackward(1e-5, "NCX"),
    rejected,
]
before = resident()
for i in range(CALLS):
    KINDS[i % len(KINDS)]()
    if i == CALLS // 10:
        before = resident()
print(resident() - before)
