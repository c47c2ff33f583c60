"""The benchmark's own machinery, on its smallest workload."""

import functools
import importlib.util
import io
import itertools
import json
import math
import re
import time

import matplotlib as mpl
import numpy as np
import pytest
from rich.console import Console

from onedsl import _core, bench, testing
from onedsl.__main__ import main
from onedsl._interleaved import MIN_ROUNDS, SAMPLE_SECONDS, median_seconds
from onedsl.bench import report


def run(*options):
    return main(["bench", "--seconds", "0.01", *options])


def row(shape=(4, 5), seconds=None, **changes):
    case = {"workload": "w", "shape": shape, "dtype": "f32", "data_format": "NXC"}
    times = {"seconds": seconds or {"onedsl": 1}, "triad_bytes_per_second": 600.0}
    return bench.Row(**case | times | changes)


def text(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_bench_writes_what_it_shows(tmp_path, capsys):
    figures, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    chosen = ["--workloads", "small,transformer", "--dtypes", "f16", "--formats", "NCX"]
    status = run(*chosen, "--json", str(figures), "--plot", str(picture))
    assert status == 0
    shown = capsys.readouterr().out
    assert "1x8x4x4" in shown
    assert "16384x768" in shown
    rows = json.loads(figures.read_text())["rows"]
    assert len(rows) == 1 + len(bench.WORKLOADS["transformer"])
    for row in rows:
        assert row["seconds"]["onedsl"] > 0
        assert row["triad_bytes_per_second"] > 1e8
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_onedsl_and_onednn_are_timed_once_each():
    case = bench.Case("w", (2, 3, 4), "f32", "NCX")
    calls = bench.contenders(bench.random_problem(case), "NCX")
    assert set(calls) - set(report.TORCH) == {"onedsl", "oneDNN"}
    for name in ("onedsl", "oneDNN"):
        backend = calls[name].args[0].backend
        assert backend == {"onedsl": "native", "oneDNN": "onednn"}[name]


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("shape", [(6, 8), (3, 8, 5), (2, 8, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_every_contender_computes_the_same(dtype, shape, data_format):
    case = bench.Case("w", shape, dtype, data_format)
    problem = bench.random_problem(case)
    expected = testing.batch_norm_backward(*problem, epsilon=1e-5, data_format=data_format)
    calls = bench.contenders(problem, data_format)
    assert "onedsl" in calls
    for name, call in calls.items():
        for _ in range(3):  # other copies of the tensors
            diff_src, *sums = call()
            if name in report.TORCH:
                diff_src = diff_src.float().numpy()
                if len(shape) > 2 and data_format == "NXC":
                    diff_src = np.moveaxis(diff_src, 1, -1).reshape(problem.src.shape)
            tolerance = 2 * testing.TOLERANCES[dtype]
            assert testing.relative_l2(diff_src, expected.diff_src) < tolerance, name
            for got, wanted in zip(sums, expected[1:], strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_rank_2_comes_once():
    rows = list(bench.cases(["transformer"], ["f32"], ["NXC", "NCX"]))
    assert [len(row.shape) for row in rows] == [2, 2, 3, 3, 3, 3]


def test_summary_takes_the_worst_row():
    fast = row((2, 3), {"onedsl": 1, "oneDNN": 3, "torch": 8})
    slow = row((4, 5), {"onedsl": 1, "oneDNN": 1, "torch": 2})
    lines = report.summary([fast, slow])
    assert "4.00 times as fast (geometric mean of 2 rows), at least 2.00 (4x5 f32 NXC)" in lines[0]
    assert "at least 1.00 (4x5 f32 NXC)" in lines[1]


def test_summary_leaves_out_who_did_not_run():
    lines = report.summary([row(seconds={"onedsl": 1, "torch": 2})])
    assert len(lines) == 1
    assert "torch" in lines[0]
    assert report.summary([row()]) == []


def test_summary_warns_of_other_programs():
    assert "2 of 3 rows" in report.summary([row(), row(disturbed=True), row(disturbed=True)])[-1]


def test_share_of_the_triad():
    half = row((10, 10), {"onedsl": 2.0}, dtype="bf16")
    assert half.bytes == 600
    assert half.triad_share("onedsl") == 0.5
    assert math.isnan(half.time("torch"))


def test_the_faster_of_two_calls_counts():
    assert row(seconds={"onedsl": 1, "torch": 3, "torch out": 2}).time(*report.TORCH) == 2


def test_a_narrow_terminal_shows_all_figures():
    seconds = {"onedsl": 0.0234567, "oneDNN": 0.135246, "torch": 0.0657294}
    shapes = (32, 64, 112, 112), (16384, 768)
    rows = [row(shape, seconds, triad_bytes_per_second=2e10) for shape in shapes]
    for width in (60, 100):
        shown = text(report.rows_table(rows), width)
        assert max(map(len, shown.splitlines())) <= width
        for figure in ("23,457", "135,246", "65,729", "5.77", "2.80"):
            assert shown.count(figure) == len(rows), (width, figure)
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_table_and_legend_name_only_what_ran(tmp_path):
    rows = [row(seconds={"onedsl": 1, "torch": 2})]
    shown = text(report.rows_table(rows), 100)
    assert "torch" in shown.split("4x5")[0]
    assert "oneDNN" not in shown
    picture = tmp_path / "picture.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        report.draw(picture, rows)
    legend = re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())
    assert "PyTorch" in legend
    assert "onedsl" in legend
    assert "oneDNN" not in legend


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
    rows = bench.measure(calls, 0.0, tuple(array[:16] for array in bench.triad_arrays()))
    assert [row.data_format for row in rows] == ["NXC", "NCX"]
    turns = [name for name, _ in itertools.groupby(order)]
    assert turns == ["NXC", "NCX"] * 5


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--workloads", "resnet", "no workload 'resnet'; there are small, ResNet-50"),
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


def test_the_extra_is_named_before_anything_is_measured(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("something was measured"))
    assert main(["bench", "--plot", "picture.png"]) == 2
    assert "--plot needs matplotlib: pip install 'onedsl[cli]'" in capsys.readouterr().err


def test_triad():
    out, a, b = (array[:1024] for array in bench.triad_arrays())
    a[:] = np.arange(1024)
    _core.triad(out, a, b)
    np.testing.assert_array_equal(out, np.arange(1024) + 3)


@pytest.mark.parametrize("spoil", ["dtype", "length", "alignment", "rank", "read-only"])
def test_triad_refuses(spoil):
    out, a, b = (array[:1024] for array in bench.triad_arrays())
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
