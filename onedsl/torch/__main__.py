"""Runs a training script with onedsl: ``python -m onedsl.torch train.py [arguments]``.

The script runs with `enable`, before its first tensor, and with "onedsl" as the default backend of
torch.compile, where PyTorch can change it (``torch.compiler.set_default_backend``, 2.13). A call
that names a backend keeps it. Otherwise the script runs as with ``python train.py``, but PyTorch is
imported before it, and ``inspect.stack()`` ends with frames of this module. Processes that the
script forks run with onedsl, too. Those that it spawns (also by forkserver) run without onedsl,
unless the script calls `enable` at its top level.

``--compare`` runs the script several times, alternately with PyTorch alone, with PyTorch and huge
pages, and like that. **Each run does all that the script does, and is ended in the middle: it
writes its files again, and may resume from the checkpoint of another run.** In the runs with
PyTorch, `enable` does nothing and the backend "onedsl" is inductor, so the script may use them.
onedsl's layers run in all of them.

A step is the time between two calls of ``step`` of the first optimizer of torch.optim that the
script uses, the median of a run. If the times of two kinds overlap, or other programs used CPUs
that the threads needed, the difference may be noise, and no speed-up is printed. In the first
steps, which are not timed, onedsl counts what ran (`report`). A run ends with SystemExit at the
next step after ``--seconds``. If the script continues, or trains in other threads than the main
one, it ends without its exit handlers. Scripts of several processes, such as those under torchrun,
cannot be compared. They can run: ``torchrun ... -m onedsl.torch train.py``.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..bench.timing import NoiseMonitor, noise_warning
from ..runtime.text import discard, replace_unencodable
from . import _huge_pages, _switch
from ._enable import enable
from ._report import report

_WARM_UP = 3  # steps that are not timed

_PYTORCH, _HUGE_PAGES, _ONEDSL = "PyTorch", "PyTorch, huge pages", "onedsl"  # what --compare runs
_OFF, _ON = {_switch.VARIABLE: "1"}, {_switch.VARIABLE: "0"}
# Modules and programs that start the script in processes of their own.
_LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
_LAUNCHERS |= {"torchrun", "accelerate"}


def main() -> None:
    """Parse the command line, and run the script as ``__main__``, or compare."""
    parser, options = _parse(sys.argv[1:])
    try:
        spec = _spec(options.script, options.module)
    except (ImportError, ValueError) as error:
        parser.error(f"script must be a module that can be run, got {options.script}: {error}")
    script = Path(options.script)
    if spec is None and (script.is_dir() or not script.exists()):
        parser.error(f"script must be a file, got {script}")
    if spec is None and options.compare and not script.is_file():  # a pipe
        parser.error(f"script must be a file that can be read several times, got {script}")
    measured, file = options.measure
    if options.compare and not measured:
        launcher = script.name if script.name in _LAUNCHERS else ""
        if launcher or os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
            parser.error(
                "--compare cannot time a script that runs in several processes"
                f"{f' ({launcher})' if launcher else ''}: compare one process, without a launcher"
            )
        try:
            _compare(options.runs, options.seconds)
        except BrokenPipeError:  # the reader, such as `head`, has closed it
            discard(sys.stdout)
        except OSError as error:  # such as a full disk
            discard(sys.stdout)
            sys.exit(f"{parser.prog}: error: {error}")
        return
    if measured:
        _time_steps(options.seconds, Path(file))
    if measured in (None, _ONEDSL):
        enable()
        if hasattr(torch.compiler, "set_default_backend"):
            torch.compiler.set_default_backend("onedsl")
    _set_argv_and_path(spec, options)
    _run(spec, options.script)


def _parse(arguments: list[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Return the parser and its options, among them the script's arguments."""
    parser = argparse.ArgumentParser(
        "python -m onedsl.torch",
        "%(prog)s [-h] [-m] [--compare] [--seconds SECONDS] [--runs RUNS] script [arguments]",
        "Run a training script with onedsl's batch norm.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="script is a module name")
    add(
        "--compare",
        action="store_true",
        help="time the script's steps without and with onedsl. Each run does all that the script "
        "does, and is ended in the middle: it writes its files again, and may resume from a "
        "checkpoint of another run",
    )
    add("--seconds", type=float, default=20, help="end of each timed run (20; inf: it finishes)")
    add("--runs", type=int, default=3, help="timed runs of each kind, at least 2 (3)")
    add("--measure", nargs=2, default=(None, None), help=argparse.SUPPRESS)  # one run: what, file
    add("script", help="path of the script; its arguments follow")
    # argparse removes "--" from the script's arguments, too.
    number, values = 0, {"--seconds": 1, "--runs": 1, "--measure": 2}
    while number < len(arguments) and arguments[number].startswith("-"):
        option = arguments[number]
        number += 1 + values.get(option, 0)
        if option == "--":
            break
    options = parser.parse_args(arguments[: number + 1])
    if not options.seconds > 0:
        parser.error(f"--seconds must be positive, got {options.seconds}")
    if options.runs < 2:
        parser.error(f"--runs must be at least 2, got {options.runs}")
    options.arguments = arguments[number + 1 :]
    return parser, options


def _set_argv_and_path(spec: ModuleSpec | None, options: argparse.Namespace) -> None:
    """Set sys.argv and sys.path as Python does for a script."""
    script = options.script
    sys.argv = [script, *options.arguments]
    if options.module:
        sys.argv[0] = str(spec and spec.origin)
    elif not getattr(sys.flags, "safe_path", False):  # Python 3.11
        folder = Path(script).absolute() if spec else Path(script).resolve().parent
        sys.path[0] = str(folder)


def _spec(script: str, is_module: bool) -> ModuleSpec | None:
    """Return the spec of a module, or of a folder's or ZIP file's __main__, None for a script."""
    if not is_module:
        return PathFinder.find_spec("__main__", [script])
    spec = find_spec(script)
    if spec and spec.submodule_search_locations is not None:
        spec = find_spec(f"{script}.__main__")
    if spec is None or not isinstance(spec.loader, InspectLoader):
        raise ImportError(f"no executable module named {script}")
    return spec


def _run(spec: ModuleSpec | None, script: str) -> None:
    """Run the script as the process's ``__main__``, as Python itself does.

    It remains ``__main__`` until the process ends: exit handlers and multiprocessing find it there.
    """
    code: Any = None
    try:
        if spec:
            main = module_from_spec(spec)
            main.__name__ = "__main__"
            code = cast(InspectLoader, spec.loader).get_code(spec.name)
        else:
            main, path = ModuleType("__main__"), os.path.abspath(script)
            kind = SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader
            loader = kind("__main__", path)
            vars(main).update(__file__=path, __cached__=None, __loader__=loader)
            if isinstance(loader, SourceFileLoader):
                code = loader.source_to_code(loader.get_data(path), path)
            else:
                code = loader.get_code("__main__")
        python = vars(sys.modules["__main__"])  # what Python itself puts there
        names = python.keys() & {"__builtins__", "__annotations__"}
        vars(main).update({name: python[name] for name in names})
        # multiprocessing, which PyTorch imports, has the second name for spawned processes.
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        exec(code, vars(main))
    except BaseException:
        hook = sys.excepthook

        def show(kind: Any, error: BaseException, trace: TracebackType | None) -> None:
            """Show an exception without the frames of this file."""
            while trace and trace.tb_frame.f_code is not code:
                trace = trace.tb_next
            hook(kind, error.with_traceback(trace), trace)

        sys.excepthook = show
        raise


def _compare(runs: int, seconds: float) -> None:
    """Run the script in child processes, and print the times, what ran, and the speed-up."""
    replace_unencodable()
    environments = {_PYTORCH: _OFF}
    if _huge_pages.VARIABLE not in os.environ and not _huge_pages.why_unavailable():
        environments[_HUGE_PAGES] = {**_OFF, _huge_pages.VARIABLE: "1"}
    environments[_ONEDSL] = _ON
    print(
        f"The script runs {len(environments) * runs} times, for {seconds:g} s of training each. "
        "Each run writes the script's files.",
        flush=True,
    )
    medians: dict[str, list[float]] = {name: [] for name in environments}
    monitor, num_threads, summary, has_own_layers = NoiseMonitor(), 0, "", False
    # The interpreter's options, and those of this run.
    before = len(sys.orig_argv) - len(sys.argv) + 1
    for name in [*environments] * runs:
        with tempfile.NamedTemporaryFile() as file:
            options = [*sys.orig_argv[1:before], "--measure", name, file.name, *sys.argv[1:]]
            child = subprocess.run(
                [sys.executable, *options],
                stdout=subprocess.DEVNULL,
                env={**os.environ, **environments[name]},
                check=False,
            )
            result = file.read()
        if child.returncode != 0:
            sys.exit(f"the script failed with {name}: exit status {child.returncode}")
        if not result:
            least = f"at least {_WARM_UP + 2} times"
            sys.exit(f"the script must call step() of an optimizer of torch.optim {least}")
        found = _Run(*json.loads(result))
        num_threads = max(num_threads, found.num_threads)
        medians[name].append(found.seconds)
        if name == _ONEDSL:
            summary = found.summary
        else:
            has_own_layers |= found.is_by_onedsl
        milliseconds = f"{found.seconds * 1e3:10.1f} ms per step"
        print(f"{name:20} {milliseconds} {found.faults:10.0f} page faults", flush=True)
    noisy = monitor.is_noisy(num_threads)
    print(f"\n{summary}\n")
    if has_own_layers:
        print("The script uses layers of onedsl, which also run in the runs with PyTorch.")
    of_onedsl = medians.pop(_ONEDSL)
    for name, of_pytorch in medians.items():
        print(f"speed-up over {name}: {_speed_up(of_pytorch, of_onedsl, noisy=noisy)}")


class _Run(NamedTuple):
    """What a timed run has found."""

    seconds: float
    """Of a step, the median."""
    faults: float
    num_threads: int
    is_by_onedsl: bool
    """Whether onedsl computed a batch norm."""
    summary: str


def _speed_up(old: list[float], new: list[float], noisy: bool) -> str:
    """Return the speed-up of the median, unless the times overlap or are noisy."""
    lowest, highest = min(old) / max(new), max(old) / min(new)
    limits = f"{lowest:.2f} to {highest:.2f} by single runs"
    if noisy:
        return f"unclear, {limits}:\n{noise_warning()}"
    if lowest <= 1 <= highest:
        return (
            f"unclear, {limits}:\nthe times overlap, so the difference may be noise. "
            "Repeat on an idle machine, or with longer --seconds"
        )
    return f"{statistics.median(old) / statistics.median(new):.2f} ({limits})"


def _time_steps(seconds: float, file: Path) -> None:
    """End the process so long after its first step, and then write a step's time and the report.

    The script calls the steps, so they are not timed as `onedsl.bench.time_calls` times calls.
    """
    ends: list[float] = []
    faults: list[int] = []
    threads: set[int] = set()
    writer = threading.Lock()
    timed = summary = None
    is_ending = False

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal timed, summary, is_ending
        if torch.compiler.is_compiling():
            return
        threads.add(threading.get_ident())
        if timed is None:
            timed = optimizer  # first, because other threads step during the next line
            summary = report(_trained_by(optimizer))
        if optimizer is timed:
            if len(ends) == _WARM_UP and summary is not None:
                summary.__exit__()
            ends.append(time.perf_counter())
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        if len(ends) > _WARM_UP + 1 and time.perf_counter() - ends[0] > seconds:
            # A bare `except:` of the script may continue, and SystemExit ends the main thread only.
            if is_ending or threads != {threading.main_thread().ident}:
                write()
                os._exit(0)
            is_ending = True
            sys.exit()

    @atexit.register
    def write() -> None:
        writer.acquire()  # for ever: another thread must neither write nor end the process
        if len(ends) > _WARM_UP + 1:
            of_step, of_faults = (
                statistics.median(end - begin for begin, end in itertools.pairwise(ats[_WARM_UP:]))
                for ats in (ends, faults)
            )
            counters = summary.calls().values() if summary else ()
            computed = any(what.startswith("onedsl") for counts in counters for what in counts)
            threads_used = torch.get_num_threads()
            found = _Run(of_step, of_faults, threads_used, computed, str(summary))
            file.write_text(json.dumps(found), encoding="utf-8")

    register_optimizer_step_post_hook(after_step)


def _trained_by(optimizer: torch.optim.Optimizer) -> nn.Module:
    """Return the models whose parameters an optimizer trains."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = []
    for module in gc.get_objects():
        if issubclass(type(module), nn.Module):
            with contextlib.suppress(Exception):  # for example, one without super().__init__()
                found.append((module, list(module.parameters()), list(module.children())))
    inner = {id(child) for _, _, children in found for child in children}
    models = [
        module
        for module, owned, _ in found
        if id(module) not in inner and any(id(p) in trained for p in owned)
    ]
    return models[0] if len(models) == 1 else nn.ModuleList(models)


if __name__ == "__main__":
    main()
