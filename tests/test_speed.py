"""The kernels have their vectors: the only test that compares times.

Noise does not break it. Processes of one thread with and without vectors alternate, the shortest of
thousands of calls of some 50 microseconds counts, and a lost instruction set costs more than the
limits allow. The benchmarks of tests/speed find smaller differences. Lost threads are found by
counting, in test_threads.py: on a busy machine, two threads can be slower than one.
"""

import contextlib
import inspect
import itertools
import os
import runpy
import subprocess
import sys

import helpers
import pytest

from onedsl import _core

pytestmark = pytest.mark.slow
ONE = {"OMP_NUM_THREADS": "1"}
SETTINGS = {
    "vectors": helpers.capped() | ONE,
    "baseline": helpers.capped(ONEDSL_MAX_CPU_ISA="baseline") | ONE,
}
ROUNDS = 20


@pytest.fixture(scope="module")
def seconds():
    """The least seconds of a call, by setting and dtype."""
    least = {name: [float("inf")] * 3 for name in SETTINGS}
    with contextlib.ExitStack() as stack:
        programs = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, helpers.PROGRAMS / "speed.py"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | environment,
                    cwd=os.path.dirname(sys.executable),
                )
            )
            for name, environment in SETTINGS.items()
        }
        for _ in range(ROUNDS):
            for name, program in programs.items():
                program.stdin.write("\n")
                program.stdin.flush()
                found = map(float, program.stdout.readline().split())
                least[name] = list(map(min, least[name], found))
    return {name: dict(zip(helpers.NUMPY, values, strict=True)) for name, values in least.items()}


@pytest.mark.skipif(_core.best_native_isa() == "baseline", reason="an old CPU")
@pytest.mark.parametrize(("dtype", "factor"), [("f32", 2), ("bf16", 2), ("f16", 4)])
def test_vectors(dtype, factor, seconds):
    """On a Zen 4, AVX-512 is 3.2, 6.5 and 11 times as fast, AVX2 3.0, 4.6 and 11 times."""
    assert seconds["baseline"][dtype] > factor * seconds["vectors"][dtype], seconds


@pytest.mark.parametrize("path", sorted(helpers.TESTS.glob("speed/benchmarks/[!_]*.py")), ids=str)
def test_benchmarks_run(path):
    """Each with its first and its last parameters, as asv calls them."""
    for name, cls in runpy.run_path(str(path)).items():
        if name.startswith("timeraw_"):
            helpers.run_child(cls())
        if not inspect.isclass(cls):
            continue
        combinations = [*itertools.product(*getattr(cls, "params", []))]
        for parameters in combinations[0], combinations[-1]:
            benchmarks = cls()
            try:
                benchmarks.setup(*parameters)
            except NotImplementedError:
                pytest.skip("PyTorch is optional, and not installed here")
            found = [n for n in dir(benchmarks) if n.startswith(("time_", "peakmem_"))]
            assert found
            for method in found:
                getattr(benchmarks, method)(*parameters)
            getattr(benchmarks, "teardown", lambda *_: None)(*parameters)
