"""The command ``onedsl info``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from .. import _core
from ..bench.timing import threading_libraries
from ..graph import Partition
from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..operators.capabilities import Support, capabilities, graph_of
from ..runtime import onednn
from ..runtime.errors import UnsupportedError
from ..tensors.spec import TensorSpec
from .output import console, grid

# Environment variables that limit instruction sets or threads.
CAPS = ("ONEDNN_MAX_CPU_ISA", "ONEDSL_MAX_CPU_ISA", "OMP_NUM_THREADS")


@click.command(short_help="Show versions, the CPU, and what oneDNN supports.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def info(as_json: bool) -> None:
    """Show versions, instruction sets, threads, caches, and what oneDNN supports on this CPU."""
    found = facts()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    del found["support"]  # which the table shows
    out = console()
    out.print(str(capabilities()))
    out.print()
    out.print(grid(_lines(found)))


def facts() -> dict[str, Any]:
    """Return everything that the command shows, as objects that JSON can represent."""
    found = capabilities()
    libraries = dict.fromkeys(path.name for path in threading_libraries())
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    vectors = re.findall(r"\b(?:sse4|avx|fma|f16c|amx)\w*", _cpu_field("flags"))
    return {
        "onedsl": found.onedsl_version,
        "onednn": {
            "version": found.onednn_version,
            "hash": onednn.build_hash(),
            "threading": found.onednn_cpu_runtime,
            "threading_library": ", ".join(libraries),
        },
        "cpu": {
            "name": _cpu_field("model name"),
            "instruction_sets": " ".join(vectors),
            "best_native_isa": _core.best_native_isa(),
            "onednn_isa": found.onednn_isa,
            "native_isa": found.native_isa,
        },
        "environment": {name: os.environ[name] for name in CAPS if name in os.environ},
        "num_threads": found.num_threads,
        "num_cpus": len(os.sched_getaffinity(0)),
        "caches": {
            " ".join((index / part).read_text().strip() for part in ("level", "type")): (
                (index / "size").read_text().strip()
            )
            for index in caches
        },
        "last_cache_bytes": _core.last_cache_bytes(),
        "diff_src_alone": "; ".join(_diff_src_alone().defects) or "as documented",
        "support": [s._asdict() | {"onedsl_adds": _added(s)} for s in found.support],
    }


def _diff_src_alone() -> Partition:
    """Return what oneDNN makes of the op with this output only."""
    spec = TensorSpec((2, 2, 2, 16))
    return BatchNormTrainingBackward(1e-5).graph(spec, outputs="diff_src").partitions()[0]


def _cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo, or an empty string."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _lines(found: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield a line for each fact, with the path of its name."""
    for name, value in found.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, dict) and value:
            yield from _lines(value, f"{label}: ")
        else:
            yield label, str(value or "none")


def _added(support: Support) -> str:
    """Return what onedsl does to run a variant that oneDNN does not support, else nothing."""
    if support.onednn:
        return ""
    try:
        repaired = graph_of(*support[:5]).repaired()
        repaired.compile()
    except UnsupportedError:
        return "uses its own kernels"
    return ", ".join(repaired.changes)
