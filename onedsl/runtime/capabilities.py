"""What runs how on this machine, found out by trying."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from .. import _core
from ..tensors.dtypes import CORE, STATISTICS, DType, dtype_name
from ..tensors.spec import DataFormat
from .errors import OneDNNError


class Support(NamedTuple):
    """Whether oneDNN by itself compiles one variant of the op, three outputs asked for."""

    dtype: str
    stats_dtype: str
    data_format: str
    rank: int
    gamma: bool
    onednn: bool
    """onedsl runs every row; False means that it adds what is missing."""
    message: str
    """What oneDNN says where it does not."""


@dataclass(frozen=True)
class Capabilities:
    """Versions, instruction sets, threads, and what oneDNN runs by itself.

    Printing it gives a table.
    """

    onedsl_version: str
    onednn_version: str
    onednn_cpu_runtime: str
    """``"OpenMP"`` as a rule."""
    onednn_isa: str
    """Newest instruction set that oneDNN may use here; ONEDNN_MAX_CPU_ISA caps it."""
    native_isa: str
    """That of onedsl's own kernels; ONEDSL_MAX_CPU_ISA, or else ONEDNN_MAX_CPU_ISA, caps it."""
    num_threads: int
    """OpenMP threads that a plan made now would use."""
    support: tuple[Support, ...]

    def runs_in_onednn(self, dtype: DType, stats_dtype: DType = "f32") -> bool:
        """Tell whether ``backend="onednn"`` can run these types on this CPU.

        Parameters
        ----------
        dtype, stats_dtype : str or dtype
            Of src, and of mean, variance and gamma.

        Raises
        ------
        TypeError, ValueError
            If they are no types of the op, or none that go together.
        """
        data, statistics = dtype_name(dtype), dtype_name(stats_dtype, "stats_dtype")
        if statistics not in STATISTICS[data]:
            raise ValueError(f"{data} with {statistics} statistics is not in the op's type table")
        widened = "f32"  # onedsl widens narrower statistics for oneDNN
        return any(s.onednn for s in self.support if (s.dtype, s.stats_dtype) == (data, widened))

    def __str__(self) -> str:
        lines = [
            f"onedsl {self.onedsl_version}, oneDNN {self.onednn_version} "
            f"({self.onednn_cpu_runtime}), {self.num_threads} threads",
            f"instruction sets: oneDNN {self.onednn_isa}; onedsl's own kernels {self.native_isa}",
            "",
            "what oneDNN runs by itself, three outputs asked for (onedsl runs all of it):",
            f"{'types':<12}{'format':<8}{'rank 2':<12}{'rank 3':<12}{'rank 4'}",
        ]
        cells: dict[tuple[str, str], dict[int, list[bool]]] = {}
        for s in self.support:
            row = cells.setdefault((f"{s.dtype}/{s.stats_dtype}", s.data_format), {})
            row.setdefault(s.rank, []).append(s.onednn)
        for (types, data_format), ranks in cells.items():
            texts = [with_or_without_gamma(runs) for runs in ranks.values()]
            lines.append(f"{types:<12}{data_format:<8}{texts[0]:<12}{texts[1]:<12}{texts[2]}")
        return "\n".join(lines)


def with_or_without_gamma(runs: list[bool]) -> str:
    """Say whether oneDNN runs a variant, with gamma and without."""
    words = {(True, True): "yes", (True, False): "with gamma", (False, False): "no"}
    return words.get((runs[0], runs[1]), "without gamma")


def capabilities() -> Capabilities:
    """Find out what this oneDNN on this CPU runs by itself, and what onedsl adds.

    oneDNN's part is found out by compiling each variant of the op once, which takes a fraction of
    a second at the first call.

    Returns
    -------
    Capabilities

    Raises
    ------
    OneDNNError
        If this oneDNN cannot make its CPU engine at all; the message says what to install.
    """
    return Capabilities(
        onedsl_version=version("onedsl"),
        onednn_version=".".join(map(str, _core.onednn_version())),
        onednn_cpu_runtime=_core.onednn_cpu_runtime(),
        onednn_isa=_core.onednn_cpu_isa(),
        native_isa=_core.native_isa(),
        num_threads=_core.max_threads(),
        support=_support(),
    )


@functools.lru_cache(maxsize=1)
def _support() -> tuple[Support, ...]:
    # An engine that cannot be made is no answer about the op: this raises.
    _core.make_onednn_engine()
    return tuple(
        _try(dtype, stats, data_format, rank, gamma)
        for dtype, all_stats in STATISTICS.items()
        for stats in all_stats
        for data_format in ("NXC", "NCX")
        for rank in (2, 3, 4)
        for gamma in (True, False)
    )


def _try(dtype: str, stats: str, data_format: str, rank: int, gamma: bool) -> Support:
    dims = [2] * rank
    dims[DataFormat(data_format).channel_axis] = 16
    try:
        _core.onednn_compiles(dims, data_format, CORE[dtype], CORE[stats], gamma, 3)
    except OneDNNError as error:
        return Support(dtype, stats, data_format, rank, gamma, False, str(error))
    return Support(dtype, stats, data_format, rank, gamma, True, "")
