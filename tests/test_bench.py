"""The benchmark of single layers: ``onedsl bench``."""

import functools
import importlib.util
import io
import itertools
import json
import math
import os
import time

import helpers
import numpy as np
import pytest
from rich.console import Console

import onedsl
from onedsl import _core, bench, testing
from onedsl.__main__ import main
from onedsl.bench import timing
from onedsl.bench.implementations import MAX_COPIES, memory, random_inputs
from onedsl.bench.measure import warm_up_case
from onedsl.bench.timing import MIN_ROUNDS, SAMPLE_SECONDS, time_calls
from onedsl.cli.bench import rows_tables, summary
from onedsl.operators.base import kernel_info


def row(shape=(4, 5), seconds=None, **changes):
    case = {"workload": "w", "shape": shape, "dtype": "f32", "data_format": "NXC"}
    triads = {"triad": 0.1, "triad (non-temporal)": 0.1}
    times = {"seconds": triads | (seconds or {"onedsl": 1})}
    return bench.Row(**case | times | changes)


def printed(rows, width=100):
    """Return the table of rows of one operation."""
    console = Console(width=width, file=io.StringIO())
    console.print(next(rows_tables(rows)))
    return console.file.getvalue()


def test_bench_writes_a_table_and_json(tmp_path, capsys):
    figures = tmp_path / "bench.json"
    chosen = ["--dtype", "f16", "--format", "NCX"] * 2  # repeated options count once
    options = ["--seconds", "0.01", "--json", str(figures)]
    assert main(["bench", "small", "64x48", *chosen, *options]) == 0
    shown = capsys.readouterr().out
    assert "1x4x4x8" in shown
    assert "64x48" in shown
    document = json.loads(figures.read_text())
    assert document["machine"]["onedsl"] == onedsl.__version__
    rows = document["rows"]
    assert len(rows) == 4
    assert {row["operation"] for row in rows} == {"backward", "forward"}
    for row in rows:
        assert row["seconds"]["onedsl"] > 0
        assert min(row["seconds"][triad] for triad in bench.TRIADS) > 0


def test_one_of_two_calls_allocates():
    """The other one writes to the same aligned arrays in each round over all copies."""
    case = bench.Case("w", (2, 4, 3), "f32", "NCX")
    calls = bench.implementations(case)
    for name in ("onedsl", "oneDNN"):
        results = [calls[name]().diff_src for _ in range(2 * MAX_COPIES)]
        assert len(set(map(id, results))) == MAX_COPIES
        assert not any(array.ctypes.data % 64 for array in results)
        kept = [calls[f"{name} (allocating)"]().diff_src for _ in range(3)]
        assert not {array.ctypes.data for array in kept} & {r.ctypes.data for r in results}


@pytest.mark.parametrize("name", ["dtype", "data_format", "operation", "stats_dtype"])
def test_a_case_rejects_unknown_names(name):
    case = {"workload": "w", "shape": (8, 4), "dtype": "f32", "data_format": "NXC"}
    with pytest.raises(ValueError, match=f"^{name} must be .*, got 'other'$"):
        bench.Case(**case | {name: "other"})


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_tensors_are_aligned_to_cache_lines(dtype):
    case = bench.Case("w", (2, 5, 3), dtype, "NXC", "add-relu-backward")
    arrays = [array for copy in memory(case, random_inputs(case)) for array in copy.values()]
    assert not any(array.ctypes.data % 64 for array in arrays if array.ndim > 1)


def results_by_name(case, name, results):
    """Return the results that all implementations have, as NumPy arrays of the case's shape."""
    if case.operation.endswith("forward"):
        named = {"dst": results[0]}
    else:
        names = ["diff_src", "diff_gamma", "diff_beta", "diff_residual"]
        named = {n: v for n, v in zip(names, results, strict=False) if v is not None}
    if not name.startswith("PyTorch"):
        return named
    for key, tensor in named.items():
        named[key] = tensor.float().numpy()
        if tensor.ndim > 1 and len(case.shape) > 2 and case.data_format == "NXC":
            named[key] = np.moveaxis(named[key], 1, -1).reshape(case.shape)
    return named


@pytest.mark.parametrize("operation", bench.OPERATIONS)
@pytest.mark.parametrize(
    ("shape", "data_format"),
    [((6, 8), "NXC"), *itertools.product([(3, 5, 8), (2, 3, 4, 8)], bench.FORMATS)],
    ids=str,
)
@helpers.dtypes
def test_all_implementations_agree(dtype, shape, data_format, operation, monkeypatch):
    # A small cache needs few copies of the inputs: one to six, instead of 64.
    monkeypatch.setattr(_core, "last_cache_bytes", lambda: 5 * math.prod(shape))
    case = bench.Case("w", shape, dtype, data_format, operation)
    calls = bench.implementations(case)
    assert ("PyTorch" in calls) == bool(importlib.util.find_spec("torch"))
    needs_dst = operation == "relu-backward"  # oneDNN computes the mask from dst only
    assert ("oneDNN" in calls) == (helpers.runs("onednn", dtype) and not needs_dst)
    for triad in bench.TRIADS:
        calls.pop(triad)()
    expected = results_by_name(case, "onedsl", calls.pop("onedsl")())
    for name, call in calls.items():
        for _ in range(2):  # with other copies of the tensors
            results = results_by_name(case, name, call())
            for key, reference in expected.items():
                if np.ndim(reference) == 1:
                    allowed = 0.05 if operation != "backward" else 1e-4
                    np.testing.assert_allclose(results[key], reference, rtol=allowed, atol=allowed)
                else:  # PyTorch rounds between its kernels
                    tolerance = 6 * testing.TOLERANCES[dtype]
                    error = testing.relative_l2(results[key], reference)
                    assert error < tolerance, (name, key)


def test_tensors_of_rank_2_come_once():
    layers = list(bench.layers({"w": bench.WORKLOADS["transformer"]}, ["f32"], ["NXC", "NCX"]))
    assert [len(layer) for layer in layers] == [1, 1, 2, 2]


def test_tables_and_summaries(says, monkeypatch):
    """Noisy rows have no floor, and are in no mean. Empty columns are neither shown nor explained.

    Regression: a triad that other programs disturbed was shown as 972 % of the time.
    """
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    seconds = {"triad": 0.01, "onedsl": 0.02, "oneDNN": 0.06, "PyTorch": 0.16}
    noisy = row((512, 1024), {"triad": 0.01, "onedsl": 0.001}, noisy=True)
    small = [row((4, 5, 6), {"onedsl": s}, data_format=f) for f, s in (("NXC", 7), ("NCX", 2))]
    rows = [row((512, 768), seconds), row((512, 512), seconds | {"onedsl": 0.06}), noisy, *small]
    only_pytorch = row((512, 512), {"onedsl": 1, "PyTorch": 2})
    for some in (rows, [noisy], small, [only_pytorch], [row()]):
        says(" ".join(printed(some).replace("\u2500", "").split()))
        says("; ".join(summary(some)))
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert "OMP_WAIT_POLICY=passive" in summary([noisy])[-1]


@pytest.mark.parametrize("cpus", [1, 2, 8])
def test_the_monitor_counts_other_programs(monkeypatch, cpus):
    """On the CPUs of this process, and nothing before the monitor was created.

    Regression: it compared with the CPUs of the machine, so a container was never noisy.
    """
    busy = withheld = now = 0.0
    affinity, ticks = set(range(3, 3 + cpus)), os.sysconf("SC_CLK_TCK")

    def read(path):
        used = f"{int((busy + sum(os.times()[:4])) * ticks)} 0 0 9 9 9 9 0"
        return {
            "/proc/stat": f"cpu 9\ncpu2 99999 0 0 0 0 0 0 0\ncpu3 {used} 0 0\n",
            "/sys/fs/cgroup/cpu.stat": f"nr_periods 9\nthrottled_usec {int(withheld * 1e6)}\n",
            "/sys/fs/cgroup/cpu/cpu.stat": f"throttled_time {int(withheld * 1e9)}\n",
        }[str(path)]

    monkeypatch.setattr(timing.Path, "read_text", read)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    busy = withheld = 99.0
    monitor = timing.NoiseMonitor()
    now += 1.0
    for seconds, threads, noisy in ((0.01, cpus + 1, False), (0.2, cpus, False), (0.5, cpus, True)):
        busy = 99.0 + seconds
        assert monitor.is_noisy(threads) == noisy
    assert not monitor.is_noisy(cpus - 1)
    withheld += 0.5  # by the limit of a container
    assert monitor.is_noisy(1)


def test_floor():
    """With ordinary stores: five tensors and the lines of one, of three and the lines of one."""
    seconds = {"onedsl": 4.0, "onedsl (allocating)": 2.0, "triad (non-temporal)": 1.0}
    half = row((10, 10), seconds | {"triad": 3.0}, dtype="bf16")
    assert half.floor_tensors == 5  # rank 2 counts as NXC: two tensors are read twice
    assert half.floor_share("onedsl") == pytest.approx(5 / 3 / 2)
    assert math.isnan(half.time("PyTorch"))
    ordinary = row((10, 10), seconds | {"triad": 1.1})
    assert ordinary.floor_share("onedsl") == pytest.approx(1.1 * 6 / 4 / 2)
    case = bench.Case("w", (2, 4, 3), "f32", "NCX", "add-relu-backward")
    assert case.floor_in_triads(non_temporal=True) == pytest.approx(5 / 3)
    assert case.floor_in_triads(non_temporal=False) == pytest.approx(7 / 4)


@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_the_triad_moves_three_tensors(monkeypatch, operation):
    calls = []
    monkeypatch.setattr(_core, "triad", lambda *arguments: calls.append(arguments))
    found = bench.implementations(bench.Case("w", (6, 8), "f32", "NXC", operation))
    for triad in bench.TRIADS:
        found[triad]()
    assert [non_temporal for *_, non_temporal in calls] == [False, True]
    for *tensors, _ in calls:
        assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(tensors, 2))


@pytest.mark.parametrize(
    ("operation", "ncx", "nxc"),
    [
        ("backward", 3, 5), ("forward", 2, 3), ("relu-forward", 2, 3),
        ("relu-backward", 3, 5), ("add-relu-forward", 3, 4), ("add-relu-backward", 5, 7),
    ],
)  # fmt: skip
def test_least_memory_traffic(operation, ncx, nxc):
    for data_format, tensors in (("NCX", ncx), ("NXC", nxc)):
        case = bench.Case("w", (2, 3, 4), "f16", data_format, operation)
        assert case.floor_tensors == tensors


def test_figures_fit_a_narrow_terminal():
    seconds = {"onedsl": 0.0234567, "oneDNN": 0.135246, "PyTorch": 0.0657294}
    shapes = (32, 112, 112, 64), (16384, 768)
    rows = [row(shape, {"triad": 0.01} | seconds) for shape in shapes]
    for width in (60, 100):
        shown = printed(rows, width)
        assert max(map(len, shown.splitlines())) <= width
        for figure in ("23,457", "135,246", "65,729", "5.77", "2.80"):
            assert shown.count(figure) == len(rows), (width, figure)
        assert shown.count("%") == len(rows)
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_short_calls_are_timed_in_batches_and_long_ones_alone(monkeypatch):
    made, now = [], [0.0]
    timer = functools.partial(timing.timeit.Timer, timer=lambda: now[0])
    monkeypatch.setattr(timing.timeit, "Timer", timer)

    def call(name, seconds):
        made.append(name)
        now[0] += seconds

    seconds = {"short": 1e-6, "long": 2 * SAMPLE_SECONDS}
    calls = {name: functools.partial(call, name, s) for name, s in seconds.items()}
    warm_ups = dict.fromkeys(seconds, functools.partial(call, "warm-up", timing.WARM_UP_SECONDS))
    times = time_calls(calls, warm_ups=warm_ups)
    for name, s in seconds.items():
        assert times.seconds[name] == pytest.approx(s)
    batches = [(name, len(list(group))) for name, group in itertools.groupby(made)]
    timed = [batches[i + 1] for i, (name, _) in enumerate(batches) if name == "warm-up"]
    assert [number for name, number in timed if name == "long"] == [1] * MIN_ROUNDS
    short = [number for name, number in timed if name == "short"]
    assert len(short) == MIN_ROUNDS
    assert 2 < min(short) == max(short) <= 2 * SAMPLE_SECONDS / 1e-6


def test_each_round_has_a_random_order():
    made = []
    calls = {i: functools.partial(made.append, i) for i in range(6)}
    warm_ups = dict.fromkeys(calls, lambda: spin(timing.WARM_UP_SECONDS))
    time_calls(calls, warm_ups=warm_ups)
    order = [name for name, _ in itertools.groupby(made[-MIN_ROUNDS * len(made) :])][6:]
    rounds = {tuple(order[i : i + 6]) for i in range(0, len(order) - 5, 6)}
    assert len(rounds) > 1


@pytest.mark.parametrize(
    ("paths", "pauses"),
    [
        (["/usr/lib/libgomp.so.1", "/usr/lib/libgomp.so.1", "/lib/libdnnl.so.3"], False),
        (["/usr/lib/libgomp.so.1", "/torch/lib/libgomp-a34b3233.so.1"], True),
        (["/usr/lib/libgomp.so.1.0.0", "/opt/lib/libiomp5.so"], True),
        (["/usr/lib/libomp.so"], False),
        (["/usr/lib/libgomp.so.1", "/tmp/libgomp-1/data.bin"], False),
    ],
)
def test_threads_of_a_second_openmp_library_fall_asleep(paths, pauses, monkeypatch):
    """Its idle threads spin on the cores of the threads of the first one."""
    maps = "".join(f"7f0000000000-7f0000001000 r-xp 0 08:01 1 {path}\n" for path in paths)
    monkeypatch.setattr(timing.Path, "read_text", lambda _: maps)
    slept = []
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    time_calls({"a": lambda: None})
    assert (max(slept) > 0) == pauses


@pytest.mark.parametrize("threads", [2, 3, 16, 64, 128])
def test_warm_ups_run_on_all_threads(threads):
    """Regression: onedsl ran them on one thread, so that each sample woke the others."""
    case = warm_up_case(threads)
    op = onedsl.BatchNormTrainingBackward(bench.EPSILON, case.data_format)
    info = kernel_info(op, onedsl.TensorSpec(case.shape, case.dtype), num_threads=threads)
    assert info["workers"] == threads


def test_cases_are_measured_together():
    calls = {}
    order = []
    for data_format in ("NXC", "NCX"):
        case = bench.Case("w", (2, 3), "f32", data_format)
        calls[case] = {"onedsl": functools.partial(order.append, data_format)}
    rows = bench.measure(calls, 0.02)
    assert [row.data_format for row in rows] == ["NXC", "NCX"]
    turns = [name for name, _ in itertools.groupby(order)]
    assert len(turns) > MIN_ROUNDS  # in each round, each case has a turn


def triad_arrays():
    """Return arrays of 1024 elements that are aligned to 16 bytes."""
    arrays = [np.ones(1028, np.float32) for _ in range(3)]
    return [array[-array.ctypes.data % 16 // 4 :][:1024] for array in arrays]


@pytest.mark.parametrize("non_temporal", [False, True])
def test_triad(non_temporal):
    out, a, b = triad_arrays()
    numbers = np.arange(1024, dtype=np.int32)  # subnormal as floats
    a.view(np.int32)[:], b.view(np.int32)[:] = numbers, 10 * numbers
    _core.triad(out, a, b, non_temporal)
    np.testing.assert_array_equal(out.view(np.int32), 21 * numbers)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda out, a, b: (out, a.view(np.int32), b),
        lambda out, a, b: (out, a, b[:1020]),
        lambda out, a, b: (out[1:1021], a[1:1021], b[1:1021]),  # alignment
        lambda out, a, b: (out, a.reshape(32, 32), b),
        lambda out, a, b: (helpers.read_only(out), a, b),
    ],
)
def test_triad_rejects_invalid_arrays(spoil):
    with pytest.raises(ValueError, match="triad"):
        _core.triad(*spoil(*triad_arrays()), True)
