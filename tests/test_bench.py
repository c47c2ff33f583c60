"""The benchmark's own machinery, on its smallest workload."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from onedsl import _bench, _core
from onedsl.__main__ import main


def test_bench_writes_what_it_shows(tmp_path, capsys):
    figures, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    chosen = ["--workloads", "small,transformer", "--dtypes", "f16", "--formats", "NCX"]
    wanted = ["--seconds", "0.01", "--json", str(figures), "--plot", str(picture)]
    status = main(["bench", *chosen, *wanted])
    assert status == 0
    shown = capsys.readouterr().out
    assert "1x8x4x4" in shown
    assert "16384x768" in shown
    rows = json.loads(figures.read_text())["rows"]
    assert len(rows) == 1 + len(_bench.WORKLOADS["transformer"])
    for row in rows:
        assert row["seconds"]["native"] > 0
        assert row["triad_bytes_per_second"] > 1e8
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_rank_2_comes_once():
    rows = list(_bench.problems(["transformer"], ["f32"], ["NXC", "NCX"]))
    assert [len(row.shape) for row in rows] == [2, 2, 3, 3, 3, 3]


def test_summary_takes_the_worst_row():
    fast = _bench.Row("w", (2, 3), "f32", "NXC", "native", {"auto": 1, "native": 1, "torch": 8}, 1)
    slow = _bench.Row("w", (4, 5), "f32", "NXC", "native", {"auto": 1, "native": 2, "torch": 2}, 1)
    lines = _bench.summary([fast, slow])
    assert "4.00 times as fast (geometric mean of 2 rows), at least 2.00 (4x5 f32 NXC)" in lines[0]
    assert "at least 1.00 (4x5 f32 NXC)" in lines[1]


def test_share_of_the_triad():
    row = _bench.Row("w", (10, 10), "bf16", "NXC", "native", {"auto": 2.0}, 600.0)
    assert row.bytes == 600
    assert row.triad_share("auto") == 0.5
    assert math.isnan(row.torch)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--workloads", "resnet", "no workload 'resnet'; there are small, ResNet-50"),
        ("--dtypes", "f64", "no dtype 'f64'; there are f32, bf16, f16"),
        ("--formats", "NHWC", "no format 'NHWC'; there are NXC, NCX"),
    ],
)
def test_wrong_options_are_explained(option, value, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", option, value])
    assert message in capsys.readouterr().err


def test_info_in_a_process_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "onedsl", "info"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "what oneDNN runs by itself" in done.stdout


def test_triad():
    out, a, b = (array[:1024] for array in _bench.triad_arrays())
    a[:] = np.arange(1024)
    _core.triad(out, a, b)
    np.testing.assert_array_equal(out, np.arange(1024) + 3)


@pytest.mark.parametrize("spoil", ["dtype", "length", "alignment", "rank", "read-only"])
def test_triad_refuses(spoil):
    out, a, b = (array[:1024] for array in _bench.triad_arrays())
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
