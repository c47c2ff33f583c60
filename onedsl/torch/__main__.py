"""Runs a training script with onedsl: ``python -m onedsl.torch train.py [arguments]``.

The script runs with `enable`, and with "onedsl" as the default backend of torch.compile, where
PyTorch can change it (``torch.compiler.set_default_backend``, 2.13). A call that names a backend
keeps it.

``--compare`` runs the script several times, alternately with PyTorch alone and like that. A step is
the time between two calls of ``step`` of the first optimizer of torch.optim that the script uses,
the median of a run. The first steps compile and warm up: in them onedsl counts what ran (`report`),
and they are not timed.
"""

from __future__ import annotations

import argparse
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
from ._report import Report, report

_WARM_UP = 3
"""How many steps are not timed."""


def main() -> None:
    """Parse the command line, and run the script as ``__main__``, or compare."""
    parser = argparse.ArgumentParser(
        prog="python -m onedsl.torch",
        description="Run a training script with onedsl's batch normalization.",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="script is a module name")
    parser.add_argument(
        "--compare", action="store_true", help="time the script's steps without and with onedsl"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="with --compare: end each run so long after its first step (20; inf: let it finish)",
    )
    parser.add_argument("--runs", type=int, default=3, help="with --compare: runs of each kind (3)")
    parser.add_argument("--measure", choices=("PyTorch", "onedsl"), help=argparse.SUPPRESS)
    parser.add_argument("--to", help=argparse.SUPPRESS)
    parser.add_argument("script", help="path of the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()
    if not options.module and not Path(options.script).is_file():
        parser.error(f"script must be a file, got {options.script}")
    if not options.seconds > 0:
        parser.error(f"--seconds must be positive, got {options.seconds}")
    if options.runs < 1:
        parser.error(f"--runs must be positive, got {options.runs}")
    if options.compare:
        sys.exit(_compare(options))

    if options.measure != "PyTorch":
        enable()
        if hasattr(torch.compiler, "set_default_backend"):
            torch.compiler.set_default_backend("onedsl")
    if not options.measure:
        return _run(options)
    steps = _Steps(options.seconds)
    try:
        _run(options)
    finally:
        steps.write(Path(options.to))


def _run(options: argparse.Namespace) -> None:
    sys.argv = [options.script, *options.arguments]
    if options.module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")


def _compare(options: argparse.Namespace) -> str | None:
    """Run the script in child processes and print the times. Return an error message or None."""
    medians: dict[str, list[float]] = {"PyTorch": [], "onedsl": []}
    summary = ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        for _ in range(options.runs):
            for name, times in medians.items():
                command = [sys.executable, "-m", "onedsl.torch", "--measure", name, "--to"]
                command += [str(path), "--seconds", str(options.seconds), *["-m"][: options.module]]
                child = subprocess.run(
                    [*command, options.script, *options.arguments],
                    stdout=subprocess.DEVNULL,
                    check=False,
                )
                if child.returncode != 0:
                    return f"the script failed with {name}: exit status {child.returncode}"
                if not path.exists():
                    return (
                        "the script must call step() of an optimizer of torch.optim at least "
                        f"{_WARM_UP + 2} times"
                    )
                median, summary = json.loads(path.read_text())
                path.unlink()
                times.append(median)
                print(f"{name:8} {median * 1e3:10.1f} ms per step", flush=True)
    old, new = map(statistics.median, medians.values())
    print(f"\nspeed-up: {old / new:.2f} (medians of {options.runs} runs)\n\n{summary}")
    return None


class _Steps:
    """Times the steps of a process's first optimizer, and ends the process after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ends: list[float] = []
        self.optimizer: torch.optim.Optimizer | None = None
        self.summary: Report | None = None
        register_optimizer_step_post_hook(self.after_step)

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling() or self.optimizer not in (None, optimizer):
            return
        if self.summary is None:
            self.optimizer, self.summary = optimizer, report(_model(optimizer))
        elif len(self.ends) == _WARM_UP:
            self.summary.__exit__()
        self.ends.append(time.perf_counter())
        if self.ends[-1] - self.ends[0] > self.seconds and len(self.ends) > _WARM_UP + 1:
            sys.exit()

    def write(self, path: Path) -> None:
        """Write the median time of a step and the report, if there are enough steps."""
        times = [end - begin for begin, end in itertools.pairwise(self.ends[_WARM_UP:])]
        if times:
            path.write_text(json.dumps([statistics.median(times), str(self.summary)]))


def _model(optimizer: torch.optim.Optimizer) -> nn.Module:
    """Return the models whose parameters an optimizer trains."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    modules = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    models = [
        module
        for module in modules
        if id(module) not in inner and any(id(p) in trained for p in module.parameters())
    ]
    return models[0] if len(models) == 1 else nn.ModuleList(models)


if __name__ == "__main__":
    main()
