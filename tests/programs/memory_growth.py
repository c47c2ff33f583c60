"""Makes calls, and prints by how many bytes the process grows.

    python tests/programs/memory_growth.py KIND CALLS

Kinds of calls: "all" valid and invalid ones of every operator; "new": calls of new shapes on
oneDNN, on threads; "forked": these, and then the same in a forked child.
"""

import collections
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from processes import resident

import onedsl
from onedsl import testing

op = onedsl.BatchNormTrainingBackward(1e-5)
KEPT = 260  # graphs, and a few more


def growth(call: Callable[[int], object], first: int, calls: int, run: type = map) -> int:
    """Return the growth over calls with the numbers `first`, `first + 1`, ..."""
    before = resident()
    collections.deque(run(call, range(first, first + calls)), maxlen=0)
    return resident() - before


def calls_of_every_kind() -> list[Callable[[], object]]:
    forward = onedsl.BatchNormForwardTraining(1e-5)
    relu_forward = onedsl.BatchNormActForwardTraining(1e-5, activation="relu")
    relu_backward = onedsl.BatchNormActTrainingBackward(1e-5, clip=6.0, activation="relu")
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
        lambda: relu_backward(src, diff_dst, *statistics, statistics[0], src),
        lambda: relu_backward(src, diff_dst, *statistics, dst=src, diff_residual=True),
        lambda: onedsl.BatchNormTrainingBackward(1e-5, "NCX"),
        rejected,
    ]


def of_every_kind(calls: int) -> None:
    """Print the growth, without that of the first calls."""
    every = calls_of_every_kind()
    first = max(200, calls // 10)
    growth(lambda i: every[i % len(every)](), 0, first)
    print(growth(lambda i: every[i % len(every)](), first, calls))


def of_new_shapes(calls: int, forked: bool = False) -> None:
    """Print the growth without that of the first calls, of which more are made than are kept."""
    memory, ones = np.ones((KEPT + 2 * calls, 16), np.float32), np.ones(16, np.float32)

    def of_new_shape(i: int) -> None:
        src = memory[: i + 1]
        got = op(src, src, ones, ones, ones, backend="onednn")
        assert got.diff_beta[0] == len(src)

    with ThreadPoolExecutor(3) as pool:
        growth(of_new_shape, 0, KEPT, pool.map)
        print(growth(of_new_shape, KEPT, calls, pool.map), flush=True)
    if forked:
        if os.fork():
            sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
        with ThreadPoolExecutor(3) as pool:
            print(growth(of_new_shape, KEPT + calls, calls, pool.map), flush=True)
        os._exit(0)


def of_new_shapes_after_a_fork(calls: int) -> None:
    """The same, and the growth of the child, which compiles and keeps graphs of its own."""
    of_new_shapes(calls, forked=True)


if __name__ == "__main__":
    kinds = {"all": of_every_kind, "new": of_new_shapes, "forked": of_new_shapes_after_a_fork}
    kinds[sys.argv[1]](int(sys.argv[2]))
