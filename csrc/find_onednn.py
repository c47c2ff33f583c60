"""Finds the oneDNN for a build: that of the environment, or the PyPI wheels.

The build backend uses this file for the requirements of the package
(pyproject.toml names it as a metadata provider), and CMakeLists.txt runs it as a
script for the folder to search.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

# The extension needs libdnnl.so.3, which later years' wheels may no longer contain.
RUN_WHEEL = "onednn-cpu-gomp>=2023.2,<2024"
BUILD_WHEEL = "onednn-devel-cpu-gomp>=2023.2,<2024"
CONFIG = "dnnl-config.cmake"
CMAKE_VARIABLE = "dnnl_DIR"


def environment_prefixes() -> Iterator[Path]:
    """Yield the prefixes in environment variables, and that of an active conda environment."""
    for variable in ("dnnl_ROOT", "DNNLROOT", "CMAKE_PREFIX_PATH", "CONDA_PREFIX"):
        for entry in os.environ.get(variable, "").split(os.pathsep):
            if entry:
                yield Path(entry)


def environment_config() -> Path | None:
    """Return the CMake folder of a oneDNN in the environment.

    Raise if a user names folders and none of them has one: the build would use another oneDNN. A
    conda environment, which conda's compilers add to CMAKE_PREFIX_PATH, need not have one.
    """
    if directory := os.environ.get(CMAKE_VARIABLE):
        return Path(directory)
    named = []
    for prefix in environment_prefixes():
        for lib in ("lib", "lib64", "lib/*-linux-gnu"):
            for file in prefix.glob(f"{lib}/cmake/dnnl/{CONFIG}"):
                return file.parent
        if str(prefix) != os.environ.get("CONDA_PREFIX"):
            named.append(str(prefix))
    if named:
        raise FileNotFoundError(
            f"CMAKE_PREFIX_PATH, dnnl_ROOT or DNNLROOT must have oneDNN's {CONFIG} in "
            f"lib/cmake/dnnl of a folder, got {os.pathsep.join(named)}. Unset the variable to "
            f"build with oneDNN of PyPI, or set {CMAKE_VARIABLE} to the folder of that file"
        )
    return None


def wheel_config() -> Path | None:
    """Return the CMake folder of the PyPI wheel, wherever pip installed it for this build."""
    try:
        wheel = metadata.distribution("onednn-devel-cpu-gomp")
    except metadata.PackageNotFoundError:
        return None
    for file in wheel.files or []:
        if file.name == CONFIG:
            return Path(str(wheel.locate_file(file))).resolve().parent
    return None


# Hooks of a dynamic-metadata provider.


def get_requires_for_dynamic_metadata(settings: Mapping[str, Any]) -> list[str]:
    """Return the build requirements in addition to those in pyproject.toml."""
    return [] if environment_config() else [BUILD_WHEEL]


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dependencies of the built package."""
    always = list(settings["always"])
    uses_wheel = environment_config() is None and wheel_config() is not None
    return {"dependencies": [*always, RUN_WHEEL] if uses_wheel else always}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Return that the dependencies of a source distribution are dynamic."""
    return {"dependencies": True}


if __name__ == "__main__":
    # For CMake: the folder, and whether its library remains there after the build.
    if directory := environment_config():
        sys.stdout.write(f"{directory};stays")
    elif directory := wheel_config():
        sys.stdout.write(f"{directory};wheel")
