"""The examples, run as a user runs them."""

import importlib
import importlib.util
import itertools
import os
import re
import runpy
import shutil
import sys
import types
from fractions import Fraction

import helpers
import numpy as np
import pytest

import onedsl
from onedsl import bench, testing

EXAMPLES = helpers.ROOT / "examples"
ENVIRONMENT = {"MPLBACKEND": "Agg", "COLUMNS": "120"}
# The optional packages of the examples.
NEEDS = {
    "accuracy.py": ("torch", "sklearn", "scipy"),
    "compare_data_formats.py": ("matplotlib",),
    "distributed.py": ("torch", "sklearn"),
    "jax_equinox.py": ("equinox", "sklearn"),
    "jax_flax.py": ("flax", "sklearn"),
    "jax_steps.py": ("flax",),
    "jax_training.py": ("jax",),
    "mpi.py": ("mpi4py",),
    "onednn_graph.py": ("matplotlib",),
    "pytorch.py": ("torch",),
    "scale.py": ("torch",),
    "training_steps.py": ("torch",),
}


def path_of(name):
    """Return the path of an example, or skip the test without its packages."""
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module, reason=f"{module} is optional, and not installed here")
    return EXAMPLES / name


def names_of(name):
    """Return the functions and classes of an example."""
    return types.SimpleNamespace(**runpy.run_path(str(path_of(name))))


def run(tmp_path, name, *arguments, environment=None, launcher=(), status=0):
    """Run an example in tmp_path, and return the process."""
    child = helpers.run_python(
        *launcher,
        *([] if launcher else ["-W", "error::UserWarning:__main__"]),
        path_of(name),
        *map(str, arguments),
        environment=ENVIRONMENT | (environment or {}),
        cwd=tmp_path,
        status=status,
    )
    assert "Traceback" not in child.stderr
    return child


def numbers(line):
    """Return the decimal numbers in a line."""
    return [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", line)]


def check_picture(path):
    """Check that each quarter of a picture shows something."""
    pixels = pytest.importorskip("matplotlib.image").imread(path)
    assert min(pixels.shape[:2]) >= 400
    ink = (pixels[..., :3] < 0.9).any(-1)
    assert 0.01 < ink.mean() < 0.95
    for rows in np.array_split(ink, 2):
        for quarter in np.array_split(rows, 2, axis=1):
            assert quarter.mean() > 0.003


def test_quickstart(tmp_path):
    child = run(tmp_path, "quickstart.py")
    assert child.stderr == ""
    for gradient in ("diff_src", "diff_gamma", "diff_beta"):
        assert gradient in child.stdout
    assert "agree with the float64 reference" in child.stdout
    lines = child.stdout.splitlines()
    for backend in ("auto", "onednn"):
        for dtype in helpers.NUMPY:
            agrees = f"{dtype}, backend={backend!r}: agrees" in lines
            assert agrees == helpers.runs(backend, dtype)
    assert list(tmp_path.iterdir()) == []


WITHOUT_ARGUMENTS = [p for p in EXAMPLES.glob("*.py") if "add_argument" not in p.read_text()]


@pytest.mark.parametrize("path", WITHOUT_ARGUMENTS, ids=lambda path: path.name)
def test_help(path, monkeypatch, capsys):
    """Regression: it ran the examples that have no arguments."""
    monkeypatch.setattr("sys.argv", [path.name, "--help"])
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
    except ImportError as error:
        pytest.skip(f"{error.name} is optional, and not installed here")
    assert ended.value.code == 0
    assert f"usage: {path.name} [-h]" in capsys.readouterr().out


def test_in_place(tmp_path):
    child = run(tmp_path, "in_place.py")
    assert child.stderr == ""
    assert child.stdout.count("agrees with the float64 reference") == 2
    last = child.stdout.splitlines()[-1]
    assert last.startswith("another overlap: rejected, because out.diff_src must not overlap")


def test_onednn_graph(tmp_path):
    child = run(tmp_path, "onednn_graph.py")
    assert child.stderr == ""
    lines = child.stdout.splitlines()
    assert lines.count("partition of op 0: BatchNormTrainingBackward, supported") == 2
    assert sum(bool(re.fullmatch(r"right, [\d,]+ us", line)) for line in lines) == 2
    for data_format in ("NXC", "NCX"):
        file = tmp_path / f"onednn_graph_{data_format}.svg"
        assert file.read_text().rstrip().endswith("</svg>")
        (op,) = onedsl.graph.Graph.from_json(file.with_suffix(".json").read_text()).ops
        assert op.attrs["data_format"] == data_format
        assert f"data_format={data_format}" in child.stdout


def test_frozen_statistics(tmp_path):
    rows = run(tmp_path, "frozen_statistics.py").stdout.splitlines()[1:]
    errors = [numbers(row)[-1] for row in rows]
    assert max(errors[0], errors[3]) < 1e-5  # the gradient of the same forward pass
    assert min(errors[1], errors[2]) > 0.1


def test_pytorch(tmp_path):
    """The example itself compares the losses of its four ways to train."""
    child = run(tmp_path, "pytorch.py")
    assert child.stderr == ""
    rows = [numbers(line) for line in child.stdout.splitlines()[1:5]]
    assert len(rows) == 4
    assert all(row[-1] < row[1] for row in rows)


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "mobilenetv2", "regnet_y_400mf"])
def test_networks_are_the_published_ones(name):
    """They have as many parameters as torchvision's."""
    published = {"resnet50": 25_557_032, "resnet18": 11_689_512, "mobilenetv2": 3_504_872}
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="the extra `examples` is not installed")
    with torch.device("meta"):
        model = names_of("pytorch.py").new_network(name, 1000)
    assert sum(p.numel() for p in model.parameters()) == published.get(name, 4_344_144)


def test_pytorch_of_a_network(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="the extra `examples` is not installed")
    options = ("--network", "resnet18", "--batch", "2", "--size", "32", "--steps", "4")
    shown = run(tmp_path, "pytorch.py", *options).stdout
    assert re.fullmatch(r"resnet18: loss \d\.\d+ after 4 steps\n", shown)


def test_accuracy(tmp_path):
    rows = run(tmp_path, "accuracy.py", "--seeds", "2", "--epochs", "1").stdout.splitlines()[1:]
    pairs = itertools.product(("PyTorch", "onedsl"), ("contiguous", "channels_last"))
    assert [row[:24].rstrip() for row in rows] == [", ".join(pair) for pair in pairs]
    assert all(float(row.split()[-2]) < 1e-5 for row in rows)  # the losses of the first step


@pytest.mark.slow
def test_training_steps(tmp_path):
    options = ("--parts", "--processes", "1", "--steps", "1", "--json", "steps.json")
    lines = run(tmp_path, "training_steps.py", *options, "mlp").stdout.splitlines()
    kinds = ["PyTorch", "PyTorch, huge pages", "enable", "BatchNormAct2d", "no batch norm"]
    assert [line[27:48].rstrip() for line in lines[::2]] == kinds
    assert ["speed-up" in line for line in lines[::2]] == [False, True, True, True, True]
    parts = [{name.strip() for name in re.findall(r"[a-z ]+(?= \d)", line)} for line in lines[1::2]]
    plain = {"convolutions", "activations"}
    expected = [plain | {"batch norm"}] * 3 + [{"convolutions", "fused batch norm"}, plain]
    assert [names - {"rest"} for names in parts] == expected
    run(tmp_path, "training_steps.py", "--draw", "steps.json")
    check_picture(tmp_path / "steps.png")


def test_distributed(tmp_path):
    child = run(
        tmp_path,
        "distributed.py",
        *("--steps", "40", "--seeds", "1", "--save", "distributed.png"),
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        environment={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    own, synchronized = (
        numbers(row)[0] for row in child.stdout.splitlines() if len(numbers(row)) == 2
    )
    assert synchronized < 0.9 * own
    check_picture(tmp_path / "distributed.png")
    assert "torchrun" in run(tmp_path, "distributed.py", status=1).stderr


@pytest.mark.parametrize("example", ["jax_training.py", "jax_flax.py", "jax_equinox.py"])
def test_jax(tmp_path, example):
    """The first example itself compares gradients."""
    pairs = re.findall(r"loss (\S+), accuracy (\S+)%", run(tmp_path, example).stdout)
    assert len(pairs) >= 6
    first, *_, last = (tuple(map(float, pair)) for pair in pairs)
    assert last[0] < first[0] / 5
    assert last[1] > 90


@pytest.mark.slow
def test_steps_of_jax(tmp_path):
    """Flax's layer and onedsl's train the same network."""
    (line,) = run(tmp_path, "jax_steps.py", "residual", "--steps", 1).stdout.splitlines()
    flax, ours, speed_up = numbers(line)[:3]
    assert flax / ours == pytest.approx(speed_up, abs=0.01)
    assert float(re.findall(r"differ by (\S+)\)", line)[0]) < 1e-4


def test_compare_data_formats(tmp_path):
    options = ("2x7x7x512", "40x3x8", "--seconds", "0.01", "--save", "picture.png")
    child = run(tmp_path, "compare_data_formats.py", *options)
    rows = [line.split() for line in child.stdout.splitlines()]
    for layer in options[:2]:
        found = {row[1]: row[2:] for row in rows if row[:1] == [layer]}
        assert found.keys() == helpers.NUMPY.keys()
        for dtype, times in found.items():
            assert len(times) - (times[-1] == "noisy") == 6
            assert (times[3] != "-") == helpers.runs("onednn", dtype)
    assert re.search(r"NCX is .* as fast as NXC|No conclusion: ", child.stdout)
    check_picture(tmp_path / "picture.png")


def test_noisy_rows_are_in_no_conclusion(tmp_path, monkeypatch):
    """The faster of two calls counts. The picture marks noisy rows, and panels share one axis."""
    example, figures = names_of("compare_data_formats.py"), []

    def rows(times, dtype, **changes):
        """Return two rows, by format, with these seconds of onedsl."""
        case = "8x4x4", (8, 4, 4), dtype
        return {
            f: bench.Row(*case, f, seconds={"onedsl": 9, "onedsl (allocating)": time}, **changes)
            for f, time in zip(bench.FORMATS, times, strict=True)
        }

    quiet, noisy = rows((2, 1), "f32"), rows((1, 8), "bf16", noisy=True)
    twice = "NCX is 2.0 times (onedsl) as fast as NXC (geometric mean"
    assert example.conclusion([quiet]) == f"{twice})"
    assert example.conclusion([quiet, noisy]) == f"{twice}, without noisy rows)"
    assert example.conclusion([noisy]).startswith("No conclusion: ")
    save = "matplotlib.figure.Figure.savefig"
    monkeypatch.setattr(save, lambda figure, *_, **__: figures.append(figure))
    example.draw(tmp_path / "picture.png", [quiet, noisy], "")
    f32, bf16 = figures[0].axes
    assert f32.get_xlim() == bf16.get_xlim()
    assert [[text.get_text() for text in axes.texts] for axes in (f32, bf16)] == [[], ["noisy"]]
    assert [{bar.get_fill() for bar in axes.patches} for axes in (f32, bf16)] == [{True}, {False}]


@pytest.mark.parametrize(
    "arguments",
    [
        *(("--save", name) for name in ("nowhere/picture.png", "folder.png", "a.doc", "picture")),
        *((layer,) for layer in ("4x4", "8x40x0x96", "8x40x40xC", "resnet50")),
    ],
    ids=lambda arguments: arguments[-1],
)
def test_compare_data_formats_checks_its_arguments_first(tmp_path, arguments, monkeypatch, capsys):
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["compare_data_formats.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        names_of("compare_data_formats.py").main()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"got '{arguments[-1]}'" in captured.err


@pytest.mark.parametrize("name", ["onedsl", "oneDNN"])
def test_compare_data_formats_stops_at_a_wrong_gradient(name):
    verify, problem = names_of("compare_data_formats.py").verify, testing.random_problem((2, 5, 3))
    expected = testing.batch_norm_backward(*problem, epsilon=1e-5)
    got = onedsl.BatchNormGradients(*(array.astype(np.float32) for array in expected))
    verify(f"layer {name}", got, expected)
    with pytest.raises(SystemExit, match=f"layer {name}: diff_beta"):
        verify(f"layer {name}", got._replace(diff_beta=got.diff_gamma), expected)


def test_larger_than_memory(tmp_path):
    """Tensors eight times as large need no more memory, within a few parts."""

    def megabytes(images):
        """Return the size of a tensor and the peak memory."""
        child = run(
            tmp_path, "larger_than_memory.py", *("--part", 4, "--folder", ".", "--images", images)
        )
        tensors, peak, _ = child.stdout.splitlines()
        return numbers(tensors)[0], numbers(peak)[1]

    small, large = megabytes(12), megabytes(96)
    assert 3 * (large[0] - small[0]) > 190  # three tensors
    assert large[1] < small[1] + 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [1, 3, 8, 100])
def test_larger_than_memory_matches_one_call(tmp_path, part):
    example, problem = names_of("larger_than_memory.py"), testing.random_problem((8, 5, 7, 3))

    def file(name, values):
        tensor = example.TensorFile(tmp_path / name, values.shape, part).create()
        values.tofile(tmp_path / name)
        return tensor

    src, diff_dst = file("src", problem.src), file("diff_dst", problem.diff_dst)
    expected = problem.src.mean((0, 1, 2)), problem.src.var((0, 1, 2))
    for got, want in zip(example.statistics(src), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    diff_src = file("diff_src", np.zeros_like(problem.src))
    sums = example.gradient(src, diff_dst, *problem[2:], diff_src)
    result = np.fromfile(tmp_path / "diff_src", np.float32).reshape(problem.src.shape)
    gradients = testing.batch_norm_backward(*problem, epsilon=example.EPSILON)
    testing.assert_close((result, *sums), gradients)


@pytest.mark.parametrize(("processes", "images"), [(1, 5), (3, 5), (3, 2)])
def test_mpi(tmp_path, processes, images):
    """Uneven parts, and an empty one (two images for three processes)."""
    program = path_of("mpi.py")
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=folders)
    assert mpiexec is not None, "mpi4py is installed, but mpiexec is not"
    child = helpers.run_program(
        *(mpiexec, "-n", str(processes), sys.executable, program),
        *("--images", str(images), "--save", "results.npz"),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert f"{processes} processes, {images * 14 * 14} elements per channel" in child.stdout
    results = np.load(tmp_path / "results.npz")

    problem = testing.random_problem((images, 14, 14, 64), seed=0)
    zeros = np.zeros_like(problem.gamma)
    forward = onedsl.BatchNormForwardTraining(1e-5, momentum=0.9)
    alone = forward(problem.src, zeros, zeros + 1, problem.gamma, zeros)
    inputs = problem.src, problem.diff_dst, alone.batch_mean, alone.batch_variance, problem.gamma
    gradients = onedsl.BatchNormTrainingBackward(1e-5)(*inputs)
    for name, expected in {**alone._asdict(), **gradients._asdict()}.items():
        assert testing.relative_l2(results[name], expected.astype("f8")) < 1e-7, name
    if processes == 1:
        assert results["diff_src"].tobytes() == gradients.diff_src.tobytes()


@pytest.mark.slow
def test_scale(tmp_path):
    options = ("--batch", "1", "--threads", "2", "--rounds", "1", "--megabytes", "1")
    rows = [row.split() for row in run(tmp_path, "scale.py", *options).stdout.splitlines()]
    # A header, the layers of ResNet-50 and all of them, before a note if other programs run.
    assert [rows[i][0] for i in (0, 1, 13)] == ["channels", "64", "all"]
    for row in rows[1:14]:
        own, synchronized, whole, efficiency = map(float, row[-4:])
        assert min(own, synchronized, whole) > 0
        assert efficiency == pytest.approx(whole / synchronized, rel=0.1, abs=0.01)


def test_onedsl_is_never_the_least_accurate(tmp_path):
    child = run(tmp_path, "errors.py", "--elements", "2000")
    assert child.stderr == ""
    lines = child.stdout.splitlines()
    header, _, *rows = ([c.strip() for c in li.split("|")[1:-1]] for li in lines if li[:1] == "|")
    names = ["onedsl", "oneDNN"] + ["PyTorch"] * bool(importlib.util.find_spec("torch"))
    assert header[1:] == names * 2
    assert {len(row) for row in rows} == {len(header)}
    assert len(rows) == 4 * 2
    for word in ("ordinary", "mean 1,000,000", "cancel", "subnormal"):
        assert any(word in row[0] for row in rows)
    assert all(float(row[1 + len(names)]) <= 2 for row in rows if row[0].startswith("ordinary"))
    assert lines[-1] == "onedsl is never the least accurate."


def test_violations_are_reported():
    errors = names_of("errors.py")
    good, bad = errors.Errors(1e-7, 1.0), errors.Errors(3e-7, 3.0)

    def violations(name, ours, others):
        found = {"onedsl": ours, "oneDNN": others}
        return list(errors.violations(f"{name}, f32, NXC", found))

    assert violations("ordinary", good, bad) == []
    assert violations("other", bad, good) == [
        "other, f32, NXC: onedsl has the largest error of diff_src",
        "other, f32, NXC: onedsl has the largest error of ulps",
    ]
    assert violations("ordinary", bad, bad) == [
        "ordinary, f32, NXC: a sum is off by 3.0 units in the last place"
    ]
    assert violations("other", bad, bad) == []


def test_the_reference_is_exact():
    """Compare with rational numbers, on sums for which float64 loses every digit."""
    src = np.array([1e6, 1e6 + 1, 1e6, 1e6 + 1], np.float32).reshape(4, 1, 1, 1)
    diff_dst = np.array([1e30, 1, -1e30, 1], np.float32).reshape(src.shape)
    mean, variance = np.array([1e6], np.float32), np.array([4 - 1e-5])
    problem = testing.Problem(src, diff_dst, mean, variance, np.ones(1, np.float32))
    _, diff_gamma, diff_beta = names_of("errors.py").exact_gradients(problem)
    pairs = [
        (Fraction(float(d)), Fraction(float(s)))
        for d, s in zip(diff_dst.flat, src.flat, strict=True)
    ]
    assert diff_beta[0] == float(sum(d for d, _ in pairs)) == 2
    expected = sum(d * (s - Fraction(float(mean[0]))) for d, s in pairs) / 2
    assert diff_gamma[0] == float(expected) == 1
    assert float(diff_dst.astype(np.float64).sum()) != 2
