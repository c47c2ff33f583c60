"""Description of the machine and of the versions in use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .. import _core, capabilities


def describe_machine() -> str:
    """Return versions, instruction sets and threads in one line."""
    found = capabilities()
    return (
        f"onedsl {found.onedsl_version} ({found.native_isa}), oneDNN {found.onednn_version} "
        f"({found.onednn_isa}), {found.num_threads} threads"
    )


def machine_facts() -> dict[str, Any]:
    """Return the facts that times depend on: CPU, versions, instruction sets, threads, cache."""
    found = capabilities()
    return {
        "cpu": cpu_field("model name"),
        "onedsl": found.onedsl_version,
        "onednn": found.onednn_version,
        "onednn_isa": found.onednn_isa,
        "native_isa": found.native_isa,
        "num_threads": found.num_threads,
        "last_cache_bytes": _core.last_cache_bytes(),
    }


def cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo, or an empty string."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""
