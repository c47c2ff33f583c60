"""The commands of ``onedsl``, their output and their exit status: no law has text.

Commands run in this process, except where the process itself is tested: its streams, pipes and
locale, and the variables that are read once.
"""

import dataclasses
import importlib
import json
import math
import os
import re
import sys

import helpers
import pytest

import onedsl
from onedsl import _core, bench, cli, testing
from onedsl.bench import timing
from onedsl.cli import main
from onedsl.cli.output import WIDTH
from onedsl.graph import Graph
from onedsl.runtime import onednn

run = importlib.import_module("onedsl.cli.run")  # the package has the command of this name


def run_command(*arguments, **options):
    """Run a command in a separate process, without a terminal."""
    return helpers.run_python("-m", "onedsl", *arguments, **options)


# ---- info ----


def test_info_as_json(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["onedsl"] == onedsl.__version__
    assert found["onednn"]["version"] == ".".join(map(str, onednn.version()))
    assert re.fullmatch(r"[0-9a-f]{8,40}|N/A", found["onednn"]["hash"])
    assert re.search(r"gomp|omp|tbb", found["onednn"]["threading_library"])
    assert found["cpu"]["onednn_isa"] == onednn.cpu_isa()
    assert found["cpu"]["native_isa"] == _core.native_isa()
    assert "sse4_1" in found["cpu"]["instruction_sets"]
    assert found["last_cache_bytes"] > 0
    expected = [s._asdict() for s in onedsl.capabilities().support]
    for row, support in zip(found["support"], expected, strict=True):
        added = row.pop("onedsl_adds")
        assert row == support
        assert bool(added) != row["onednn"], "onedsl runs what oneDNN does not support"
        runs_in_onednn = onedsl.capabilities().runs_in_onednn(row["dtype"])
        assert row["onednn"] or runs_in_onednn == (added != "uses its own kernels")


def test_info_reports_limits_from_the_environment():
    environment = {"ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "1"}
    child = run_command("info", "--json", environment=environment)
    found = json.loads(child.stdout)
    assert found["environment"] == environment | {
        k: os.environ[k] for k in ("ONEDSL_MAX_CPU_ISA",) if k in os.environ
    }
    assert found["cpu"]["onednn_isa"] == "sse41"
    assert found["cpu"]["best_native_isa"] == _core.best_native_isa()
    assert found["num_threads"] == 1
    sixteen_bit = [row for row in found["support"] if row["dtype"] != "f32"]
    assert not any(row["onednn"] for row in sixteen_bit)
    assert all(row["message"] for row in sixteen_bit)


@pytest.mark.parametrize("command", ["info", "explain 4x64x64x64 --seconds 0.01"])
def test_output_fits_a_terminal(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(len(line) > 70 for line in lines)


@pytest.mark.parametrize("columns", ["0", "-1", "x", ""])
def test_output_without_a_width(columns, monkeypatch, capsys):
    """Regression: nothing was printed."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("onedsl ")
    assert 100 < max(map(len, shown.splitlines())) <= WIDTH


def test_info_counts_the_cpus_of_the_process(monkeypatch, capsys):
    """As under taskset, which leaves a process some of the machine's CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_cpus"] == 3


def test_info(capsys):
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    for word in ("onedsl", "onednn: threading", "cpu: name", "num threads", "caches: 1 Data"):
        assert any(line.startswith(word) for line in lines), word
    for row in ("f32/f32", "bf16/f32", "bf16/bf16", "f16/f32"):
        assert shown.count(f"\n{row} ") == 2
    assert "rank 6 and more" in shown
    assert "diff src alone" in shown
    notes = re.findall(r"^\[(\d+)\] (.*)", shown, re.MULTILINE)
    assert [int(number) for number, _ in notes] == list(range(1, len(notes) + 1))
    assert len({text for _, text in notes}) == len(notes) <= 6


# ---- export and run ----


@pytest.fixture
def graph_file(tmp_path):
    """A file like benchdnn's bnorm_bwd.json: NCX, f32, epsilon 0.0625."""
    op = onedsl.BatchNormTrainingBackward(0.0625, "NCX")
    file = tmp_path / "graph.json"
    file.write_text(op.graph(onedsl.TensorSpec((2, 6, 5, 5))).to_json())
    return file


def test_export_equals_the_graph(tmp_path, capsys):
    types = ["--dtype", "bf16", "--stats-dtype", "bf16", "--format", "NCX", "--no-gamma"]
    command = ["export", "2x3x4x5", *types, "--epsilon", "1e-3"]
    op = onedsl.BatchNormTrainingBackward(1e-3, "NCX")
    spec = onedsl.TensorSpec((2, 3, 4, 5), "bf16")
    expected = op.graph(spec, stats_dtype="bf16", gamma=False).to_json()
    assert main(command) == 0
    assert capsys.readouterr().out == expected
    file = tmp_path / "graph.json"
    assert main([*command, "-o", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert file.read_text() == expected


def rows_of(shown):
    """Return the rows in the output of ``onedsl run``, without the time."""
    return re.findall(r"^(\w+) +(\S+) +(\S+) +(PASS|FAIL)", shown, re.MULTILINE)


@helpers.types
def test_run_verifies_exported_graphs(dtype, stats, tmp_path, capsys):
    file = str(tmp_path / "graph.json")
    options = ("--dtype", dtype, "--stats-dtype", stats, "--format", "NCX")
    assert main(["export", "3x8x5x7", *options, "-o", file]) == 0
    is_right = helpers.runs("onednn", dtype) and stats == "f32"
    assert main(["run", file, "--seconds", "0.001"]) == (0 if is_right else 3)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == ("PASS" if is_right else "UNSUPPORTED")
    assert ("With --repair" in shown) == (helpers.runs("onednn", dtype) and not is_right)
    rows = rows_of(shown)
    assert [row[0] for row in rows] == ["diff_src", "diff_gamma", "diff_beta"] * is_right
    for name, error, allowed, _ in rows:
        tolerances = testing.TOLERANCES if name == "diff_src" else testing.SUM_TOLERANCES
        count = 3 * 5 * 7  # it sums in f32
        tolerance = tolerances[dtype if name == "diff_src" else stats]
        tolerance += testing.onednn_sum_error(count)
        assert float(allowed) == pytest.approx(tolerance, rel=0.05)
        assert float(error) <= tolerance


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_run_reports_failures(factor, graph_file, capsys, monkeypatch):
    def wrong(*arguments, **options):
        correct = testing.batch_norm_backward(*arguments, **options)
        return correct._replace(diff_gamma=correct.diff_gamma * factor)

    monkeypatch.setattr(run, "batch_norm_backward", wrong)
    assert main(["run", str(graph_file), "--seconds", "0.01"]) == 1
    shown = capsys.readouterr().out
    assert {row[0]: row[-1] for row in rows_of(shown)} == {
        "diff_src": "PASS", "diff_gamma": "FAIL", "diff_beta": "PASS",
    }  # fmt: skip
    assert shown.splitlines()[-1] == "FAIL"


@pytest.mark.parametrize("epsilon", [0, -1e-5, 1e-60])
def test_run_without_a_reference(epsilon, graph_file, capsys):
    """Regression: the error came after the first line of results, and named no attribute."""
    graph_file.write_text(graph_file.read_text().replace("0.0625", str(epsilon)))
    assert main(["run", str(graph_file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    message = "graph.json: graph[0].attrs.epsilon must be positive and finite in float32, got "
    assert message in captured.err


@pytest.mark.parametrize("command", ["run", "explain"])
def test_noise_is_reported(command, graph_file, monkeypatch, capsys):
    monkeypatch.setattr(timing.NoiseMonitor, "is_noisy", lambda *_: True)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    argument = str(graph_file) if command == "run" else "4x8x8x16"
    assert main([command, argument, "--seconds", "0.01"]) == 0
    captured = capsys.readouterr()
    shown = " ".join((captured.out + captured.err).split())
    assert "OpenMP's threads wait for each other actively" in shown
    assert "OMP_WAIT_POLICY=passive" in shown


# Prints the exit status after each command's output.
COMMANDS_ON_AVX2 = """
from onedsl.cli import main
for options in (["run", "graph.json"], ["run", "graph.json", "--repair"], ["explain", "4x8"]):
    more = ["--dtype", "bf16", "--backend", "onednn"] if options[0] == "explain" else []
    print(f"status {main([*options, *more])}")
"""


def test_unsupported_by_onednn_has_status_3(tmp_path):
    """Without usage text, also with --repair."""
    op = onedsl.BatchNormTrainingBackward(1e-5)
    graph = op.graph(onedsl.TensorSpec((2, 5, 5, 6), "bf16"))
    (tmp_path / "graph.json").write_text(graph.to_json())
    child = helpers.run_child(COMMANDS_ON_AVX2, environment=helpers.ON_AVX2, cwd=tmp_path)
    *texts, end = re.sub(r"\s+", " ", child.stdout).split("status 3")
    for text in texts:
        assert "no bf16 kernel for CPUs without avx512_core" in text
        assert "--repair" not in text, "no repair helps"
    assert [text.endswith(" UNSUPPORTED ") for text in texts] == [True, True, False]
    assert "runs nothing: oneDNN " in texts[2]
    assert end == " "
    assert "Usage" not in child.stderr


def graphs_of_several_ops(data_format):
    shape = (2, 5, 6, 16) if data_format == "NXC" else (2, 16, 5, 6)
    spec = onedsl.TensorSpec(shape)
    forward = onedsl.BatchNormActForwardTraining(
        1e-5, 0.75, data_format, clip=2.0, activation="relu"
    )
    yield forward.graph(spec, residual=True)
    yield onedsl.BatchNormActForwardTraining(1e-5, None, data_format, activation="relu").graph(spec)
    yield onedsl.BatchNormActTrainingBackward(1e-5, data_format, activation="relu").graph(spec)
    yield onedsl.BatchNormActTrainingBackward(1e-5, data_format, clip=2.0, activation="relu").graph(
        spec
    )
    yield onedsl.BatchNormForwardTraining(1e-5, 0.75, data_format).graph(spec)
    for attributes in (
        {"activation": "gelu"},
        {"activation": "hardswish"},
        {"activation": "leaky_relu", "negative_slope": 0.2},
    ):
        act = onedsl.BatchNormActForwardTraining(1e-5, 0.75, data_format, **attributes)
        yield act.graph(spec, residual=True)
    mask, gradient = (
        onedsl.BatchNormActTrainingBackward(1e-5, data_format, activation="relu").graph(spec).ops
    )
    for kind in ("GELUBackward", "HardSwishBackward"):
        yield Graph((dataclasses.replace(mask, name=kind, kind=kind, attrs={}), gradient))


@pytest.mark.parametrize(("data_format", "repair"), [("NXC", []), ("NCX", ["--repair"])])
def test_run_of_several_ops(data_format, repair, graph_file, capsys):
    for graph in graphs_of_several_ops(data_format):
        graph_file.write_text(graph.to_json())
        assert main(["run", str(graph_file), "--seconds", "0.001", *repair]) == 0
        rows = rows_of(capsys.readouterr().out)
        assert [row[0] for row in rows] == list(graph.outputs)
        # Regression: that of NXC, if the first op has no data_format.
        sums = math.prod(graph.ops[0].inputs[0].shape) / 16
        tolerance = testing.TOLERANCES["f32"] + testing.onednn_sum_error(sums)
        tensor = [len(t.shape) for t in graph.outputs.values()].index(4)
        assert rows[tensor][2] == f"{tolerance * len(graph.ops):.1e}"


def test_ports_may_share_a_tensor(graph_file):
    (op,) = Graph.from_json(graph_file.read_text()).ops
    tensors = {name: tensor for _, name, tensor in op.ports}
    for kept, other in (("src", "diff_dst"), ("mean", "variance"), ("variance", "gamma")):
        shared = Graph((helpers.with_tensors(op, **{other: {"id": tensors[kept].id}}),))
        assert set(run.random_inputs(shared.inputs)) == set(Graph((op,)).inputs) - {other}
        graph_file.write_text(shared.to_json())
        assert main(["run", str(graph_file), "--seconds", "0.001"]) == 0
        assert main(["run", str(graph_file), "--seconds", "0.001", "--repair"]) == 0


def test_run_repairs(tmp_path, capsys):
    file = str(tmp_path / "graph.json")
    assert main(["export", "6x5x16", "--no-gamma", "-o", file]) == 0
    assert main(["run", file]) == 3
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "std::bad_alloc" in shown
    assert shown.endswith("oneDNN computes UNSUPPORTED ")
    assert main(["run", file, "--repair", "--seconds", "0.01"]) == 0
    shown = capsys.readouterr().out
    assert "changed: gamma = 1 added\n" in shown
    assert "changed: reshaped to " in shown


@pytest.mark.parametrize(("outputs", "status"), [("all", 0), ("diff_src", 1)])
def test_run_shows_known_defects(outputs, status, tmp_path, capsys):
    """oneDNN computes another gradient if diff_src is the only output."""
    file = str(tmp_path / "graph.json")
    assert main(["export", "4x5x6x16", "--outputs", outputs, "-o", file]) == 0
    assert main(["run", file, "--seconds", "0.01"]) == status
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == ("FAIL" if status else "PASS")
    assert ("With --repair" in shown) == bool(status)
    assert len(rows_of(shown)) == (1 if status else 3)
    assert ("known defect: if diff_src is the only output" in shown) == bool(status)
    assert main(["run", file, "--repair", "--seconds", "0.01"]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "must be a JSON text file, got binary data"),
        (b'{"graph": []}', "graph must have at least one op, got 0"),
        (b'{"graph": ' + b"[" * 970 + b"]" * 970 + b"}", "graph[0] must be|too many levels"),
        (b'{"graph": ' + b"[" * 100_000, "it has too many levels"),
        (b" " * 2_000_000 + b"{}", "must have at most 1 MiB"),
    ],
)
def test_run_rejects_invalid_files(content, message, tmp_path, capsys):
    file = tmp_path / "broken.json"
    file.write_bytes(content)
    assert main(["run", str(file)]) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert any(part in error for part in message.split("|"))
    assert "broken.json" in error


@pytest.mark.parametrize(
    ("shape", "strides", "message"),
    [
        ([1, 1, 1, 16], [2**62, 16, 16, 1], ""),
        ([2, 1, 1, 16], [2**62, 16, 16, 1], "2^31 elements"),
        ([2, 1, 1, 2**40], [2**40, 2**40, 2**40, 1], "2^31 elements"),
        ([1] * 70 + [16], [1] * 71, "dimension"),
    ],
)
def test_run_of_extreme_sizes_and_strides(shape, strides, message, graph_file, capsys):
    document = json.loads(graph_file.read_text())
    (op,) = document["graph"]
    op["attrs"]["data_format"]["value"] = "NXC"
    for tensor in (*op["inputs"][:2], op["outputs"][0]):
        tensor.update(shape=shape, stride=strides)
    for tensor in (*op["inputs"][2:], *op["outputs"][1:]):
        tensor.update(shape=shape[-1:])
    graph_file.write_text(json.dumps(document))
    status = {"": 0, "dimension": 2}.get(message, 3)
    assert main(["run", str(graph_file), "--seconds", "0.01"]) == status
    captured = capsys.readouterr()
    assert message in captured.out + captured.err


def test_run_uses_the_strides_of_the_graph(graph_file):
    """One graph is channels-last in memory, another has gaps between its rows."""
    document = json.loads(graph_file.read_text())
    for strides in ((150, 1, 30, 6), (1000, 100, 20, 1)):
        for tensor in document["graph"][0]["inputs"][:2]:
            tensor["stride"] = list(strides)
        graph_file.write_text(json.dumps(document))
        inputs = run.random_inputs(Graph.from_json(graph_file.read_text()).inputs)
        assert inputs["src"].strides == tuple(4 * step for step in strides)
        assert main(["run", str(graph_file), "--seconds", "0.01"]) == 0


# ---- explain ----


def lines_of(shown):
    """Return the lines in the output of ``onedsl explain``, as a dict from label to text."""
    return dict(re.findall(r"^(\w+(?: \w+)?)  +(\S.*?) *$", shown, re.MULTILINE))


@helpers.formats
def test_explain_native(data_format, capsys):
    assert main(["explain", "4x16x8x16", "--format", data_format, "--seconds", "0.01"]) == 0
    found = lines_of(capsys.readouterr().out)
    sizes = "512 x 16 x 1" if data_format == "NXC" else "4 x 16 x 128"
    assert found["geometry"].startswith(sizes)
    assert found["runs"].startswith(f"onedsl two-pass kernel, {_core.native_isa()}")
    assert found["threads"].startswith(f"1 of {_core.max_threads()}, busy ")
    assert found["summation"].startswith("rows" if data_format == "NXC" else "planes")
    assert (
        found["memory traffic"]
        == {
            "NXC": "0.16 MiB (5 tensors): reads src and diff_dst twice, writes diff_src",
            "NCX": "0.09 MiB (3 tensors): reads src and diff_dst, writes diff_src",
        }[data_format]
    )
    assert found["stores"] == "ordinary"
    assert found["floor"].startswith("unknown below 1 MiB")
    assert "bandwidth" not in found


def test_explain_shows_the_floor(capsys):
    assert main(["explain", "4x64x64x64", "--seconds", "0.01"]) == 0
    found = lines_of(capsys.readouterr().out)
    assert re.match(r"[\d,.]+ GB/s \(triad on such tensors, [a-z-]+ stores", found["bandwidth"])
    floor, time = (
        float(re.match(r"([\d,.]+) µs", found[key])[1].replace(",", ""))
        for key in ("floor", "time")
    )
    assert int(re.search(r"(\d+)% of the time", found["floor"])[1]) == pytest.approx(
        100 * floor / time, rel=0.2, abs=2
    )


def test_explain_times_the_call_that_it_shows(monkeypatch):
    cls, used = onedsl.BatchNormTrainingBackward, []
    call = cls.__call__

    def record(self, **arguments):
        used.append((arguments["src"].dtype.name, arguments["mean"].dtype.name))
        return call(self, **arguments)

    monkeypatch.setattr(cls, "__call__", record)
    options = ["--dtype", "bf16", "--stats-dtype", "bf16", "--seconds", "0.01"]
    assert main(["explain", "4x4x4x16", *options]) == 0
    assert used.count(("bfloat16", "bfloat16")) > 2
    assert set(used) <= {("bfloat16", "bfloat16"), ("float32", "float32")}  # f32: the warm-up


@pytest.mark.parametrize("shape", ["4x8x16", "1x" * 10 + "4x8x16"])
def test_explain_onednn(shape, capfd):
    """Regression: a traceback for more than 12 axes."""
    assert main(["explain", shape, "--backend", "onednn", "--seconds", "0.01"]) == 0
    shown = capfd.readouterr().out
    found = lines_of(shown)
    assert found["geometry"].startswith("32 x 16 x 1")
    assert found["runs"].startswith("<onedsl.graph.CompiledGraph: partition of op 0:")
    assert "changed by onedsl: reshaped to " in shown
    assert "partition of op 0: BatchNormTrainingBackward, supported" in shown
    assert "onednn_verbose" not in shown


PRESETS = "must be one of small, resnet50, mobilenetv2, transformer, images, or a shape"
LIMITED = "is not in the range"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run nowhere.json", "does not exist"),
        ("run", "Missing argument"),
        ("run graph.json --seconds=inf", f"inf {LIMITED} 0<x<=3600"),
        ("run graph.json --as-written", "No such option"),
        ("explain 4x8 --seconds nan", "'nan' is not a number"),
        ("explain 32", "must be at least two sizes such as 32x56x56x64, got '32'"),
        ("explain 3x-4", "two sizes such as 32x56x56x64, got '3x-4'"),
        ("explain 2" + 64 * "x1", "must have at most 64 dimensions"),
        ("explain 2x3 --dtype f16 --stats-dtype bf16", "must be f32 where src"),
        ("explain 99999999999x99999999999", "must have at most"),
        ("explain 99999999x99999999", "Unable to allocate"),
        (f"explain 0x{2**70}", "shape must have at most"),
        ("export 2x3 --epsilon 1e-60", "finite in float32, got 1e-60"),
        ("export 2x3 -o nowhere/graph.json", "must be a writable file in an existing"),
        ("draw", "No such command 'draw'"),
        ("info --fast", "No such option"),
        ("bench --seconds -1", f"-1.0 {LIMITED} 0<x<=3600"),
        ("bench --operation sideways", "'sideways' is not one of 'backward', 'forward'"),
        ("bench --json folder.json", "must be a writable file"),
        ("bench vgg", PRESETS),
        ("bench 32x0", PRESETS),
    ],
)
def test_invalid_arguments_have_status_2(command, message, graph_file, monkeypatch, capsys):
    """Nothing is printed or measured."""
    monkeypatch.chdir(graph_file.parent)
    graph_file.with_name("folder.json").mkdir()
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("something was measured"))
    assert main(command.split()) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.out == ""


# ---- The program ----


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"onedsl, version {onedsl.__version__}\n"
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("info", "run", "export", "explain", "bench"):
        assert re.search(rf"^  {command} +[A-Z].*\.$", shown, re.MULTILINE), command
        assert main([command, "--help"]) == 0


def test_shell_completion():
    environment = {
        "_ONEDSL_COMPLETE": "bash_complete",
        "COMP_WORDS": "onedsl ex",
        "COMP_CWORD": "1",
    }
    child = run_command(environment=environment)
    assert child.stdout.split() == ["plain,explain", "plain,export"]


@pytest.mark.parametrize("command", ["info", "export 4x8"])  # printed in parts, and at the end
def test_a_closed_pipe_is_no_error(command):
    """Such as that of `head`, which reads a few lines."""
    with helpers.closed_pipe() as pipe:
        child = run_command(*command.split(), **pipe)
    assert child.stderr == ""


def test_a_closed_pipe_of_an_error_keeps_the_exit_status():
    with helpers.closed_pipe() as pipe:
        run_command("nonsense", **pipe | {"stderr": pipe["stdout"]}, status=2)


def test_no_space_for_the_output_is_an_error():
    child = run_command_in_shell("info", ">/dev/full", status=2)
    assert re.fullmatch(r"Error: .*No space left on device\n", child.stderr)
    run_command_in_shell("nonsense", "2>/dev/full", status=2)


def test_an_error_of_several_lines_is_printed_in_lines(monkeypatch, capsys):
    """Regression: such as what to install if oneDNN is absent. The lines ended with backslash n."""

    def fail(**options):
        raise ImportError(f"first\n  second {ATTACK}third")

    monkeypatch.setattr(cli.commands.commands["info"], "callback", fail)
    assert main(["info"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [lines[0], *lines[2:]] == ["Error: first", "third"]
    assert lines[1].startswith("  second \\x1b]0;title")


def test_an_interrupt_is_the_shells_exit_status(monkeypatch):
    def interrupt(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.commands.commands["info"], "callback", interrupt)
    assert main(["info"]) == 130


def test_other_exceptions_keep_their_traceback(graph_file, monkeypatch):
    """They are bugs of onedsl, not errors in what the user passed."""

    def broken(*_, **__):
        raise TypeError("a bug")

    for module, name, arguments in (
        ("run", "time_calls", ["run", str(graph_file)]),
        ("explain", "measure", ["explain", "4x8"]),
        ("export", "Path", ["export", "4x8", "-o", "file"]),
        ("info", "capabilities", ["info"]),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(importlib.import_module(f"onedsl.cli.{module}"), name, broken)
            patched.setattr(importlib.import_module("onedsl.cli.options"), "Path", broken)
            with pytest.raises(TypeError, match="a bug"):
                main(arguments)


@pytest.mark.parametrize("command", ["info", "--help"])  # a command's output, and click's
def test_a_closed_stdout_is_an_error(command):
    child = run_command_in_shell(command, ">&-", status=2)
    assert child.stderr.startswith("Error: stdout must be open")


def test_other_streams_may_be_closed():
    assert json.loads(run_command_in_shell("info --json", "2>&- <&-").stdout)


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


# Names and values of a file in each, tables, files and fractions in the strictest one.
@pytest.mark.parametrize(
    ("encoding", "environment", "name"),
    [
        ("ascii", {"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"}, "\\u4e2d.json"),
        ("ascii", C_LOCALE, "\\udce4\\udcb8\\udcad.json"),
        ("utf-8", {"PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8"}, "\u4e2d.json"),
    ],
    ids=["ascii", "C", "utf-8"],
)
def test_terminals_without_utf8(encoding, environment, name, graph_file, tmp_path):
    """Regression: after the measurement, UnicodeEncodeError instead of tables and files."""
    file = graph_file.rename(tmp_path / "\u4e2d.json")
    commands = [f"run {file}"]
    if environment is C_LOCALE:
        commands += ["bench small --dtype f32 --json figures.json", "explain 4x8x8x16"]
    code = "import sys; from onedsl.cli import main\nfor command in sys.argv[1:]: "
    code += "print(main([*command.split(), '--seconds', '0.01']))"
    child = helpers.run_child(
        *(code, tuple(commands)),
        **{"cwd": tmp_path, "text": False},
        environment=environment | {"OMP_NUM_THREADS": "1"},
    )
    shown = child.stdout.decode(encoding)
    assert shown.startswith(name)
    assert b"Error" not in child.stderr
    outputs = re.split(r"^0\n", shown, flags=re.MULTILINE)
    assert len(outputs) == len(commands) + 1
    for output in outputs[:-1]:
        # The tables of `bench` have "us" in a line of its own.
        assert ("us" if encoding == "ascii" else "\N{MICRO SIGN}s") in re.split(r"[\s(),]+", output)
    if environment is C_LOCALE:
        assert json.loads((tmp_path / "figures.json").read_text())["rows"]


def run_command_in_shell(command, redirection, status=0):
    # With buffered streams, as users have them: some environments of tests set the variable.
    line = f"PYTHONUNBUFFERED= {sys.executable} -m onedsl {command} {redirection}"
    return helpers.run_program("sh", "-c", line, cwd="/", status=status)


ATTACK = "\x1b]0;title\x07\x7f\x9b31m\u202e\n"  # a terminal's commands, and reversed text
SURROGATE = "x\udfff"


def set_text(document, path, text):
    """Set a text of a graph's document, or a key of the attributes if `path` ends there."""
    *parents, last = path
    for key in parents:
        document = document[key]
    if last == "attrs":
        document[last][text] = {"type": "f32", "value": 1}
    else:
        document[last] = text


@pytest.mark.parametrize(
    "path",
    [
        ("engine_kind",),
        ("graph", 0, "kind"),
        ("graph", 0, "name"),
        ("graph", 0, "attrs", "epsilon", "type"),
        ("graph", 0, "attrs", "data_format", "value"),
        ("graph", 0, "attrs"),
        ("graph", 0, "inputs", 0, "dtype"),
        ("graph", 0, "inputs", 0, "layout_type"),
        ("graph", 0, "outputs", 0, "property_type"),
    ],
    ids=lambda path: path[-1],
)
@pytest.mark.parametrize("text", [ATTACK, SURROGATE], ids=["control", "surrogate"])
def test_text_of_a_file_is_escaped(path, text, graph_file, capsys):
    """Control characters of graphs and of file names do not reach the terminal.

    UTF-8, in which oneDNN expects names, cannot express surrogates.
    """
    document = json.loads(graph_file.read_text())
    set_text(document, path, text)
    file = graph_file.with_name(f"graph{ATTACK}\udcff.json")
    file.write_text(json.dumps(document))
    is_valid = text == ATTACK and path[-1] == "name"
    assert main(["run", str(file), "--seconds", "0.01"]) == (0 if is_valid else 2)
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert shown.replace("\n", "").isprintable()
    assert "x1b]0;title" in shown
    assert "\\udcff.json" in shown
    if text == SURROGATE:
        assert f"{path[-1]} must be free of surrogates" in " ".join(shown.split())
    assert main(["run", str(file) + ATTACK]) == 2
    assert capsys.readouterr().err.replace("\n", "").isprintable()


def test_text_of_the_environment_is_escaped(capsys, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", f"{ATTACK}[red]:smile:")
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "[red]:smile:" in shown
