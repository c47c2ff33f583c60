"""Runs a script several times, with PyTorch and with onedsl, and compares the times of a step."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..bench.timing import NoiseMonitor, noise_warning
from ..runtime.text import replace_unencodable
from . import _huge_pages, _switch
from ._step_timer import MIN_STEPS, Run, read_run

_PYTORCH, _HUGE_PAGES, _ONEDSL = "PyTorch", "PyTorch, huge pages", "onedsl"
_OFF, _ON = {_switch.VARIABLE: "1"}, {_switch.VARIABLE: "0"}
# A run whose result is there is killed after this time, for example if it waits for a thread that
# the script stops after its last step.
_SECONDS_TO_END = 30.0


def compare(runs: int, seconds: float) -> None:
    """Run the script in child processes, and print the times, what ran, and the speed-up."""
    replace_unencodable()
    environments = {_PYTORCH: _OFF}
    if not _huge_pages.is_set() and not _huge_pages.why_unavailable():
        environments[_HUGE_PAGES] = {**_OFF, _huge_pages.VARIABLE: "1"}
    environments[_ONEDSL] = _ON
    order = [*environments] * runs
    start = _start_of_input()
    print(
        f"The script runs {len(order)} times, for {seconds:g} s of training, and then for as many "
        "steps as the first time. Each run writes the script's files"
        f"{', and has an empty standard input' if start is None else ''}.",
        flush=True,
    )
    found: dict[str, list[Run]] = {name: [] for name in environments}
    monitor, limits = NoiseMonitor(), (seconds, math.inf)
    with _progress() as progress:
        task = progress.add_task("", total=len(order))
        for number, name in enumerate(order, 1):
            shown = f"{number} of {len(order)}: {name}"
            progress.update(task, description=shown, completed=number - 1, refresh=True)
            run = _run(name, environments[name], limits, start)
            if number == 1 and run.is_complete:
                limits = math.inf, run.steps
            found[name].append(run)
            milliseconds = f"{run.seconds * 1e3:10.1f} ms per step"
            print(f"{name:20} {milliseconds} {run.faults:10.0f} page faults", flush=True)
    is_noisy = monitor.is_noisy(max(run.num_threads for name in found for run in found[name]))
    of_onedsl = found.pop(_ONEDSL)
    print(f"\n{of_onedsl[-1].summary}\n")
    if any(run.is_by_onedsl for name in found for run in found[name]):
        print("The script uses layers of onedsl, which also run in the runs with PyTorch.")
    for name, of_pytorch in found.items():
        old, new = ([run.seconds for run in each] for each in (of_pytorch, of_onedsl))
        print(f"speed-up over {name}: {_speed_up(old, new, is_noisy=is_noisy)}")


def _progress() -> Progress:
    """Return a progress line on stderr if that is a terminal."""
    stderr = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        refresh_per_second=1,  # few, because each takes time from the script
        redirect_stdout=sys.stdout.isatty(),
        disable=not stderr.is_terminal,
    )


def _start_of_input() -> int | None:
    """Return the position in a file that is the standard input, or None if it is no file."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:  # a terminal, or a pipe, which could be read once only
        return None


def _run(
    name: str, environment: dict[str, str], limits: tuple[float, float], start: int | None
) -> Run:
    """Run the script in a child process until it is complete, in seconds or steps."""
    # The interpreter's options, and those of this run.
    before = len(sys.orig_argv) - len(sys.argv) + 1
    if start is not None:
        os.lseek(0, start, os.SEEK_SET)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run"
        measure = "--measure", str(file), *map(str, limits)
        with subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:before], *measure, *sys.argv[1:]],
            stdin=subprocess.DEVNULL if start is None else None,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **environment},
        ) as child:
            try:
                _wait(child, file)
            finally:
                child.kill()
        run = read_run(file)
    if child.returncode != 0 and not (run and run.is_complete):
        sys.exit(f"the script failed with {name}: exit status {child.returncode}")
    if not run:
        sys.exit(
            f"the script must call step() of an optimizer of torch.optim at least {MIN_STEPS} "
            "times, in its own process"
        )
    return run


def _wait(child: subprocess.Popen[bytes], file: Path) -> None:
    """Wait until a child process ends, or does not end although its file exists."""
    while not file.exists():
        try:
            child.wait(0.2)
            return
        except subprocess.TimeoutExpired:
            pass
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_SECONDS_TO_END)


def _speed_up(old: list[float], new: list[float], *, is_noisy: bool) -> str:
    """Return the speed-up of the median, unless the times overlap or are noisy."""
    lowest, highest = min(old) / max(new), max(old) / min(new)
    limits = f"{lowest:.2f} to {highest:.2f} by single runs"
    if is_noisy:
        return f"unclear, {limits}:\n{noise_warning()}"
    if lowest <= 1 <= highest:
        return (
            f"unclear, {limits}:\nthe times overlap, so the difference may be noise. "
            "Repeat on an idle machine, or with longer --seconds"
        )
    return f"{statistics.median(old) / statistics.median(new):.2f} ({limits})"
