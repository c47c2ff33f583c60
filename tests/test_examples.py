"""The examples, run as a user runs them."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys

import helpers
import numpy as np
import pytest

import onedsl
from onedsl import testing

TORCH = "the example trains with PyTorch, which is not installed"
EXAMPLES = helpers.ROOT / "examples"
# matplotlib is not to look for a screen, nor to keep its cache where tests may not write.
PLAIN = {"MPLBACKEND": "Agg", "COLUMNS": "120", "NO_COLOR": "1"}


def run(tmp_path, name, *arguments, environment=None, timeout=120):
    environment = {**PLAIN, "MPLCONFIGDIR": str(tmp_path / "matplotlib"), **(environment or {})}
    return helpers.run_python(
        "-W",
        "error::UserWarning:__main__",
        str(EXAMPLES / name),
        *arguments,
        environment=environment,
        cwd=tmp_path,
        timeout=timeout,
    )


def test_every_example_is_tested():
    programs = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*.py")
        if path.parent == EXAMPLES or "__main__" in path.read_text()
    }
    assert programs == {
        "quickstart.py",
        "compiled.py",
        "compare_data_formats.py",
        "distributed.py",
        "larger_than_memory.py",
        "layer.py",
        "mpi.py",
        "pytorch.py",
        "jax_data_parallel.py",
        "jax_equinox.py",
        "jax_training.py",
        "studies/errors.py",
        "studies/frozen_backbone.py",
        "studies/scale.py",
        "studies/train_cnn.py",
        "studies/training_step.py",
    }


def test_quickstart(tmp_path):
    child = run(tmp_path, "quickstart.py")
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    for gradient in ("diff_src", "diff_gamma", "diff_beta"):
        assert gradient in child.stdout
    assert "agree with the float64 reference" in child.stdout
    assert list(tmp_path.iterdir()) == []


def test_compiled(tmp_path):
    child = run(tmp_path, "compiled.py")
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    assert child.stdout.count("agrees with the float64 reference") == 2
    assert "diff_src over src is refused: out.diff_src overlaps src" in child.stdout
    assert "another shape is refused: src has shape (2, 8, 8, 32)" in child.stdout
    assert child.stdout.splitlines()[-1] in (
        "autotune keeps backend='native'",
        "autotune keeps backend='onednn'",
    )


def numbers(line):
    return [float(number) for number in re.findall(r"-?\d+\.\d+", line)]


def test_pytorch(tmp_path):
    pytest.importorskip("torch", reason=TORCH)
    child = run(tmp_path, "pytorch.py")
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    lines = {line.split(":")[0]: line for line in child.stdout.splitlines() if ":" in line}
    assert lines["converted"].endswith("['onedsl', 'onedsl']")
    assert lines["reverted"].endswith("['torch', 'torch']")
    theirs, ours = (numbers(lines[f"losses with {who}'s layers"]) for who in ("torch", "onedsl"))
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours[-1] < ours[0]
    later = numbers(lines["more steps, channels_last and bfloat16"])
    assert later[-1] < later[0] < ours[0]


def test_distributed(tmp_path):
    pytest.importorskip("torch", reason=TORCH)
    matplotlib = pytest.importorskip("matplotlib.image")
    picture = tmp_path / "distributed.png"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    child = helpers.run_python(
        *(*launcher, str(EXAMPLES / "distributed.py")),
        *("--steps", "60", "--seeds", "2", "--save", str(picture)),
        environment={**PLAIN, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert child.returncode == 0, child.stdout + child.stderr
    _, own, synchronized, said = child.stdout.splitlines()
    assert own.startswith("each process's own statistics")
    assert synchronized.startswith("synchronized")
    assert numbers(synchronized)[0] < 0.9 * numbers(own)[0]
    assert said == f"Picture: {picture}"
    assert_is_a_picture(matplotlib.imread(picture))


def test_distributed_without_a_launcher(tmp_path):
    pytest.importorskip("torch", reason=TORCH)
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    child = run(tmp_path, "distributed.py")
    assert child.returncode == 1
    assert child.stderr == "start it with: torchrun --nproc-per-node 2 examples/distributed.py\n"


def test_jax_training(tmp_path):
    pytest.importorskip("jax", reason="the example trains with JAX, which is not installed")
    child = run(tmp_path, "jax_training.py")
    assert child.returncode == 0, child.stderr
    assert "onedsl's gradients of first, gamma, beta, last are those" in child.stdout
    losses = [numbers(line)[0] for line in child.stdout.splitlines() if line.startswith("step")]
    assert len(losses) == 6
    assert losses == sorted(losses, reverse=True)
    assert child.stdout.rstrip().endswith("%")
    assert int(child.stdout.rstrip(" %\n").split()[-1]) > 90


def losses_of(child):
    assert child.returncode == 0, child.stderr
    losses = [numbers(line)[0] for line in child.stdout.splitlines() if line.startswith("step")]
    assert len(losses) == 6
    return losses


def test_jax_data_parallel(tmp_path):
    pytest.importorskip("jax", reason="the example trains with JAX, which is not installed")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    child = run(tmp_path, "jax_data_parallel.py", environment=flags)
    losses = losses_of(child)
    assert losses[-1] < losses[0] / 10
    assert "a step on 2 devices is that on one" in child.stdout


def test_jax_equinox(tmp_path):
    pytest.importorskip("equinox", reason="the example is a layer for Equinox")
    child = run(tmp_path, "jax_equinox.py")
    losses = losses_of(child)
    assert losses[-1] < losses[0] / 10
    assert abs(numbers(child.stdout.splitlines()[-1])[0] - losses[-1]) < 0.02


def test_compare_data_formats(tmp_path):
    matplotlib = pytest.importorskip(
        "matplotlib.image", reason="the extra `examples` is not installed"
    )
    picture = tmp_path / "picture.png"
    child = run(
        tmp_path,
        "compare_data_formats.py",
        "--layers",
        "photos-3x208,resnet50-512x7",
        "--dtypes",
        "f32,bf16,f16",
        "--batch",
        "2",
        "--save",
        str(picture),
    )
    assert child.returncode == 0, child.stdout + child.stderr
    for word in ("photos-3x208", "resnet50-512x7", "f32", "bf16", "f16", "NXC", "NCX"):
        assert word in child.stdout, word
    assert_is_a_picture(matplotlib.imread(picture))


def test_layer(tmp_path):
    pytest.importorskip("torch", reason=TORCH)
    matplotlib = pytest.importorskip("matplotlib.image")
    picture = tmp_path / "layer.png"
    small = ("--batch", "1", "--size", "7", "--seconds", "0.01", "--dtypes", "bf16")
    child = run(tmp_path, "layer.py", *small, "--save", str(picture))
    assert child.returncode == 0, child.stdout + child.stderr
    assert "Every result agrees with the float64 reference" in child.stdout
    lines = [line.split() for line in child.stdout.splitlines() if "backward" in line]
    assert len([line for line in lines if line[0] == "relu-backward"]) == 4
    assert len([line for line in lines if line[0] == "add-relu-backward"]) == 2
    assert_is_a_picture(matplotlib.imread(picture))


def peak_of(child):
    """Give MiB of the tensors, and of the process's peak."""
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    tensors, peak, _ = child.stdout.splitlines()
    return numbers(tensors)[0], numbers(peak)[1]


def test_larger_than_memory(tmp_path):
    """Eight times as much takes no more memory, but for what chance has left of a few parts."""
    small, large = (
        peak_of(run(tmp_path, "larger_than_memory.py", "--part", "8", "--folder", ".", *images))
        for images in (("--images", "24"), ("--images", "192"))
    )
    assert 3 * (large[0] - small[0]) > 380
    assert large[1] < small[1] + 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [1, 3, 8, 100])
def test_larger_than_memory_has_the_results_of_one_call(tmp_path, part):
    names = runpy.run_path(str(EXAMPLES / "larger_than_memory.py"))
    problem = testing.random_problem((8, 5, 7, 3))

    def file(name, values):
        tensor = names["TensorFile"](tmp_path / name, values.shape, part).create()
        values.tofile(tmp_path / name)
        return tensor

    src, diff_dst = file("src", problem.src), file("diff_dst", problem.diff_dst)
    statistics = names["statistics"](src)
    for got, wanted in zip(
        statistics, (problem.src.mean((0, 1, 2)), problem.src.var((0, 1, 2))), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    diff_src = names["TensorFile"](tmp_path / "diff_src", problem.src.shape, part).create()
    sums = names["gradient"](src, diff_dst, *problem[2:], diff_src)
    result = np.fromfile(tmp_path / "diff_src", np.float32).reshape(problem.src.shape)
    wanted = testing.batch_norm_backward(*problem, epsilon=names["EPSILON"])
    testing.assert_gradients_close((result, *sums), wanted)


@pytest.mark.parametrize(("processes", "images"), [(1, 5), (2, 5), (3, 5), (3, 2)])
def test_mpi(tmp_path, processes, images):
    """Uneven shares, and with two images for three processes an empty one."""
    pytest.importorskip("mpi4py", reason="the example needs MPI, which is not installed")
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=folders)
    assert mpiexec is not None, "mpi4py is installed, and no MPI"
    child = subprocess.run(
        [
            *(mpiexec, "-n", str(processes), sys.executable, str(EXAMPLES / "mpi.py")),
            *("--images", str(images), "--save", "results.npz"),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    count = images * 14 * 14
    assert f"{processes} processes normalized {count} elements a channel as one" in child.stdout
    results = np.load(tmp_path / "results.npz")

    problem = testing.random_problem((images, 14, 14, 64), seed=0)
    zeros = np.zeros_like(problem.gamma)
    forward = onedsl.BatchNormForwardTraining(1e-5, momentum=0.9)
    alone = forward(problem.src, zeros, zeros + 1, problem.gamma, zeros)
    inputs = problem.src, problem.diff_dst, alone.batch_mean, alone.batch_variance, problem.gamma
    gradients = onedsl.BatchNormTrainingBackward(1e-5)(*inputs)
    for name, wanted in {**alone._asdict(), **gradients._asdict()}.items():
        assert testing.relative_l2(results[name], wanted.astype("f8")) < 1e-7, name
    if processes == 1:
        assert results["diff_src"].tobytes() == gradients.diff_src.tobytes()


def assert_is_a_picture(pixels):
    height, width = pixels.shape[:2]
    assert min(height, width) >= 400
    ink = (pixels[..., :3] < 0.9).any(-1)
    assert 0.01 < ink.mean() < 0.95
    # Not blank in any quarter: there is something to see everywhere.
    for rows in np.array_split(ink, 2):
        for quarter in np.array_split(rows, 2, axis=1):
            assert quarter.mean() > 0.003


@pytest.mark.parametrize("spoilt", ["diff_src", "diff_gamma", "diff_beta"])
@pytest.mark.parametrize("who", ["onedsl", "oneDNN"])
@pytest.mark.parametrize("value", [1.01, np.nan])
def test_compare_data_formats_stops_at_a_wrong_gradient(spoilt, who, value):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    verify = runpy.run_path(str(EXAMPLES / "compare_data_formats.py"))["verify"]
    problem = testing.random_problem((2, 5, 5, 3))
    expected = testing.batch_norm_backward(*problem, epsilon=1e-5)
    got = onedsl.BatchNormGradients(*(array.astype(np.float32) for array in expected))
    verify(f"a layer {who}", got, expected)
    with pytest.raises(SystemExit, match=f"a layer {who}: {spoilt} is off by"):
        verify(f"a layer {who}", got._replace(**{spoilt: getattr(got, spoilt) * value}), expected)


def test_compare_data_formats_without_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    child = run(
        tmp_path, "compare_data_formats.py", "--layers", "resnet50-512x7", "--dtypes", "f32",
        "--batch", "1", "--save", "",
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--layers", "no-such-layer"), "no-such-layer"),
        (("--dtypes", "f64"), "f64"),
        (("--batch", "0"), "'0'"),
        (("--save", "nowhere/picture.png"), "there is no folder 'nowhere'"),
        (("--save", "picture.txt"), "must end in .png, .pdf, .svg"),
    ],
    ids=["layer", "dtype", "batch", "folder", "suffix"],
)
def test_compare_data_formats_refuses_in_words(tmp_path, arguments, word):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    child = run(tmp_path, "compare_data_formats.py", *arguments, timeout=60)
    assert child.returncode == 2, child.stdout + child.stderr
    assert word in child.stderr
    assert "Traceback" not in child.stderr


def test_help(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    child = run(tmp_path, "compare_data_formats.py", "--help")
    assert child.returncode == 0, child.stderr
    for option in ("--layers", "--dtypes", "--save"):
        assert option in child.stdout


def test_frozen_backbone(tmp_path):
    matplotlib = pytest.importorskip(
        "matplotlib.image", reason="the extra `examples` is not installed"
    )
    picture = tmp_path / "picture.png"
    child = run(
        tmp_path,
        "studies/frozen_backbone.py",
        "--seeds",
        "1",
        "--steps",
        "15",
        "--save",
        str(picture),
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stderr == ""
    rows = [line.split() for line in child.stdout.splitlines()]
    errors = {
        tuple(row[:3]): float(row[3]) for row in rows if row[2:3] in (["right"], ["confused"])
    }
    assert len(errors) == 4
    for (forward, gradient, verdict), error in errors.items():
        assert (verdict == "right") == (forward == gradient)
        assert error < 1e-5 if verdict == "right" else error > 0.1
    assert_is_a_picture(matplotlib.imread(picture))


@pytest.mark.parametrize(("option", "word"), [("--steps", "ten"), ("--rate", "-1")])
def test_frozen_backbone_refuses_in_words(tmp_path, option, word):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    child = run(tmp_path, "studies/frozen_backbone.py", f"{option}={word}", timeout=60)
    assert child.returncode == 2, child.stdout + child.stderr
    assert word in child.stderr
    assert "Traceback" not in child.stderr


def test_train_cnn(tmp_path):
    matplotlib = pytest.importorskip(
        "matplotlib.image", reason="the extra `examples` is not installed"
    )
    pytest.importorskip("torch", reason=TORCH)
    picture = tmp_path / "picture.png"
    child = run(
        tmp_path, "studies/train_cnn.py", "--steps", "6", "--batch", "16", "--save", str(picture),
        timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stderr == ""
    rows = [line.split() for line in child.stdout.splitlines()]
    rows = [row for row in rows if row[1:2] in (["torch"], ["onedsl"])]
    memories = ["contiguous", "channels_last"]
    assert [row[0] for row in rows[::2]] == ["f32", "f32", "bf16", "bf16"]
    assert [row[0] for row in rows[1::2]] == memories * 2
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        assert theirs[1] == "torch"
        assert ours[1] == "onedsl"
        whole, forward, backward = map(float, ours[2:5])
        assert 0 < forward + backward < whole
        # Last the loss, and the accuracy with its per cent sign.
        assert float(ours[-3]) == pytest.approx(float(theirs[-3]), rel=0.2)
    apart = {
        words[words.index("in") + 1].rstrip(","): float(words[words.index("by") + 1])
        for line in child.stdout.splitlines()
        if line.startswith("The first losses of torch and onedsl differ")
        for words in [line.split()]
    }
    assert apart.keys() == {"f32", "bf16"}
    assert apart["f32"] < 0.1  # per cent
    assert apart["bf16"] < 5
    assert_is_a_picture(matplotlib.imread(picture))


def test_train_cnn_without_torch(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    child = run(tmp_path, "studies/train_cnn.py", environment={"PYTHONPATH": str(tmp_path)})
    assert child.returncode == 1
    assert child.stdout == ""
    assert child.stderr == "train_cnn.py needs PyTorch: pip install 'torch>=2.13'\n"


def test_training_step(tmp_path):
    matplotlib = pytest.importorskip(
        "matplotlib.image", reason="the extra `examples` is not installed"
    )
    pytest.importorskip("torch", reason=TORCH)
    picture = tmp_path / "picture.png"
    child = run(
        tmp_path, "studies/training_step.py", "--batch", "2", "--size", "32", "--rounds", "2",
        "--networks", "MobileNetV2", "--memories", "channels_last", "--plot", str(picture),
        timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    rows = [line.replace("│", " ").split() for line in child.stdout.splitlines()]
    rows = [row for row in rows if row[:1] == ["MobileNetV2"]]
    assert [row[1] for row in rows] == ["f32", "bf16"]
    for row in rows:
        milliseconds, enable, fused, *shares = (float(word.rstrip("*")) for word in row[3:])
        assert milliseconds > 1
        assert 0.2 < enable < 5
        assert 0.2 < fused < 5
        assert all(0 < share < 100 for share in shares)
    assert_is_a_picture(matplotlib.imread(picture))


def test_scale(tmp_path):
    matplotlib = pytest.importorskip(
        "matplotlib.image", reason="the extra `examples` is not installed"
    )
    pytest.importorskip("torch", reason=TORCH)
    picture = tmp_path / "picture.png"
    child = run(
        tmp_path, "studies/scale.py", "--batch", "1", "--images", "64", "--rounds", "1",
        "--cycle", "1", "--save", str(picture), timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout.count("Computed: ") == 3
    rows = [line.replace("│", " ").split() for line in child.stdout.splitlines()]
    measured = [row for row in rows if len(row) == 8 and row[0].isdecimal()]
    assert len(measured) == 13  # ResNet-50's, and the smallest one
    for row in measured:
        own, synchronized, _, threads, efficiency = map(float, row[3:])
        assert min(own, synchronized, threads) > 0
        assert efficiency == pytest.approx(threads / synchronized, abs=0.2)
    computed = [list(map(float, row)) for row in rows if len(row) == 6 and row[0].isdecimal()]
    assert [row[0] for row in computed] == [1, 4, 16, 64, 256, 1024] * 3
    for before, row in itertools.pairwise(computed):
        processes, computing, exchanging, efficiency, merged, one = row
        assert efficiency == pytest.approx(computing / (computing + exchanging), abs=0.01)
        if processes > 1:
            assert computing < before[1]
            assert exchanging > before[2]
            assert one < merged < exchanging
    assert child.stdout.count("processes on, exchanges take longer than computing") == 3
    assert_is_a_picture(matplotlib.imread(picture))


def test_training_step_without_torch(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    child = run(tmp_path, "studies/training_step.py", environment={"PYTHONPATH": str(tmp_path)})
    assert child.returncode == 1
    assert child.stderr == "training_step.py needs PyTorch: pip install 'torch>=2.13'\n"


def test_training_step_refuses_in_words(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    pytest.importorskip("torch", reason=TORCH)
    child = run(tmp_path, "studies/training_step.py", "--rounds=0", timeout=60)
    assert child.returncode == 2
    assert "must be at least 1, not 0" in child.stderr


@pytest.mark.parametrize(("option", "word"), [("--threads", "0"), ("--batch", "1401")])
def test_train_cnn_refuses_in_words(tmp_path, option, word):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    pytest.importorskip("torch", reason=TORCH)
    child = run(tmp_path, "studies/train_cnn.py", f"{option}={word}", timeout=60)
    assert child.returncode == 2, child.stdout + child.stderr
    assert word in child.stderr
    assert "Traceback" not in child.stderr
