"""Runs a training script with onedsl: ``python -m onedsl.torch train.py [arguments]``."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from ._enable import enable


def main() -> None:
    """Parse the command line, call `enable`, and run the script as ``__main__``."""
    parser = argparse.ArgumentParser(
        prog="python -m onedsl.torch",
        description="Run a training script with onedsl's batch normalization in eager mode.",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="script is a module name")
    parser.add_argument("script", help="path of the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()
    if not options.module and not Path(options.script).is_file():
        parser.error(f"script must be a file, got {options.script}")

    enable()
    sys.argv = [options.script, *options.arguments]
    if options.module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
