"""Error messages for a failed import of the extension."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

_INSTALL = (
    "Install one of these:\n"
    "  pip install 'onednn-cpu-gomp<2024'\n"
    "  conda install -c conda-forge onednn\n"
    "or reinstall onedsl, which builds it against the oneDNN of this environment."
)
_TARGET = (
    "`pip install --target` leaves out that library. Install with `uv pip install --target`, copy "
    "the library there from the wheel of onednn-cpu-gomp, or set LD_LIBRARY_PATH to its folder."
)
# The packages of PyPI and conda-forge with libraries that some builds of oneDNN need.
_PACKAGES = {
    "libtbb": ("tbb", "tbb"),
    "libiomp5": ("intel-openmp", "intel-openmp"),
    **dict.fromkeys(
        ("libimf", "libintlc", "libirng", "libsvml"),
        ("intel-cmplr-lib-rt", "intel-cmplr-lib-rt"),
    ),
}


def subinterpreter_error() -> str:
    """Return a message in a subinterpreter of Python before 3.12, where the import would hang."""
    if sys.version_info >= (3, 12):
        return ""  # pybind11 raises
    try:
        interpreters = importlib.import_module("_xxsubinterpreters")
    except ImportError:
        return ""
    if interpreters.get_current() == interpreters.get_main():
        return ""
    return (
        "onedsl must be imported in the main interpreter, got a subinterpreter of Python "
        f"{sys.version.split()[0]}. In Apache's mod_wsgi, WSGIApplicationGroup %{{GLOBAL}} selects "
        "the main interpreter"
    )


def second_import_message(package: str, library: str) -> str:
    """Return a message for a package whose modules were imported before, and then removed."""
    return (
        f"{package} must be imported once in a process, because {library} keeps what it has "
        "registered. Start Python again"
    )


def import_error_message(error: ImportError) -> str:
    """Return a message with the cause and the remedy of an ImportError of ``onedsl._core``."""
    text = str(error)
    if "libgomp" in text and "cannot open" in text:
        return (
            "onedsl and oneDNN need the system's OpenMP library, libgomp.so.1, which is not "
            "installed. Install one of these:\n"
            "  apt-get install libgomp1\n"
            "  dnf install libgomp\n"
            "  conda install -c conda-forge libgomp\n"
            "or import torch before onedsl: PyTorch's wheels contain it."
        )
    if isinstance(error, ModuleNotFoundError):
        return (
            "onedsl's extension is not built. In a source tree, build it with "
            "`pip install -e .`, or start Python in another folder to use an installed onedsl."
        )
    return f"onedsl's extension cannot be loaded ({text}). Reinstall onedsl to rebuild it."


def onednn_error_message(error: ImportError) -> str:
    """Return a message with the cause and the remedy of an ImportError of ``onedsl._onednn``."""
    text = str(error)
    if "libdnnl" in text and "cannot open" in text:
        target = Path(__file__).parents[2]
        if target.name not in ("site-packages", "dist-packages"):
            return f"onedsl cannot find oneDNN: libdnnl.so.3 is not in {target / 'lib'}. {_TARGET}"
        return (
            "onedsl cannot find oneDNN: libdnnl.so.3 is not in this environment's lib folder. "
            + _INSTALL
        )
    missing = re.match(r"((\w+)\.so[.\d]*): cannot open", text)
    if missing and missing[2] in _PACKAGES:
        pip, conda = _PACKAGES[missing[2]]
        return (
            f"onedsl cannot load oneDNN: libdnnl.so.3 needs {missing[1]}, which is not installed "
            "beside it. Install one of these in this environment:\n"
            f"  pip install {pip}\n"
            f"  conda install -c conda-forge {conda}"
        )
    if "dnnl" in text:
        return (
            "onedsl cannot use the installed oneDNN: libdnnl.so.3 is older than 3.2 or was built "
            f"without the Graph API. {_INSTALL}"
        )
    return import_error_message(error)
