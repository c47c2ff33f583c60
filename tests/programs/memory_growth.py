"""Makes calls, and prints by how many bytes the process grows.

    python tests/programs/memory_growth.py KIND CALLS [SHAPES]

Kinds of calls: "all" valid and invalid ones of every operator; "rejected" by oneDNN if
ONEDNN_MAX_CPU_ISA is AVX2, which then fall back, with this number of shapes; of "new" shapes on
oneDNN, on threads, and then the same in a forked child.
"""

import collections
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
from processes import resident

import onedsl
from onedsl import testing

op = onedsl.BatchNormTrainingBackward(1e-5)


def growth(call: Callable[[int], object], first: int, calls: int, run: type = map) -> int:
    """Return the growth over calls with the numbers `first`, `first + 1`, ..."""
    before = resident()
    collections.deque(run(call, range(first, first + calls)), maxlen=0)
    return resident() - before


def calls_of_every_kind() -> list[Callable[[], object]]:
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

    return [
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


def main(kind: str, calls: int, shapes: int = 1) -> None:
    """Print the growth, without that of the first calls."""
    every = calls_of_every_kind() if kind == "all" else []
    rows = 300 + 2 * calls if kind == "new" else shapes
    memory = np.ones((rows, 16), np.float32 if kind == "new" else ml_dtypes.bfloat16)
    ones = np.ones(16, np.float32)

    def rejected(i: int) -> None:
        src = memory[: i % shapes + 1]
        try:
            op(src, src, ones, ones, backend="onednn")
        except onedsl.OneDNNError:
            op(src, src, ones, ones, backend="native")
        else:
            sys.exit("this must be rejected")

    def of_new_shape(i: int) -> None:
        src = memory[: i + 1]
        got = op(src, src, ones, ones, ones, backend="onednn")
        assert got.diff_beta[0] == len(src)

    if kind == "new":
        with ThreadPoolExecutor(3) as pool:
            growth(of_new_shape, 0, 300, pool.map)  # more than are kept
            print(growth(of_new_shape, 300, calls, pool.map), flush=True)
        if os.fork():
            sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
        with ThreadPoolExecutor(3) as pool:
            print(growth(of_new_shape, 300 + calls, calls, pool.map), flush=True)
        os._exit(0)
    call = rejected if kind == "rejected" else lambda i: every[i % len(every)]()
    first = max(200, shapes, calls // 10)
    growth(call, 0, first)
    print(growth(call, first, calls))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
