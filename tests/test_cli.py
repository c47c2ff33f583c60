"""The commands of ``onedsl``: their output and their exit status. No law has text.

Commands run in this process, except where the process itself is tested: its streams and locale,
and the variables that are read once.
"""

import dataclasses
import importlib
import json
import os
import re
import sys

import helpers
import pytest

import onedsl
from onedsl import _core, bench, testing
from onedsl.bench import timing
from onedsl.cli import main
from onedsl.cli.output import WIDTH
from onedsl.graph import Graph
from onedsl.runtime import onednn

# As benchdnn's bnorm_bwd.json.
OP = onedsl.BatchNormTrainingBackward(0.0625, "NCX")
GRAPH = OP.graph(onedsl.TensorSpec((2, 6, 5, 5))).to_json()


ATTACK = "\x1b]0;title\x07\x7f\x9b31m\u202e\n"  # a terminal's commands, and reversed text
RUN = importlib.import_module("onedsl.cli.run")  # the package has the command of this name


@pytest.fixture
def graph_file(tmp_path):
    file = tmp_path / "graph.json"
    file.write_text(GRAPH)
    return file


def run(file, *options):
    return main(["run", str(file), "--seconds", "0.001", *options])


def rows_of(shown):
    """Return the rows in the output of ``onedsl run``, without the time."""
    return re.findall(r"^(\w+) +(\S+) +(\S+) +(PASS|FAIL)", shown, re.MULTILINE)


def in_one_line(text):
    return " ".join(text.split())


# ---- info ----


def test_info_as_json(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})  # as under taskset
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["onedsl"] == onedsl.__version__
    assert found["onednn"]["version"] == ".".join(map(str, onednn.version()))
    assert re.fullmatch(r"[0-9a-f]{8,40}|N/A", found["onednn"]["hash"])
    assert re.search(r"gomp|omp|tbb", found["onednn"]["threading_library"])
    assert found["cpu"]["onednn_isa"] == onednn.cpu_isa()
    assert found["cpu"]["native_isa"] == _core.native_isa()
    assert "sse4_1" in found["cpu"]["instruction_sets"]
    assert found["num_cpus"] == 3
    assert found["last_cache_bytes"] > 0
    expected = [s._asdict() for s in onedsl.capabilities().support]
    for row, support in zip(found["support"], expected, strict=True):
        added = row.pop("onedsl_adds")
        assert row == support
        assert bool(added) != row["onednn"], "onedsl runs what oneDNN does not support"
        runs_in_onednn = onedsl.capabilities().runs_in_onednn(row["dtype"])
        assert row["onednn"] or runs_in_onednn == (added != "uses its own kernels")


def test_info(monkeypatch, capsys):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", f"{ATTACK}[red]:smile:")
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "[red]:smile:" in shown
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


@pytest.mark.parametrize(
    ("columns", "command"),
    [("80", "info"), ("80", "explain 4x8x8x16 --seconds 0.01")]
    + [(text, "info") for text in ("0", "-1", "x", "")],
)
def test_output_fits_a_terminal(columns, command, monkeypatch, capsys):
    """Regression: nothing was printed without a width."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(command.split()) == 0
    width = 80 if columns == "80" else WIDTH
    assert width - 10 < max(map(len, capsys.readouterr().out.splitlines())) <= width


COMMANDS = """
from onedsl.cli import main
explain = "explain 4x8 --dtype bf16 --backend onednn"
for command in ("info --json", "run graph.json", "run graph.json --repair", explain):
    print("status", main(command.split()))
"""


def test_limits_of_the_environment(tmp_path):
    """What oneDNN does not support has status 3, without usage text, also with --repair."""
    graph = OP.graph(onedsl.TensorSpec((2, 5, 5, 6), "bf16"))
    (tmp_path / "graph.json").write_text(graph.to_json())
    limits = helpers.ON_AVX2 | {"OMP_NUM_THREADS": "1"}
    child = helpers.run_child(COMMANDS, environment=limits, cwd=tmp_path)
    info, *texts, end = re.split(r"status \d\n", child.stdout)
    found = json.loads(info)
    assert found["environment"].items() >= limits.items()
    assert found["cpu"]["onednn_isa"] == "avx2"
    assert found["cpu"]["best_native_isa"] == _core.best_native_isa()
    assert found["num_threads"] == 1
    for row in found["support"]:
        assert row["dtype"] == "f32" or (row["message"] and not row["onednn"])
    assert re.findall(r"status \d", child.stdout) == ["status 0"] + 3 * ["status 3"]
    for text in map(in_one_line, texts):
        assert "no bf16 kernel for CPUs without avx512_core" in text
        assert "--repair" not in text, "no repair helps"
    assert [text.endswith("\nUNSUPPORTED\n") for text in texts] == [True, True, False]
    assert "runs nothing: oneDNN " in in_one_line(texts[2])
    assert (end, "Usage" in child.stderr) == ("", False)


# ---- export and run ----


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


@helpers.types
def test_run_verifies_exported_graphs(dtype, stats, tmp_path, capsys):
    file = str(tmp_path / "graph.json")
    options = ("--dtype", dtype, "--stats-dtype", stats, "--format", "NCX")
    assert main(["export", "3x8x5x7", *options, "-o", file]) == 0
    is_right = helpers.runs("onednn", dtype) and stats == "f32"
    assert run(file) == (0 if is_right else 3)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == ("PASS" if is_right else "UNSUPPORTED")
    assert ("With --repair" in shown) == (helpers.runs("onednn", dtype) and not is_right)
    assert [row[0] for row in rows_of(shown)] == ["diff_src", "diff_gamma", "diff_beta"] * is_right


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_run_reports_failures(factor, graph_file, capsys, monkeypatch):
    def wrong(*arguments, **options):
        correct = testing.batch_norm_backward(*arguments, **options)
        return correct._replace(diff_gamma=correct.diff_gamma * factor)

    monkeypatch.setattr(RUN, "batch_norm_backward", wrong)
    assert run(graph_file) == 1
    shown = capsys.readouterr().out
    assert [(row[0], row[-1]) for row in rows_of(shown)] == [
        ("diff_src", "PASS"), ("diff_gamma", "FAIL"), ("diff_beta", "PASS"),
    ]  # fmt: skip
    assert shown.splitlines()[-1] == "FAIL"


@pytest.mark.parametrize("command", ["run graph.json", "explain 4x8x8x16"])
def test_noise_is_reported(command, graph_file, monkeypatch, capsys):
    monkeypatch.chdir(graph_file.parent)
    monkeypatch.setattr(timing.NoiseMonitor, "is_noisy", lambda *_: True)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert main([*command.split(), "--seconds", "0.01"]) == 0
    shown = in_one_line("".join(capsys.readouterr()))
    assert "OpenMP's threads wait for each other actively" in shown
    assert "OMP_WAIT_POLICY=passive" in shown


def graphs_of_several_ops(data_format):
    spec = onedsl.TensorSpec((2, 5, 6, 16) if data_format == "NXC" else (2, 16, 5, 6))
    yield onedsl.BatchNormForwardTraining(1e-5, 0.75, data_format).graph(spec)
    forward, backward = onedsl.BatchNormActForwardTraining, onedsl.BatchNormActTrainingBackward
    yield forward(1e-5, None, data_format, activation="relu").graph(spec)
    for attributes in (
        {"activation": "relu", "clip": 2.0},
        {"activation": "gelu"},
        {"activation": "hardswish"},
        {"activation": "leaky_relu", "negative_slope": 0.2},
    ):
        yield forward(1e-5, 0.75, data_format, **attributes).graph(spec, residual=True)
    for clip in 2.0, None:
        gradient = backward(1e-5, data_format, clip=clip, activation="relu").graph(spec)
        yield gradient
    mask, batch_norm = gradient.ops
    for kind in ("GELUBackward", "HardSwishBackward"):
        yield Graph((dataclasses.replace(mask, name=kind, kind=kind, attrs={}), batch_norm))


@pytest.mark.parametrize(("data_format", "repair"), [("NXC", []), ("NCX", ["--repair"])])
def test_run_of_several_ops(data_format, repair, graph_file, capsys):
    for graph in graphs_of_several_ops(data_format):
        graph_file.write_text(graph.to_json())
        assert run(graph_file, *repair) == 0
        # Regression: the error of the sums was that of NXC, if the first op has no data_format.
        sum_error, rows = testing.onednn_sum_error(2 * 5 * 6), rows_of(capsys.readouterr().out)
        for row, (name, tensor) in zip(rows, graph.outputs.items(), strict=True):
            tolerances = testing.SUM_TOLERANCES if tensor.shape == (16,) else testing.TOLERANCES
            allowed = (tolerances["f32"] + sum_error) * len(graph.ops)
            assert (row[0], row[2]) == (name, f"{allowed:.1e}")
            assert float(row[1]) <= allowed


@pytest.mark.parametrize(
    ("kept", "other"), [("src", "diff_dst"), ("mean", "variance"), ("variance", "gamma")]
)
def test_run_of_ports_that_share_a_tensor(kept, other, graph_file):
    graph = Graph.from_json(GRAPH)
    shared = helpers.with_tensors(graph.ops[0], **{other: {"id": graph.inputs[kept].id}})
    assert {*Graph((shared,)).inputs} == {*graph.inputs} - {other}
    graph_file.write_text(Graph((shared,)).to_json())
    assert run(graph_file) == run(graph_file, "--repair") == 0


@pytest.mark.parametrize(
    ("exported", "status", "words", "change"),
    [
        ("4x5x6x16", 0, "PASS", "reshaped to "),
        ("4x5x6x16 --outputs diff_src", 1, "known defect: if diff_src is the only", "dropped"),
        ("6x5x16 --no-gamma", 3, "std::bad_alloc", "changed: gamma = 1 added "),
    ],
)
def test_run_repairs(exported, status, words, change, tmp_path, capsys):
    file = str(tmp_path / "graph.json")
    assert main(["export", *exported.split(), "-o", file]) == 0
    assert run(file) == status
    shown = in_one_line(capsys.readouterr().out)
    assert words in shown
    assert ("known defect" in shown) == (status == 1)
    assert shown.endswith({0: "PASS", 1: "FAIL", 3: "UNSUPPORTED"}[status])
    assert ("With --repair, the graph is changed to one that oneDNN computes" in shown) == bool(
        status
    )
    assert run(file, "--repair") == 0
    assert change in in_one_line(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "must be a JSON text file, got binary data"),
        (b'{"graph": []}', "graph must have at least one op, got 0"),
        (b'{"graph": ' + b"[" * 970 + b"]" * 970 + b"}", r"graph\[0\] must be|too many levels"),
        (b'{"graph": ' + b"[" * 100_000, "it has too many levels"),
        (b" " * 2_000_000 + b"{}", "must have at most 1 MiB"),
        # Regression: the error came after the first line of results, and named no attribute.
        *(
            (
                GRAPH.replace("0.0625", epsilon).encode(),
                r"graph\[0\].attrs.epsilon must be positive and finite in float32, got ",
            )
            for epsilon in ("0", "-1e-5", "1e-60")
        ),
    ],
)
def test_run_rejects_invalid_files(content, message, graph_file, capsys):
    graph_file.write_bytes(content)
    assert run(graph_file) == 2
    shown = capsys.readouterr()
    assert re.search(f"graph.json: .*({message})", in_one_line(shown.err))
    assert shown.out == ""


@pytest.mark.parametrize(
    ("shape", "strides", "status", "message"),
    [
        ([1, 1, 1, 16], [2**62, 16, 16, 1], 0, ""),
        ([2, 1, 1, 16], [2**62, 16, 16, 1], 3, "2^31 elements"),
        ([2, 1, 1, 2**40], [2**40, 2**40, 2**40, 1], 3, "2^31 elements"),
        ([1] * 70 + [16], [1] * 71, 2, "dimension"),
        ([2, 5, 5, 6], [150, 1, 5, 25], 0, ""),  # another order
        ([2, 5, 5, 6], [1000, 100, 20, 1], 0, ""),  # gaps
    ],
)
def test_run_uses_the_sizes_and_strides_of_the_graph(
    shape, strides, status, message, graph_file, monkeypatch, capsys
):
    document = json.loads(GRAPH)
    (op,) = document["graph"]
    op["attrs"]["data_format"]["value"] = "NXC"
    for tensor in (*op["inputs"][:2], op["outputs"][0]):
        tensor.update(shape=shape, stride=strides)
    for tensor in (*op["inputs"][2:], *op["outputs"][1:]):
        tensor.update(shape=shape[-1:])
    graph_file.write_text(json.dumps(document))
    used, reference = [], RUN.reference
    monkeypatch.setattr(RUN, "reference", lambda *a: used.append(a[1]["src"]) or reference(*a))
    assert run(graph_file) == status
    assert message in "".join(capsys.readouterr())
    assert len(used) == (status == 0)
    for src in used:
        assert src.shape[0] == 1 or src.strides == tuple(4 * step for step in strides)


# ---- explain ----


def lines_of(shown):
    """Return the lines in the output of ``onedsl explain``, as a dict from label to text."""
    return dict(re.findall(r"^(\w+(?: \w+)?)  +(\S.*?) *$", shown, re.MULTILINE))


@pytest.mark.parametrize(
    ("data_format", "geometry", "summation", "traffic"),
    [
        ("NXC", "512 x 16 x 1", "rows", "0.16 MiB (5 tensors): reads src and diff_dst twice"),
        ("NCX", "4 x 16 x 128", "planes", "0.09 MiB (3 tensors): reads src and diff_dst"),
    ],
)
def test_explain_native(data_format, geometry, summation, traffic, capsys):
    assert main(["explain", "4x16x8x16", "--format", data_format, "--seconds", "0.01"]) == 0
    found = lines_of(capsys.readouterr().out)
    assert found["geometry"].startswith(geometry)
    assert found["runs"].startswith(f"onedsl two-pass kernel, {_core.native_isa()}")
    assert found["threads"].startswith(f"1 of {_core.max_threads()}, busy ")
    assert found["summation"].startswith(summation)
    assert found["memory traffic"] == f"{traffic}, writes diff_src"
    assert found["stores"] == "ordinary"
    assert found["floor"].startswith("unknown below 1 MiB")
    assert "bandwidth" not in found


def test_explain_shows_the_floor(capsys):
    assert main(["explain", "4x64x64x64", "--seconds", "0.01"]) == 0
    found = lines_of(capsys.readouterr().out)
    assert re.match(r"[\d,.]+ GB/s \(triad on such tensors, [a-z-]+ stores", found["bandwidth"])
    floor, time = (float(found[key].split()[0].replace(",", "")) for key in ("floor", "time"))
    share = int(re.search(r"(\d+)% of the time", found["floor"])[1])
    assert share == pytest.approx(100 * floor / time, rel=0.2, abs=2)


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


# ---- The program ----

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
    assert message in in_one_line(captured.err)
    assert captured.out == ""


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"onedsl, version {onedsl.__version__}\n"
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("info", "run", "export", "explain", "bench"):
        assert re.search(rf"^  {command} +[A-Z].*\.$", shown, re.MULTILINE), command
        assert main([command, "--help"]) == 0


def test_shell_completion(monkeypatch, capsys):
    variables = {"_ONEDSL_COMPLETE": "bash_complete", "COMP_WORDS": "onedsl ex", "COMP_CWORD": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert capsys.readouterr().out.split() == ["plain,explain", "plain,export"]


def let_fail(monkeypatch, function, error):
    """Let a function in a module of the commands raise an error."""

    def fail(*_, **__):
        raise error

    module, name = function.split(".")
    monkeypatch.setattr(importlib.import_module(f"onedsl.cli.{module}"), name, fail)


def test_an_error_of_several_lines_is_printed_in_lines(monkeypatch, capsys):
    """Regression: such as what to install if oneDNN is absent. The lines ended with backslash n."""
    let_fail(monkeypatch, "info.facts", ImportError(f"first\n  second {ATTACK}third"))
    assert main(["info"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [lines[0], *lines[2:]] == ["Error: first", "third"]
    assert lines[1].startswith("  second \\x1b]0;title")


def test_an_interrupt_is_the_shells_exit_status(monkeypatch):
    let_fail(monkeypatch, "info.facts", KeyboardInterrupt())
    assert main(["info"]) == 130


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("run graph.json", "run.time_calls"),
        ("explain 4x8", "explain.measure"),
        ("export 4x8 -o file", "options.Path"),
        ("info", "info.facts"),
    ],
)
def test_other_exceptions_keep_their_traceback(command, function, graph_file, monkeypatch):
    """They are bugs of onedsl, not errors in what the user passed."""
    monkeypatch.chdir(graph_file.parent)
    let_fail(monkeypatch, function, TypeError("a bug"))
    with pytest.raises(TypeError, match="a bug"):
        main(command.split())


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        ("info", 0, ""),  # printed in parts
        ("export 4x8", 0, ""),  # printed at the end
        ("", 0, ""),  # completion, below
        ("nonsense 2>&1", 2, ""),
        ("nonsense 2>/dev/full", 2, ""),
        ("info >/dev/full", 2, "Error: .*No space left on device\n"),
        ("info >&-", 2, "Error: stdout must be open.*"),
        ("--help >&-", 2, "Error: stdout must be open.*"),  # click's output
        ("info --json >&2 2>&- <&-", 0, '{\n "onedsl": .*}\n'),
    ],
)
def test_streams(command, status, error):
    """Without a redirection, stdout is a pipe that nothing reads, such as that of `head`."""
    completion = "" if command else "_ONEDSL_COMPLETE=bash_source"
    with helpers.closed_pipe() as pipe:
        line = f"{completion} {sys.executable} -m onedsl {command}"
        child = helpers.run_program("sh", "-c", line, cwd="/", status=status, **pipe)
    assert re.fullmatch(error, child.stderr, re.DOTALL)


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("environment", "encoding", "name", "unit"),
    [
        (C_LOCALE, "ascii", "\\udce4\\udcb8\\udcad.json", "us"),
        ({"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"}, "ascii", "\\u4e2d.json", "us"),
        ({"PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8"}, "utf-8", "\u4e2d.json", "\u00b5s"),
    ],
    ids=["C", "ascii", "utf-8"],
)
def test_terminals_without_utf8(environment, encoding, name, unit, graph_file, tmp_path):
    """Regression: after the measurement, UnicodeEncodeError instead of tables and files."""
    file = graph_file.rename(tmp_path / "\u4e2d.json")
    commands = f"run {file}", "bench 4x8x16 --dtype f32 --json figures.json", "explain 4x8x8x16"
    commands = commands if environment is C_LOCALE else commands[:1]
    code = "import sys; from onedsl.cli import main\nfor command in sys.argv[1:]: "
    code += "print(main([*command.split(), '--seconds', '0.01']))"
    options = {"environment": environment | {"OMP_NUM_THREADS": "1"}, "cwd": tmp_path}
    child = helpers.run_child(code, commands, text=False, **options)
    shown = child.stdout.decode(encoding)
    assert shown.startswith(name)
    assert b"Error" not in child.stderr
    *outputs, end = re.split(r"^0\n", shown, flags=re.MULTILINE)
    assert (len(outputs), end) == (len(commands), "")
    for output in outputs:  # the tables of `bench` have the unit in a line of its own
        assert unit in re.split(r"[\s(),]+", output)
    assert len(commands) == 1 or json.loads((tmp_path / "figures.json").read_text())["rows"]


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
@pytest.mark.parametrize("text", [ATTACK, "x\udfff"], ids=["control", "surrogate"])
def test_text_of_a_file_is_escaped(path, text, graph_file, capsys):
    """Control characters of graphs and of file names do not reach the terminal.

    UTF-8, in which oneDNN expects names, cannot express surrogates.
    """
    at = document = json.loads(GRAPH)
    *parents, last = path
    for key in parents:
        at = at[key]
    at[last] = at[last] | {text: {"type": "f32", "value": 1}} if last == "attrs" else text
    file = graph_file.with_name(f"graph{ATTACK}\udcff.json")
    file.write_text(json.dumps(document))
    is_valid = text == ATTACK and last == "name"
    assert run(file) == (0 if is_valid else 2)
    shown = "".join(capsys.readouterr())
    assert shown.replace("\n", "").isprintable()
    assert "x1b]0;title" in shown
    assert "\\udcff.json" in shown
    if text != ATTACK:
        assert f"{last} must be free of surrogates" in in_one_line(shown)
    assert main(["run", str(file) + ATTACK]) == 2
    assert capsys.readouterr().err.replace("\n", "").isprintable()
