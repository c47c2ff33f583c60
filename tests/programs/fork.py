"""Forks before or after the first call, and in the child. All processes must compute correctly.

Command line: backend, "used" to make calls before the fork or "unused".
"""

import functools
import os
import sys
import traceback
import warnings

import helpers

import onedsl
from onedsl import testing

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads running
backend, first = sys.argv[1:]


def of_graph(graph):
    """Return oneDNN's compiled graph as a function of a problem."""

    def run(*problem):
        results = graph(**testing.Problem(*problem)._asdict())
        assert graph.num_threads == onedsl.capabilities().num_threads
        return onedsl.BatchNormGradients(**results)

    return run


cases = []
for data_format, dtype in (("NXC", "f32"), ("NCX", "f32"), ("NXC", "bf16"), ("NCX", "f16")):
    if helpers.runs(backend, dtype):
        shape = helpers.shape_of(data_format, 8, 32, (20, 20))
        op = onedsl.BatchNormTrainingBackward(helpers.EPSILON, data_format)
        spec = onedsl.TensorSpec(shape, dtype)
        calls = [functools.partial(op, backend=backend)]
        if backend == "onednn":
            calls.append(of_graph(op.graph(spec).repaired().compile()))
        cases.append((op, calls, helpers.case(shape, dtype, "f32", data_format)))


def use(threads=None):
    now = onedsl.capabilities().num_threads
    assert threads is None or now == threads, now
    for op, calls, case in cases:
        for call in calls:
            testing.assert_close(call(*case.problem), case.expected, backend=backend)
        op(*testing.random_problem((5, 3)), backend=backend)


if first == "used":
    use()


def child(depth):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        use(threads=1)
        if depth:
            assert child(depth - 1) == 0
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


assert child(1) == 0
use()
assert child(0) == 0
print("done")
