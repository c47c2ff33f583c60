"""Runs at the start of each Python process that a script under ``python -m onedsl.torch`` starts.

Python imports the first ``sitecustomize`` in its path. This one runs the next one as well, and
activates onedsl as soon as the process imports PyTorch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _ActivateAfterTorch(importlib.abc.MetaPathFinder):
    """Activates onedsl when the import of PyTorch has finished."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_activate(module: ModuleType) -> None:
                execute(module)
                from onedsl.torch import _activate

                _activate.activate(fuse=os.environ["ONEDSL_TORCH"] == "fuse")

            loader: Any = spec.loader
            loader.exec_module = execute_and_activate
        return spec


def _run_next() -> None:
    others = [p for p in sys.path if os.path.abspath(p or ".") != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("ONEDSL_TORCH") in ("enable", "fuse"):
    sys.meta_path.insert(0, _ActivateAfterTorch())
_run_next()
