"""Which oneDNN a build uses: the environment's own, or the PyPI wheels.

Asked from two sides, so that both get one answer: by the build backend for the
package's requirements (pyproject.toml names this file as a metadata provider),
and by CMakeLists.txt for the place to look in (run as a script).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

RUN_WHEEL = "onednn-cpu-gomp>=2023.2"
BUILD_WHEEL = "onednn-devel-cpu-gomp>=2023.2"
CONFIG = "dnnl-config.cmake"
CMAKE_VARIABLE = "dnnl_DIR"


def offered_prefixes() -> Iterator[Path]:
    """Prefixes that the user named, or that an active conda environment is."""
    for variable in ("dnnl_ROOT", "DNNLROOT", "CMAKE_PREFIX_PATH", "CONDA_PREFIX"):
        for entry in os.environ.get(variable, "").split(os.pathsep):
            if entry:
                yield Path(entry)


def offered_config() -> Path | None:
    """Find the CMake folder of a oneDNN that the environment offers."""
    if directory := os.environ.get(CMAKE_VARIABLE):
        return Path(directory)
    for prefix in offered_prefixes():
        for lib in ("lib", "lib64"):
            directory = prefix / lib / "cmake" / "dnnl"
            if (directory / CONFIG).is_file():
                return directory
    return None


def wheel_config() -> Path | None:
    """Find the CMake folder of the PyPI wheel, wherever pip put it for this build."""
    try:
        wheel = metadata.distribution("onednn-devel-cpu-gomp")
    except metadata.PackageNotFoundError:
        return None
    for file in wheel.files or []:
        if file.name == CONFIG:
            return Path(str(wheel.locate_file(file))).resolve().parent
    return None


# The hooks of a dynamic-metadata provider.


def get_requires_for_dynamic_metadata(settings: Mapping[str, Any]) -> list[str]:
    """Name what a build needs beside pyproject.toml's own list."""
    return [] if offered_config() else [BUILD_WHEEL]


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Name what the built package needs to run."""
    always = list(settings["always"])
    return {"dependencies": always if offered_config() else [*always, RUN_WHEEL]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Say that a source distribution leaves the dependencies open."""
    return {"dependencies": True}


if __name__ == "__main__":
    # For CMake: the folder, and whether its library stays where it is now.
    if directory := offered_config():
        sys.stdout.write(f"{directory};stays")
    elif directory := wheel_config():
        sys.stdout.write(f"{directory};wheel")
