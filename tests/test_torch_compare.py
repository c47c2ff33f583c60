"""python -m onedsl.torch --compare: scripts of many kinds, what is printed, and noise."""

import json
import re
import subprocess
import sys

import helpers
import pytest
from test_torch_memory import AVAILABLE
from torch_helpers import torch  # noqa: F401 - without PyTorch, the tests are skipped

from onedsl.torch import _compare
from onedsl.torch._compare import _speed_up
from onedsl.torch._step_timer import Run, read_run

LOOP = helpers.PROGRAMS / "torch_loop.py"
# With the variable set, --compare has no runs with huge pages alone.
TWO_KINDS = {"THP_MEM_ALLOC_ENABLE": "1"}
SHORT = ("--compare", "--seconds", "0.3", "--runs", "2")


def test_compare():
    """The script has an end. With an empty variable, there are runs with huge pages alone."""
    command = ("-m", "onedsl.torch", *SHORT, LOOP, "20")
    child = helpers.run_python(*command, environment={"THP_MEM_ALLOC_ENABLE": ""})
    lines = child.stdout.splitlines()
    kinds = ["PyTorch", "PyTorch, huge pages", "onedsl"] if AVAILABLE else ["PyTorch", "onedsl"]
    runs = lines[1 : 1 + 2 * len(kinds)]
    assert [line[:20].rstrip() for line in runs] == kinds * 2
    assert lines[0].startswith(f"The script runs {len(runs)} times, for 0.3 s")
    assert all(0 < float(line[20:].split()[0]) < 500 for line in runs)
    assert all(0 <= int(line[20:].split()[4]) < 100 for line in runs)
    speed_ups = [line.partition(": ")[0] for line in lines if line.startswith("speed-up")]
    assert speed_ups == [f"speed-up over {kind}" for kind in kinds[:-1]]
    assert by_layer(child.stdout) == ["1", *["3", "onedsl", "eager"] * 2]
    assert "1 of" not in child.stderr  # progress, which is for terminals


def by_layer(shown):
    """Return the words of the last row of a report in what --compare shows."""
    return shown.split("\n\n")[1].splitlines()[-1].split()


@pytest.mark.parametrize(
    ("how", "off", "is_by_onedsl"),
    [
        ("enable", "1", False),
        ("layers", "1", True),
        ("compiled", "1", False),
        ("compiled", "0", True),
    ],
)
def test_a_script_that_uses_onedsl(how, off, is_by_onedsl, tmp_path):
    """With the variable by which --compare switches onedsl off for PyTorch, and on.

    Regression: the runs with PyTorch ran onedsl, so the speed-up was 1.0.
    """
    command = ("-W", "ignore", "-m", "onedsl.torch", "--measure", tmp_path / "run", "0.3", "inf")
    script = (LOOP, "1000000000", how)
    helpers.run_python(*command, *script, environment={"ONEDSL_DISABLE": off})
    assert read_run(tmp_path / "run").is_by_onedsl == is_by_onedsl


def test_a_script_with_an_input_and_without_an_end(tmp_path):
    """Modules that cannot be inspected, a name in Unicode.

    Regression: the first run read the standard input of all. A run that was complete failed if the
    script changed its exit status.
    """
    given, script = tmp_path / "given", helpers.PROGRAMS / "torch_unusual.py"
    given.write_text("not read\nof each run\n")
    ascii_only = TWO_KINDS | {"PYTHONIOENCODING": "ascii"}
    command = ("-W", "error", "-m", "onedsl.torch", *SHORT, script)
    with given.open("rb", buffering=0) as stdin:
        stdin.readline()
        child = helpers.run_python(*command, environment=ascii_only, stdin=stdin)
    runs = child.stdout.splitlines()[1:5]
    assert [line[:20].rstrip() for line in runs] == ["PyTorch", "onedsl"] * 2
    assert by_layer(child.stdout) == ["gr\\xf6sse", *["3", "onedsl", "eager"] * 2]
    assert "empty standard input" not in child.stdout


@pytest.fixture(scope="module")
def kinds():
    """What the kinds of scripts in programs/torch_timed.py were found to do."""
    options = {"OMP_NUM_THREADS": "1", "ONEDSL_DISABLE": "1"}
    return json.loads(helpers.run_script("torch_timed.py", environment=options).stdout)


ANY = "a number that depends on the machine"


@pytest.mark.parametrize(
    ("kind", "status", "steps", "is_complete"),
    [
        ("for_seconds", 0, ANY, True),
        ("for_steps", 0, 25, True),
        ("ends_before", 0, 20, False),
        ("too_few_steps", 0, None, None),
        ("no_optimizer", 0, None, None),
        # Regression: these had no end.
        ("folds_of_three_steps", 0, 25, True),
        ("an_optimizer_for_each_step", 0, None, None),
        ("a_phase_before", 0, 25, True),
        ("two_optimizers", 0, 25, True),
        # Regression: these hung, or ended one thread only.
        ("threads", 0, 25, True),
        ("a_thread_and_the_main_thread", 0, 25, True),
        ("a_signal_handler", 0, ANY, True),  # one more if it interrupts the last step
        # Regression: the exit status was an error.
        ("another_exit_status", 3, 25, True),
        ("a_finally_that_raises", 1, 25, True),
        ("catches_all", 0, 25, True),
        ("an_exception", 1, 20, False),
        # Regression: exit handlers wrote the file.
        ("ends_without_handlers", 0, 20, False),
        ("ends_in_a_handler", 0, 20, False),
        # Regression: the other program ran without end.
        ("becomes_another_program", 1, None, None),
        ("becomes_another_program_later", 0, 20, True),
        ("a_forked_process_trains", 0, 25, True),
        ("a_forked_process_ends", 0, 25, True),
        ("programs", 0, 25, True),
    ],
)
def test_a_timed_run_ends(kinds, kind, status, steps, is_complete):
    found_status, found = kinds.pop(kind)
    assert found_status == status
    if steps is None:
        assert found is None
    else:
        assert found == [found[0] if steps is ANY else steps, is_complete]
        assert found[0] >= 5


def test_all_kinds_of_scripts_are_tested(kinds):
    assert kinds == {}


def test_a_run_that_does_not_end_is_killed(tmp_path, monkeypatch):
    """The main thread has ended, but waits for a thread that the script would have stopped."""
    monkeypatch.setattr(_compare, "_SECONDS_TO_END", 0.5)
    file = tmp_path / "run"
    code = f"import pathlib, time; pathlib.Path({str(file)!r}).touch(); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        _compare._wait(child, file)
        assert child.returncode is None
        child.kill()


@pytest.mark.parametrize(
    ("has_layers", "is_noisy_with", "shown"),
    [
        (False, 0, "2.00 (2.00 to 2.00 by single runs)"),
        (True, 3, "unclear, 2.00 to 2.00 by single runs:"),
    ],
)
def test_summary_of_compare(has_layers, is_noisy_with, shown, monkeypatch, capsys):
    """Noise is that of all runs together, for the highest number of threads of one of them.

    On a terminal, a line shows the progress.
    """
    for name, value in (TWO_KINDS | {"FORCE_COLOR": "1"}).items():
        monkeypatch.setenv(name, value)
    limits = []

    def run(name, environment, given, _start):
        """Replace a run. Those with onedsl are twice as fast."""
        assert environment["ONEDSL_DISABLE"] == ("0" if name == "onedsl" else "1")
        limits.append(given)
        seconds, threads = (0.1, 3) if name == "onedsl" else (0.2, 2)
        is_by_onedsl = has_layers or name == "onedsl"
        return Run(seconds, 7.0, 100 + len(limits), True, threads, is_by_onedsl, "of onedsl")

    monkeypatch.setattr(_compare, "_run", run)
    is_noisy = lambda _, num_threads: num_threads == is_noisy_with  # noqa: E731
    monkeypatch.setattr(_compare.NoiseMonitor, "is_noisy", is_noisy)
    _compare.compare(runs=2, seconds=5)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert f"speed-up over PyTorch: {shown}" in lines
    assert any("layers of onedsl, which also run" in line for line in lines) == has_layers
    assert any("other programs used CPUs" in line for line in lines) == (is_noisy_with == 3)
    progress = re.findall(r"(\d) of 4: (\w+)", err)[:4]
    assert progress == [*zip("1234", ("PyTorch", "onedsl") * 2, strict=True)]
    # All runs make as many steps as the first one.
    assert limits == [(5, float("inf")), *[(float("inf"), 101)] * 3]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([3.0, 2.2, 2.4], [2.0, 1.5, 2.1], "1.20 (1.05 to 2.00 by single runs)"),
        ([2.0, 2.0], [2.5, 2.5], "0.80 (0.80 to 0.80 by single runs)"),
        ([3.0, 2.0, 2.4], [2.0, 1.5, 2.1], "unclear, 0.95 to 2.00 by single runs"),
        ([2.0, 2.1], [1.0, 3.0], "unclear, 0.67 to 2.10 by single runs"),
    ],
)
def test_no_speed_up_is_made_of_noise(old, new, expected):
    """Regression: on a busy machine, any ratio of two medians was printed as the speed-up."""
    assert _speed_up(old, new, is_noisy=False).partition(":\n")[0] == expected
    shown = _speed_up(old, new, is_noisy=True)
    assert shown.startswith("unclear, ")
    assert "other programs used CPUs" in shown


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (("-m", "torch.distributed.run", LOOP), {}),
        (("torchrun", LOOP), {}),
        ((LOOP, "9"), {"WORLD_SIZE": "2"}),
    ],
)
def test_compare_of_several_processes(command, environment, tmp_path):
    """Regression: the error was that the script did not call step()."""
    (tmp_path / "torchrun").write_text("print(1)")
    options = ("-m", "onedsl.torch", "--compare", *command)
    child = helpers.run_python(*options, environment=environment, status=2, cwd=tmp_path)
    assert "--compare cannot time a script that runs in several processes" in child.stderr


@pytest.mark.parametrize(
    ("steps", "message"),
    [(3, "must call step() of an optimizer"), (7, "the script failed with PyTorch: exit status 1")],
)
def test_scripts_that_cannot_be_compared(steps, message):
    command = ("-m", "onedsl.torch", "--compare", LOOP, str(steps))
    child = helpers.run_python(*command, status=1)
    assert message in child.stderr


def test_compare_without_space_for_its_output():
    with open("/dev/full", "w") as full:
        streams = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        child = helpers.run_python("-m", "onedsl.torch", *SHORT, LOOP, "20", status=1, **streams)
    assert re.fullmatch(r"python -m onedsl.torch: error: .*No space left on device\n", child.stderr)


def test_compare_ends_quietly_if_its_pipe_closes():
    with helpers.closed_pipe() as pipe:
        child = helpers.run_python("-m", "onedsl.torch", *SHORT, LOOP, "20", **pipe)
    assert child.stderr == ""
