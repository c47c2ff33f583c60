"""Stub of the extension that calls oneDNN (csrc/python/onednn_module.cpp). Private."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from ._core import RunnableGraph

TensorTuple = tuple[int, str, Sequence[int], Sequence[int], str, str]
"""A logical tensor: id, dtype, dims, strides, layout, property."""
Node = tuple[int, str, str, Sequence[tuple[str, Any]], Sequence[TensorTuple], Sequence[TensorTuple]]
"""An op: id, name, kind, attributes, inputs, outputs."""
PartitionTuple = tuple[int, list[int], bool, list[TensorTuple], list[TensorTuple]]
"""A partition: id, ids of the ops, whether it is supported, inputs, outputs."""

@final
class CompiledGraph(RunnableGraph):
    @property
    def num_threads(self) -> int: ...
    def partitions(self) -> list[PartitionTuple]: ...

def build_hash() -> str: ...
def compile_graph(
    nodes: Sequence[Node],
    inputs: Sequence[TensorTuple],
    outputs: Sequence[TensorTuple],
    constants: Mapping[int, float],
    num_threads: int,
    /,
) -> CompiledGraph: ...
def cpu_isa() -> str: ...
def cpu_runtime() -> str: ...
def graph_partitions(nodes: Sequence[Node], /) -> list[PartitionTuple]: ...
def is_of_intel() -> bool: ...
def make_engine() -> None: ...
def missing_isa(data: str, /) -> str: ...
def set_error_types(
    onednn_error: type[Exception],
    unsupported_error: type[Exception],
    out_of_memory_error: type[Exception],
    /,
) -> None: ...
def version() -> tuple[int, int, int]: ...
