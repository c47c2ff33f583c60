"""The benchmark's own machinery, on its smallest workload."""

import dataclasses
import functools
import importlib.util
import io
import itertools
import json
import math
import re
import statistics
import time

import matplotlib as mpl
import numpy as np
import pytest
from rich.console import Console

from onedsl import _core, bench, testing
from onedsl.__main__ import main
from onedsl.bench import compare, report
from onedsl.bench.measure import standard_error
from onedsl.cli.bench import workload
from onedsl.runtime.timing import MIN_ROUNDS, SAMPLE_SECONDS, median_seconds


def run(*options):
    return main(["bench", "--seconds", "0.01", *options])


def row(shape=(4, 5), seconds=None, **changes):
    case = {"workload": "w", "shape": shape, "dtype": "f32", "data_format": "NXC"}
    times = {"seconds": {"triad": 0.1} | (seconds or {"onedsl": 1})}
    times["noise"] = dict.fromkeys(times["seconds"], 0.01)
    return bench.Row(**case | times | changes)


def text(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_bench_writes_what_it_shows(tmp_path, capsys):
    figures, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    chosen = ["--dtypes", "f16", "--formats", "NCX"]
    status = run("small", "transformer", *chosen, "--json", str(figures), "--plot", str(picture))
    assert status == 0
    shown = capsys.readouterr().out
    assert "1x8x4x4" in shown
    assert "16384x768" in shown
    rows = json.loads(figures.read_text())["rows"]
    assert len(rows) == 2 * (1 + len(bench.WORKLOADS["transformer"]))
    assert {row["operation"] for row in rows} == {"backward", "forward"}
    for row in rows:
        assert row["seconds"]["onedsl"] > 0
        assert row["seconds"]["triad"] > 0
        assert row["noise"].keys() == row["seconds"].keys()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_onedsl_and_onednn_have_two_calls_each():
    case = bench.Case("w", (2, 3, 4), "f32", "NCX")
    calls = bench.implementations(case, bench.random_problem(case))
    here = {name: call for name, call in calls.items() if not name.startswith("torch")}
    backends = {name: call.args[0].backend for name, call in here.items() if name != "triad"}
    assert backends == {
        "onedsl": "native",
        "onedsl new": "native",
        "oneDNN": "onednn",
        "oneDNN new": "onednn",
    }
    assert here.keys() - backends.keys() == {"triad"}


def test_only_one_of_two_calls_allocates():
    case = bench.Case("w", (2, 3, 4), "f32", "NCX")
    memory = bench.memory(case, bench.random_problem(case))
    given = [layer["diff_src"] for (layer,) in memory.copies]
    for name, call in bench.onedsl_calls(case, memory).items():
        result = call().diff_src
        assert any(result is array for array in given) != name.endswith(" new")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_tensors_begin_a_line_of_the_cache(dtype):
    case = bench.Case("w", (2, 3, 5), dtype, "NXC")
    memory = bench.memory(case, bench.random_problem(case))
    tensors = [array for (layer,) in memory.copies for array in layer.values()]
    assert not any(array.ctypes.data % 64 for array in tensors)


def results_by_name(case, name, results):
    """Give a contender's results in NumPy's arrays of the case's shape, as far as all have them."""
    first, *others = results
    operation = bench.OPERATIONS[case.operation]
    named = {operation.outputs[0]: first}
    if "diff_gamma" in operation.outputs:
        named |= zip(operation.outputs[1:], others, strict=False)
    named = {key: value for key, value in named.items() if value is not None}
    if not name.startswith("torch"):
        return named
    spatial_last = len(case.shape) > 2 and case.data_format == "NXC"
    for key, tensor in named.items():
        named[key] = tensor.float().numpy()
        if key in operation.large and spatial_last:
            moved = np.moveaxis(named[key], 1, -1)
            named[key] = moved.reshape(case.shape[0], *case.shape[2:], case.shape[1])
    return named


@pytest.mark.parametrize("operation", bench.OPERATIONS)
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("shape", [(6, 8), (3, 8, 5), (2, 8, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_every_contender_computes_the_same(dtype, shape, data_format, operation):
    case = bench.Case("w", shape, dtype, data_format, operation)
    problem = bench.random_problem(case)
    expected = bench.expected(case, bench.memory(case, problem))
    calls = bench.implementations(case, problem)
    calls.pop(bench.TRIAD)()
    assert "onedsl" in calls
    for name, call in calls.items():
        for _ in range(3):  # other copies of the tensors
            results = results_by_name(case, name, call())
            for key, wanted in expected.items():
                if np.ndim(wanted) == 1:
                    allowed = 0.05 if case.operation != "backward" else 1e-4
                    np.testing.assert_allclose(results[key], wanted, rtol=allowed, atol=allowed)
                else:
                    # PyTorch rounds between its kernels, and each layer of a chain does.
                    tolerance = 6 * testing.TOLERANCES[dtype]
                    assert testing.relative_l2(results[key], wanted) < tolerance, (name, key)


def test_rank_2_comes_once():
    rows = list(bench.cases({"w": bench.WORKLOADS["transformer"]}, ["f32"], ["NXC", "NCX"]))
    assert [len(row.shape) for row in rows] == [2, 2, 3, 3, 3, 3]


def test_summary_takes_the_worst_row():
    fast = row((2, 3), {"onedsl": 1, "oneDNN": 3, "torch": 8})
    slow = row((4, 5), {"onedsl": 1, "oneDNN": 1, "torch": 2})
    lines = report.summary([fast, slow])
    assert "4.00 times as fast (geometric mean of 2 rows)" in lines[0]
    assert "at least 2.00 (backward 4x5 f32 NXC)" in lines[0]
    assert "at least 1.00 (backward 4x5 f32 NXC)" in lines[1]


def test_summary_leaves_out_who_did_not_run():
    lines = report.summary([row(seconds={"onedsl": 1, "torch": 2})])
    assert len(lines) == 1
    assert "torch" in lines[0]
    assert report.summary([row()]) == []


def test_summary_warns_of_other_programs():
    assert "2 of 3 rows" in report.summary([row(), row(disturbed=True), row(disturbed=True)])[-1]


def test_shares_of_the_triad():
    half = row((10, 10), {"onedsl": 2.0, "triad": 1.0}, dtype="bf16")
    assert half.bytes == 600
    assert half.floor_bytes == 1000  # of rank 2, as NXC: two tensors are read twice
    assert half.bytes_per_second == 600
    assert half.triad_share("onedsl") == 0.5
    assert half.floor_share("onedsl") == pytest.approx(5 / 6)
    assert math.isnan(half.time("torch"))


@pytest.mark.parametrize(
    ("operation", "ncx", "nxc"),
    [
        ("backward", 3, 5), ("chain", 12, 20), ("forward", 2, 3), ("relu-forward", 2, 3),
        ("relu-backward", 3, 5), ("add-relu-forward", 3, 4), ("add-relu-backward", 5, 8),
    ],
)  # fmt: skip
def test_bytes_that_must_move(operation, ncx, nxc):
    for data_format, tensors in (("NCX", ncx), ("NXC", nxc)):
        case = bench.Case("w", (2, 3, 4), "f16", data_format, operation)
        assert case.floor_bytes == tensors * case.tensor_bytes
        assert case.bytes == ncx * case.tensor_bytes


def test_what_a_layer_of_a_chain_writes_the_next_one_reads():
    case = bench.Case("w", (2, 3, 4), "f32", "NCX", "chain")
    layers = bench.memory(case, bench.random_problem(case)).copies[0]
    assert len(layers) == 4
    for before, after in itertools.pairwise(layers):
        assert after["diff_dst"] is before["diff_src"]
        assert after["src"] is not before["src"]


def test_the_faster_of_two_calls_counts():
    assert row(seconds={"onedsl": 1, "torch": 3, "torch new": 2}).time("torch") == 2


def test_a_narrow_terminal_shows_all_figures():
    seconds = {"onedsl": 0.0234567, "oneDNN": 0.135246, "torch": 0.0657294}
    shapes = (32, 64, 112, 112), (16384, 768)
    rows = [row(shape, {"triad": 0.01} | seconds) for shape in shapes]
    for width in (60, 100):
        shown = text(next(report.rows_tables(rows)), width)
        assert max(map(len, shown.splitlines())) <= width
        for figure in ("23,457", "135,246", "65,729", "5.77", "2.80"):
            assert shown.count(figure) == len(rows), (width, figure)
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_table_and_legend_name_only_what_ran(tmp_path):
    rows = [row(seconds={"onedsl": 1, "torch": 2})]
    shown = text(next(report.rows_tables(rows)), 100)
    assert "torch" in shown.split("4x5")[0]
    assert "oneDNN" not in shown
    picture = tmp_path / "picture.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        report.draw(picture, rows)
    legend = re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())
    assert "PyTorch" in legend
    assert "onedsl" in legend
    assert "oneDNN" not in legend


def test_ticks_can_be_read_where_a_disturbed_triad_makes_shares_large(tmp_path):
    rows = [row((10, 10), {"onedsl": 1.0, "triad": triad}) for triad in (0.5, 12.0)]
    picture = tmp_path / "picture.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        report.draw(picture, rows)
    ticks = re.findall(r"<text[^>]*>(\d+%)</text>", picture.read_text())
    assert 2 <= len(ticks) <= 8


def test_short_calls_are_repeated_and_long_ones_are_not():
    calls = dict.fromkeys(("short", "long"), 0)

    def spin(name, seconds):
        calls[name] += 1
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    seconds = {"short": 1e-6, "long": 2 * SAMPLE_SECONDS}
    medians = median_seconds(
        {name: functools.partial(spin, name, s) for name, s in seconds.items()}
    )
    assert all(medians[name] >= s for name, s in seconds.items())
    assert calls["long"] == 2 * MIN_ROUNDS
    assert calls["short"] > 10 * calls["long"]


def test_cases_are_measured_together():
    calls = {}
    order = []
    for data_format in ("NXC", "NCX"):
        case = bench.Case("w", (2, 3), "f32", data_format)
        calls[case] = {"onedsl": functools.partial(order.append, data_format)}
    rows = bench.measure(calls, 0.0)
    assert [row.data_format for row in rows] == ["NXC", "NCX"]
    turns = [name for name, _ in itertools.groupby(order)]
    assert turns == ["NXC", "NCX"] * 5


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--operations", "sideways", "no operation 'sideways'; there are backward, chain"),
        ("--dtypes", "f64", "no dtype 'f64'; there are f32, bf16, f16"),
        ("--formats", "NHWC", "no format 'NHWC'; there are NXC, NCX"),
    ],
)
def test_wrong_options_are_explained(option, value, message, capsys):
    assert main(["bench", option, value]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_seconds_must_be_positive_and_finite(value, capsys):
    assert main(["bench", f"--seconds={value}"]) == 2
    assert f"must be a positive and finite number, not '{value}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "path", "message"),
    [
        ("--json", "nowhere/figures.json", "there is no folder"),
        ("--plot", "nowhere/picture.png", "there is no folder"),
        ("--json", "folder.png", "is a folder, not a file"),
        ("--plot", "folder.png", "is a folder, not a file"),
        ("--plot", "picture.doc", "must end in .png, .pdf, .svg"),
    ],
)
def test_outputs_are_checked_before_anything_is_measured(
    option, path, message, tmp_path, monkeypatch, capsys
):
    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("something was measured"))
    assert main(["bench", option, str(tmp_path / path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "name", "shapes"),
    [
        ("resnet50", "ResNet-50", bench.WORKLOADS["ResNet-50"]),
        ("ResNet-50", "ResNet-50", bench.WORKLOADS["ResNet-50"]),
        ("mobilenet", "MobileNetV2", bench.WORKLOADS["MobileNetV2"]),
        ("transformer", "transformer", bench.WORKLOADS["transformer"]),
        ("32x56x50x64", "32x56x50x64", ((32, 64, 56, 50),)),
        ("128x64", "128x64", ((128, 64),)),
    ],
)
def test_presets_and_shapes(text, name, shapes):
    assert workload(text) == (name, shapes)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("vgg", "no preset 'vgg'; there are small, resnet50, mobilenetv2, transformer, images"),
        ("", "no preset ''"),
        ("32", "'32' must be sizes with an x between"),
        ("32x0", "'32x0' has no elements to be timed"),
        ("32xC", "'32xC' must be sizes with an x between"),
    ],
)
def test_what_is_no_preset(what, message, capsys):
    assert main(["bench", what]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_one_layer_in_a_row_of_its_own(capsys):
    assert run("3x5x8", "--dtypes", "f32", "--operations", "forward", "--formats", "NXC") == 0
    assert "3x8x5" in capsys.readouterr().out


# ---- Against an earlier run ----


def test_the_error_of_a_median():
    rng = np.random.default_rng(0)
    medians = [np.median(rng.normal(10, 1, 101)) for _ in range(2000)]
    estimates = [standard_error(list(rng.normal(10, 1, 101))) for _ in range(200)]
    assert statistics.mean(estimates) == pytest.approx(np.std(medians) / 10, rel=0.1)
    steady = [10.0, 10.1, 9.9, 10.0, 10.0, 10.1, 9.9]
    assert standard_error([*steady, 1000.0]) < 0.02


def compared(old, new, **noise):
    rows = [
        dataclasses.replace(row(seconds=seconds), noise={"onedsl": 0.01, "triad": 0.0} | noise)
        for seconds in (old, new)
    ]
    before = compare.Before({}, {compare.key_of(rows[0]): rows[0]})
    (change,) = compare.changes([rows[1]], before)
    return change


def test_times_are_compared_in_triads():
    change = compared({"onedsl": 1.0, "triad": 0.5}, {"onedsl": 3.0, "triad": 1.0})
    assert change.ratio == pytest.approx(1.5)
    assert change.noise == pytest.approx(1.5 * 0.01 * math.sqrt(2))
    assert change.is_slower(1.4)
    assert not change.is_slower(1.6)


def test_a_narrow_terminal_shows_changes():
    change = compared({"onedsl": 1.0}, {"onedsl": 2.5})
    wide = dataclasses.replace(
        change,
        row=dataclasses.replace(
            change.row, shape=(32, 64, 112, 112), operation="add-relu-backward", dtype="bf16"
        ),
    )
    shown = text(compare.changes_table([change, wide], 1.1), 60)
    assert max(map(len, shown.splitlines())) <= 60
    assert shown.count(" 2.50 ") == 2
    assert shown.count("slower") == 3, "once in the title"


def test_noise_is_no_regression():
    times = {"onedsl": 1.0}, {"onedsl": 1.2}
    assert compared(*times).is_slower(1.1)
    assert not compared(*times, onedsl=0.1).is_slower(1.1)


def steady(calls, _seconds):
    """Stand in for `measure` on a machine that nothing disturbs."""
    return [
        bench.Row(
            **dataclasses.asdict(case),
            seconds=dict.fromkeys(by_name, 1e-3),
            noise=dict.fromkeys(by_name, 0.01),
        )
        for case, by_name in calls.items()
    ]


@pytest.fixture
def figures(tmp_path, monkeypatch, capsys):
    """Write what was found for one small layer."""
    monkeypatch.setattr(bench, "measure", steady)
    file = tmp_path / "old.json"
    assert run(*SMALL, "--json", str(file)) == 0
    capsys.readouterr()
    return file


SMALL = ("64x16", "--dtypes", "f32", "--operations", "backward")


@pytest.mark.parametrize(("factor", "status"), [(1.2, 0), (1.0, 0), (0.95, 0), (0.8, 1)])
def test_a_regression_has_status_1(figures, factor, status, capsys):
    document = json.loads(figures.read_text())
    document["rows"][0]["seconds"]["onedsl"] *= factor
    document["machine"]["onedsl"] = "0.0.1"
    figures.write_text(json.dumps(document))
    assert run(*SMALL, "--compare", str(figures)) == status
    shown = capsys.readouterr().out
    assert f"{status} of 1 rows slower" in shown
    assert "onedsl: 0.0.1 then, " in shown
    assert len(re.findall(r"^64x16 .* slower *$", shown, re.MULTILINE)) == status


def test_the_threshold_is_the_users(figures, capsys):
    document = json.loads(figures.read_text())
    document["rows"][0]["seconds"]["onedsl"] /= 100
    figures.write_text(json.dumps(document))
    assert run(*SMALL, "--compare", str(figures), "--threshold", "1e6") == 0
    assert "slower: 1e+06 and more" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.clear(), "is no file of `onedsl bench --json`"),
        (lambda d: d.update(rows=3), "is no file of `onedsl bench --json`"),
        (lambda d: d["rows"][0].pop("shape"), "rows[0] is no row of the benchmark"),
        (lambda d: d["rows"][0].pop("noise"), "rows[0] is no row of the benchmark"),
        (lambda d: d["rows"][0]["seconds"].pop("triad"), "rows[0] is no row of the benchmark"),
        (lambda d: d["rows"][0]["seconds"].update(onedsl=0), "rows[0] is no row of the benchmark"),
        (lambda d: d["rows"][0]["seconds"].update(triad="x"), "rows[0] is no row of the benchm"),
        (lambda d: d["rows"].clear(), "has none of the rows that are to be measured"),
    ],
)
def test_a_file_that_cannot_be_compared(figures, spoil, message, monkeypatch, capsys):
    document = json.loads(figures.read_text())
    spoil(document)
    figures.write_text(json.dumps(document))
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("something was measured"))
    assert run(*SMALL, "--compare", str(figures)) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"3", b"[]"])
def test_no_json_to_compare_with(content, tmp_path, capsys):
    file = tmp_path / "old.json"
    file.write_bytes(content)
    assert run(*SMALL, "--compare", str(file)) == 2
    assert "is no file of `onedsl bench --json`" in capsys.readouterr().err.replace("\n", " ")


def test_the_picture_has_a_mark_for_each_figure(tmp_path):
    rows = [
        row(shape, {"onedsl": 1, "oneDNN": 2, "torch": 3}, dtype=dtype)
        for shape in ((4, 5), (6, 7))
        for dtype in ("f32", "bf16")
    ]
    picture = tmp_path / "picture.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        report.draw(picture, rows)
    text = picture.read_text()
    for colour in ("#0072b2", "#d55e00", "#8a8a8a"):
        marks = [line for line in text.splitlines() if "<use " in line and colour in line.lower()]
        assert len(marks) == len(rows) + 1, "one for each row, and the legend's"
    for words in ("4x5", "6x7", ">f32<", ">bf16<", "Batch normalization"):
        assert words in text


def test_the_extra_is_named_before_anything_is_measured(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("something was measured"))
    assert main(["bench", "--plot", "picture.png"]) == 2
    assert "--plot needs matplotlib: pip install 'onedsl[cli]'" in capsys.readouterr().err


def triad_arrays():
    """Make arrays that begin where a vector of four may."""
    arrays = [np.ones(1028, np.float32) for _ in range(3)]
    return [array[-array.ctypes.data % 16 // 4 :][:1024] for array in arrays]


def test_triad():
    out, a, b = triad_arrays()
    numbers = np.arange(1024, dtype=np.int32)  # subnormal as floats: those of any kind are as fast
    a.view(np.int32)[:], b.view(np.int32)[:] = numbers, 10 * numbers
    _core.triad(out, a, b)
    np.testing.assert_array_equal(out.view(np.int32), 21 * numbers)


@pytest.mark.parametrize("spoil", ["dtype", "length", "alignment", "rank", "read-only"])
def test_triad_refuses(spoil):
    out, a, b = triad_arrays()
    if spoil == "dtype":
        a = a.view(np.int32)
    elif spoil == "length":
        b = b[:1020]
    elif spoil == "alignment":
        a, b, out = a[1:1021], b[1:1021], out[1:1021]
    elif spoil == "rank":
        a = a.reshape(32, 32)
    else:
        out.flags.writeable = False
    with pytest.raises(ValueError, match="triad"):
        _core.triad(out, a, b)
