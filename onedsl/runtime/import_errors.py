"""Words for an extension that does not load."""

from __future__ import annotations

_INSTALL = (
    "Install one of these:\n"
    "  pip install onednn-cpu-gomp\n"
    "  conda install -c conda-forge onednn\n"
    "or install onedsl again, so that it is built against the oneDNN of this environment."
)


def explain(error: ImportError) -> str:
    """Say what to do about an ImportError of ``onedsl._core``."""
    text = str(error)
    if "libdnnl" in text and "cannot open" in text:
        return (
            "onedsl cannot find oneDNN: libdnnl.so.3 is not in this environment's lib folder. "
            + _INSTALL
        )
    if "libgomp" in text and "cannot open" in text:
        return (
            "onedsl and oneDNN run their threads by the system's OpenMP library, libgomp.so.1, "
            "which is not installed. Install one of these:\n"
            "  apt-get install libgomp1\n"
            "  dnf install libgomp\n"
            "  conda install -c conda-forge libgomp"
        )
    if "dnnl" in text:
        return (
            "onedsl cannot use the oneDNN that it finds: libdnnl.so.3 is older than 3.2 or was "
            f"built without the Graph API. {_INSTALL}"
        )
    if isinstance(error, ModuleNotFoundError):
        return (
            "onedsl's extension is not built here. If this is a source tree, build it with "
            "`pip install -e .`, or start Python in another folder to use an installed onedsl."
        )
    return f"onedsl's extension cannot be loaded ({text}). Installing onedsl again builds it anew."


def unknown_cap(value: str, known: str) -> str:
    """Say that the cap of the kernels' instruction set has no effect."""
    return f"ONEDSL_MAX_CPU_ISA={value!r} has no effect: it must be one of {known}"
