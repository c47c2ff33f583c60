"""Runs a training script with onedsl: ``python -m onedsl.torch train.py [arguments]``.

The script runs with `enable`, and with "onedsl" as the default backend of torch.compile, where
PyTorch can change it (``torch.compiler.set_default_backend``, 2.13). A call that names a backend
keeps it.

``--compare`` runs the script several times, alternately with PyTorch alone and like that. A step is
the time between two calls of ``step`` of the first optimizer of torch.optim that the script uses,
the median of a run. If the times of the two overlap, the difference may be noise, and no speed-up
is printed. In the first steps, which are not timed, onedsl counts what ran (`report`).
"""

from __future__ import annotations

import argparse
import atexit
import gc
import itertools
import json
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ._enable import enable
from ._report import report

_WARM_UP = 3  # steps that are not timed


def main() -> None:
    """Parse the command line, and run the script as ``__main__``, or compare."""
    parser = argparse.ArgumentParser(
        "python -m onedsl.torch", description="Run a training script with onedsl's batch norm."
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="script is a module name")
    add("--compare", action="store_true", help="time the script's steps without and with onedsl")
    add("--seconds", type=float, default=20, help="end of each timed run (20; inf: it finishes)")
    add("--runs", type=int, default=3, help="timed runs of each kind, at least 2 (3)")
    add("--measure", nargs=2, default=(None, None), help=argparse.SUPPRESS)  # one run: what, file
    add("script", help="path of the script")
    add("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()
    if not options.module and not Path(options.script).is_file():
        parser.error(f"script must be a file, got {options.script}")
    if not options.seconds > 0:
        parser.error(f"--seconds must be positive, got {options.seconds}")
    if options.runs < 2:
        parser.error(f"--runs must be at least 2, got {options.runs}")
    measured, file = options.measure
    if measured:
        _time_steps(options.seconds, Path(file))
    elif options.compare:
        _compare(options.runs)
        return
    if measured != "PyTorch":
        enable()
        if hasattr(torch.compiler, "set_default_backend"):
            torch.compiler.set_default_backend("onedsl")

    sys.argv = [options.script, *options.arguments]
    if options.module:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")


def _compare(runs: int) -> None:
    """Run the script in child processes, and print the times and the speed-up."""
    medians: dict[str, list[float]] = {"PyTorch": [], "onedsl": []}
    for name, found in [*medians.items()] * runs:
        with tempfile.NamedTemporaryFile() as file:
            options = ["--measure", name, file.name, *sys.argv[1:]]
            command = [sys.executable, "-m", "onedsl.torch", *options]
            child = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            result = file.read()
        if child.returncode != 0:
            sys.exit(f"the script failed with {name}: exit status {child.returncode}")
        if not result:
            least = f"at least {_WARM_UP + 2} times"
            sys.exit(f"the script must call step() of an optimizer of torch.optim {least}")
        seconds, summary = json.loads(result)
        found.append(seconds)
        print(f"{name:8} {seconds * 1e3:10.1f} ms per step", flush=True)
    print(f"\n{_speed_up(*medians.values())}\n\n{summary}")


def _speed_up(old: list[float], new: list[float]) -> str:
    """Return the speed-up of the median, unless the times overlap."""
    lowest, highest = min(old) / max(new), max(old) / min(new)
    limits = f"{lowest:.2f} to {highest:.2f} by single runs"
    if lowest <= 1 <= highest:
        return (
            f"speed-up: unclear, {limits}:\nthe times overlap, so the difference may be noise. "
            "Repeat on an idle machine, or with longer --seconds"
        )
    return f"speed-up: {statistics.median(old) / statistics.median(new):.2f} ({limits})"


def _time_steps(seconds: float, file: Path) -> None:
    """End the process so long after its first step, and then write a step's time and the report."""
    ends: list[float] = []
    timed = summary = None

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal timed, summary
        if torch.compiler.is_compiling() or timed not in (None, optimizer):
            return
        if summary is None:
            timed, summary = optimizer, report(_trained_by(optimizer))
        elif len(ends) == _WARM_UP:
            summary.__exit__()
        ends.append(time.perf_counter())
        if ends[-1] - ends[0] > seconds and len(ends) > _WARM_UP + 1:
            sys.exit()

    @atexit.register
    def write() -> None:
        times = [end - begin for begin, end in itertools.pairwise(ends[_WARM_UP:])]
        if times:
            file.write_text(json.dumps([statistics.median(times), str(summary)]))

    register_optimizer_step_post_hook(after_step)


def _trained_by(optimizer: torch.optim.Optimizer) -> nn.Module:
    """Return the models whose parameters an optimizer trains."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    modules = [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    models = [
        m for m in modules if id(m) not in inner and any(id(p) in trained for p in m.parameters())
    ]
    return models[0] if len(models) == 1 else nn.ModuleList(models)


if __name__ == "__main__":
    main()
