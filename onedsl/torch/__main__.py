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

A step is the time between two calls of ``step`` of an optimizer of torch.optim, the median of a
run. The first run lasts for ``--seconds`` from its first step on, the others make as many steps, so
that all do the same work. If the times of two kinds overlap, or other programs used CPUs that the
threads needed, the difference may be noise, and no speed-up is printed. In the first steps, which
are not timed, onedsl counts what ran (`report`). If torch.compile
compiles ``step`` of an optimizer, its steps are not seen, and the run has no end.

A run ends with SystemExit in the last step. If the script continues with steps, or trains in other
threads than the main one, it ends without its exit handlers, as it does 30 s later in any case. It
also ends where the script replaces its process (``os.exec``). A file that is the standard input is
the same for each run; a terminal or a pipe is not read, and the input is empty. Scripts of several
processes, such as those under torchrun, cannot be compared. They can run: ``torchrun ... -m
onedsl.torch train.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

import torch

from ..runtime.text import discard
from . import _switch
from ._enable import enable
from ._step_timer import StepTimer

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
    if options.compare and not options.measure:
        launcher = script.name if script.name in _LAUNCHERS else ""
        if launcher or os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
            parser.error(
                "--compare cannot time a script that runs in several processes"
                f"{f' ({launcher})' if launcher else ''}: compare one process, without a launcher"
            )
        from ._compare import compare  # here, because it imports rich

        try:
            compare(options.runs, options.seconds)
        except BrokenPipeError:  # the reader, such as `head`, has closed it
            discard(sys.stdout)
        except OSError as error:  # such as a full disk
            discard(sys.stdout)
            sys.exit(f"{parser.prog}: error: {error}")
        return
    if options.measure:
        file, seconds, steps = options.measure
        StepTimer(Path(file), float(seconds), float(steps))
    if not _switch.is_off():
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
    add("--seconds", type=float, default=20, help="end of the first run (20; inf: all finish)")
    add("--runs", type=int, default=3, help="timed runs of each kind, at least 2 (3)")
    add("--measure", nargs=3, help=argparse.SUPPRESS)  # one run: file, seconds, steps
    add("script", help="path of the script; its arguments follow")
    # argparse removes "--" from the script's arguments, too.
    number, values = 0, {"--seconds": 1, "--runs": 1, "--measure": 3}
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


if __name__ == "__main__":
    main()
