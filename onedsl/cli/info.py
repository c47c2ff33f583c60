"""The command ``onedsl info``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click

from .. import _core
from ..bench.measure import cpu_field
from ..runtime.capabilities import Capabilities, Support, capabilities
from ..tensors.dtypes import DTYPES
from .options import as_usage_errors
from .output import console, grid

# Linux's names of the instruction sets that onedsl's or oneDNN's kernels are built for.
FLAGS = (
    "sse4_1", "avx", "avx2", "fma", "f16c", "avx_vnni",
    "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "avx10_1",
)  # fmt: skip

# Environment variables that limit instruction sets or threads.
CAPS = ("ONEDNN_MAX_CPU_ISA", "ONEDSL_MAX_CPU_ISA", "OMP_NUM_THREADS")

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@click.command(short_help="Show versions, the CPU, and what oneDNN supports.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def info(as_json: bool) -> None:
    """Show versions, instruction sets, threads, caches, and what oneDNN supports on this CPU."""
    with as_usage_errors():
        found = facts()
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _show(found)


def facts() -> dict[str, Any]:
    """Return everything that the command shows, as objects that JSON can represent."""
    found = capabilities()
    return {
        "onedsl": found.onedsl_version,
        "onednn": {
            "version": found.onednn_version,
            "hash": _core.onednn_build_hash(),
            "threading": found.onednn_cpu_runtime,
            "threading_library": _threading_library(),
        },
        "cpu": {
            "name": cpu_field("model name"),
            "instruction_sets": _instruction_sets(),
            "best_native_isa": _core.best_native_isa(),
            "onednn_isa": found.onednn_isa,
            "native_isa": found.native_isa,
        },
        "environment": {name: os.environ[name] for name in CAPS if name in os.environ},
        "num_threads": found.num_threads,
        "num_cpus": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "last_cache_bytes": _core.last_cache_bytes(),
        "support": [s._asdict() | {"onedsl_adds": _added(s, found)} for s in found.support],
    }


def _added(support: Support, found: Capabilities) -> str:
    """Return what onedsl does to run a variant that oneDNN does not support.

    The result is empty for a variant that oneDNN supports.
    """
    if support.onednn:
        return ""
    if support.stats_dtype != "f32":
        return "converts statistics to f32"
    if not found.runs_in_onednn(DTYPES[support.dtype]):
        return "uses its own kernels"
    parts = ["reshapes to rank 4"] if support.data_format == "NXC" and support.rank < 4 else []
    if not support.gamma:
        parts.append("passes gamma = 1")
    return ", ".join(parts)


def _threading_library() -> str:
    """Return the file names of the OpenMP and TBB libraries that this process has loaded."""
    maps = Path("/proc/self/maps").read_text()
    names = re.findall(r"/(lib(?:gomp|iomp5|omp|tbb)\b[^/\n]*)$", maps, re.MULTILINE)
    return ", ".join(dict.fromkeys(names))


def _instruction_sets() -> list[str]:
    """Return the names in `FLAGS` that Linux reports for this CPU."""
    has = set(cpu_field("flags").split())
    return [flag for flag in FLAGS if flag in has]


def _caches() -> list[dict[str, str]]:
    """Return level, type, size and sharing CPUs of each cache of the first CPU, from Linux."""
    return [
        {
            part: (index / part).read_text().strip()
            for part in ("level", "type", "size", "shared_cpu_list")
        }
        for index in sorted(CACHES.glob("index*"))
    ]


def _show(found: dict[str, Any]) -> None:
    onednn, processor = found["onednn"], found["cpu"]
    caps = ", ".join(f"{name}={value}" for name, value in found["environment"].items())
    out = console()
    out.print(str(capabilities()), markup=False)
    out.print()
    out.print(
        grid(
            {
                "threading": f"{onednn['threading']} ({onednn['threading_library']})",
                "oneDNN's hash": onednn["hash"][:12],
                "CPU": processor["name"],
                "instruction sets": " ".join(processor["instruction_sets"]),
                "onedsl uses": f"{processor['native_isa']} (of {processor['best_native_isa']})",
                "environment": caps or "no limits",
                "threads": f"{found['num_threads']} of {found['num_cpus']} CPUs",
                "caches": ", ".join(
                    f"L{cache['level']} {cache['type'].lower()} {cache['size']}"
                    for cache in found["caches"]
                    if cache["type"] != "Instruction"
                )
                or "not reported",
                "last-level cache": f"{found['last_cache_bytes'] >> 10}K assumed for this process",
            }.items()
        ),
        markup=False,
    )
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for row in found["support"]:
        if not row["onednn"]:
            key = row["onedsl_adds"], row["message"].rpartition(": ")[2]
            reasons.setdefault(key, {})[f"{row['dtype']}/{row['stats_dtype']}"] = None
    out.print("\nwhat onedsl does for the rest, and oneDNN's message:")
    for (added, message), types in reasons.items():
        out.print(f"  {', '.join(types)}: {added} ({message})", markup=False)
