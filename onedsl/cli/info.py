"""The command ``onedsl info``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from .. import _core
from ..bench.machine import cpu_field
from ..bench.table import console
from ..runtime.capabilities import Capabilities, Support, capabilities, with_or_without_gamma
from ..tensors.dtypes import DTYPES
from .options import as_usage_errors

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
    rows = {
        "onedsl": found["onedsl"],
        "oneDNN": f"{onednn['version']} ({onednn['hash'][:12]})",
        "threading": f"{onednn['threading']} ({onednn['threading_library']})",
        "CPU": processor["name"],
        "instruction sets": " ".join(processor["instruction_sets"]),
        "oneDNN uses": processor["onednn_isa"],
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
    }
    out = console()
    grid = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        grid.add_row(name, value)
    out.print(grid, markup=False)
    out.print()
    out.print(_matrix(found["support"]))
    out.print("why oneDNN does not support the rest:")
    for line in _reasons(found["support"]):
        out.print(f"  {line}", markup=False)


def _matrix(support: list[dict[str, Any]]) -> Table:
    """Return a table with a row for each pair of dtypes and data format."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in support:
        rows.setdefault((f"{row['dtype']}/{row['stats_dtype']}", row["data_format"]), []).append(
            row
        )
    table = Table(
        title="what oneDNN supports, and what onedsl does for the rest",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for title in ("src/stats", "format", "rank 2", "rank 3", "rank 4"):
        table.add_column(title, no_wrap=True)
    table.add_column("onedsl")
    for (types, data_format), variants in rows.items():
        added = dict.fromkeys(p for v in variants for p in v["onedsl_adds"].split(", ") if p)
        ranks = [
            with_or_without_gamma([v["onednn"] for v in variants if v["rank"] == rank])
            for rank in (2, 3, 4)
        ]
        table.add_row(types, data_format, *ranks, ", ".join(added))
    return table


def _reasons(support: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of oneDNN's error messages, with the variants that it applies to."""
    by_message: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for types in dict.fromkeys((r["dtype"], r["stats_dtype"]) for r in support):
        of_types = [r for r in support if (r["dtype"], r["stats_dtype"]) == types]
        for message in dict.fromkeys(r["message"] for r in of_types if not r["onednn"]):
            variants = _variants([r for r in of_types if r["message"] == message], of_types)
            by_message.setdefault((message, variants), []).append("/".join(types))
    return [
        f"{', '.join(types)}, {', '.join(variants)}: {message.rpartition(': ')[2]}"
        for (message, variants), types in by_message.items()
    ]


def _variants(unsupported: list[dict[str, Any]], all_of: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return short descriptions of unsupported variants, such as ``NXC rank 2 and 3``.

    `all_of` contains all variants with the same dtypes.
    """
    if len(unsupported) == len(all_of):
        return ("every format and rank",)
    variants = []
    for data_format in ("NXC", "NCX"):
        ranks: dict[bool, list[str]] = {True: [], False: []}
        for row in unsupported:
            if row["data_format"] == data_format:
                ranks[row["gamma"]].append(str(row["rank"]))
        if ranks[True]:
            variants.append(f"{data_format} rank {' and '.join(ranks[True])}")
        rest = [rank for rank in ranks[False] if rank not in ranks[True]]
        if rest:
            variants.append(f"{data_format} rank {' and '.join(rest)} without gamma")
    return tuple(variants)
