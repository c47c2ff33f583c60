"""Capabilities: versions, instruction sets, and what oneDNN supports on this machine.

A variant of the op BatchNormTrainingBackward is a combination of dtypes, data format and rank, with
or without gamma. To determine whether oneDNN supports a variant, this module compiles it.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from .. import _core
from ..graph import Graph
from ..runtime import onednn
from ..runtime.errors import UnsupportedError
from ..runtime.versions import onednn_version
from ..tensors.dtypes import STATS_DTYPES, DType, DTypeName, dtype_name
from ..tensors.spec import DataFormat, TensorSpec
from .batch_norm_training_backward import BatchNormTrainingBackward

# The text of a table cell, by whether oneDNN supports the variant with gamma and without.
_CELLS = {
    (True, True): "yes", (True, False): "with gamma", (False, True): "without gamma",
    (False, False): "no",
}  # fmt: skip


class Support(NamedTuple):
    """A variant of BatchNormTrainingBackward, and whether oneDNN alone compiles it.

    The op has all three outputs. "Alone" means without onedsl's conversions, such as a reshape to
    rank 4, which ``backend="onednn"`` applies.
    """

    dtype: DTypeName
    """Dtype of src: ``"f32"``, ``"bf16"`` or ``"f16"``."""
    stats_dtype: DTypeName
    """Dtype of mean, variance and gamma."""
    data_format: str
    """``"NXC"`` or ``"NCX"``."""
    rank: int
    """Number of dimensions of src, from 2 to 6. More are as 6."""
    gamma: bool
    """Whether gamma is passed."""
    onednn: bool
    """Whether oneDNN alone supports this variant. onedsl supports every variant."""
    message: str
    """oneDNN's error message if oneDNN does not support this variant, else empty."""


@dataclass(frozen=True)
class Capabilities:
    """Versions, instruction sets, threads, and what oneDNN runs by itself.

    `str` returns a table.
    """

    onedsl_version: str
    onednn_version: str
    onednn_cpu_runtime: str
    """oneDNN's threading runtime, usually ``"OpenMP"``."""
    onednn_isa: str
    """Newest instruction set that oneDNN uses here; ONEDNN_MAX_CPU_ISA limits it."""
    native_isa: str
    """Instruction set of onedsl's own kernels. ONEDSL_MAX_CPU_ISA limits it; if that is unset,
    ONEDNN_MAX_CPU_ISA does."""
    num_threads: int
    """Number of OpenMP threads that a call would use now."""
    support: tuple[Support, ...]

    def runs_in_onednn(self, dtype: DType, stats_dtype: DType = "f32") -> bool:
        """Return whether ``backend="onednn"`` supports these dtypes on this CPU.

        Parameters
        ----------
        dtype, stats_dtype : str or dtype
            Dtypes of src, and of mean, variance and gamma. Other combinations than those that the
            op supports raise TypeError.
        """
        data, statistics = dtype_name(dtype), dtype_name(stats_dtype, "stats_dtype")
        if statistics not in STATS_DTYPES[data]:
            raise TypeError(
                f"stats_dtype must be {' or '.join(STATS_DTYPES[data])} where dtype is {data}, "
                f"got {statistics}"
            )
        # For oneDNN, onedsl converts 16-bit statistics to f32.
        return any(s.onednn for s in self.support if (s.dtype, s.stats_dtype) == (data, "f32"))

    def __str__(self) -> str:
        lines = [
            f"onedsl {self.onedsl_version}, oneDNN {self.onednn_version} "
            f"({self.onednn_cpu_runtime}), {self.num_threads} threads",
            f"instruction sets: oneDNN {self.onednn_isa}; onedsl's own kernels {self.native_isa}",
            "",
            "what oneDNN runs by itself, with all outputs (onedsl runs all of it on every CPU):",
        ]
        notes = list(dict.fromkeys(s.message for s in self.support if s.message))
        labels: dict[str, None] = {}
        columns: dict[int, list[str]] = {}
        for pair in zip(self.support[::2], self.support[1::2], strict=True):  # with gamma, without
            numbers = dict.fromkeys(notes.index(s.message) + 1 for s in pair if s.message)
            cell = " ".join([_CELLS[pair[0].onednn, pair[1].onednn], *(f"[{n}]" for n in numbers)])
            columns.setdefault(pair[0].rank, []).append(cell)
            types = f"{pair[0].dtype}/{pair[0].stats_dtype}"
            labels[f"{types:<11}{pair[0].data_format:<8}"] = None
        texts = [f"{'types':<11}{'format':<8}", *labels]
        for cells, ranks in itertools.groupby(columns, columns.__getitem__):
            title = "rank " + ", ".join("6 and more" if n == 6 else str(n) for n in ranks)
            texts = [f"{t}{c:<20}" for t, c in zip(texts, [title, *cells], strict=True)]
        lines += [text.rstrip() for text in texts]
        lines += [f"[{i}] {note}" for i, note in enumerate(notes, 1)]
        return "\n".join(lines)


def capabilities() -> Capabilities:
    """Return versions, instruction sets, and the variants of the op that oneDNN alone supports.

    The first call compiles each variant with oneDNN, which takes a fraction of a second.

    Raises
    ------
    ImportError
        If oneDNN is absent or unusable. The message says what to install.
    OneDNNError
        If oneDNN cannot create its CPU engine. The message says what to install.
    """
    return Capabilities(
        onedsl_version=version("onedsl"),
        onednn_version=onednn_version(),
        onednn_cpu_runtime=onednn.cpu_runtime(),
        onednn_isa=onednn.cpu_isa(),
        native_isa=_core.native_isa(),
        num_threads=_core.max_threads(),
        support=_support(),
    )


def graph_of(dtype: DType, stats_dtype: DType, data_format: str, rank: int, gamma: bool) -> Graph:
    """Return a graph of a variant, as written, with small tensors."""
    op = BatchNormTrainingBackward(1e-5, DataFormat(data_format))
    shape = [2] * rank
    shape[op.data_format.channel_axis] = 16
    return op.graph(TensorSpec(shape, dtype), stats_dtype=stats_dtype, gamma=gamma)


@functools.lru_cache(maxsize=1)
def _support() -> tuple[Support, ...]:
    onednn.make_engine()  # without an engine, raise instead of reporting no support
    rows = []
    for (dtype, stats), data_format, rank, gamma in itertools.product(
        _core.supported_types(), DataFormat, (2, 3, 4, 5, 6), (True, False)
    ):
        variant = dtype, stats, str(data_format), rank, gamma
        message = ""
        try:
            graph_of(*variant).compile()
        except UnsupportedError as error:
            message = str(error)
        rows.append(Support(*variant, not message, message))
    return tuple(rows)
