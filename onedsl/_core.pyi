"""Mirror of csrc/bind_*.cpp. Private: nothing here checks in words."""

import enum
from collections.abc import Sequence
from typing import Any

class DataType(enum.Enum):
    f32 = ...
    bf16 = ...
    f16 = ...

class Backend(enum.Enum):
    auto = ...
    onednn = ...
    native = ...

class Statistics(enum.Enum):
    batch = ...
    frozen = ...

class StatisticsShape(enum.Enum):
    channel_second = ...
    channel_last = ...
    broadcast = ...

class Operator:
    def __init__(
        self,
        epsilon: float,
        statistics: Statistics,
        shape: StatisticsShape,
        keeps_history: bool = False,
        inverse: bool = False,
    ) -> None: ...
    def run(
        self,
        src: object,
        diff_dst: object,
        mean: object,
        variance: object,
        gamma: object | None,
        sums: bool,
        out: tuple[Any, ...] | None,
        backend: Backend,
        /,
    ) -> tuple[Any, Any, Any] | None: ...

class Compiled:
    def __init__(
        self,
        op: Operator,
        data: DataType,
        shape: Sequence[int],
        strides: Sequence[int],
        statistics: DataType,
        stats_shape: Sequence[int],
        stats_strides: Sequence[int],
        gamma: bool,
        sums: bool,
        backend: Backend,
    ) -> None: ...
    def run(
        self,
        src: object,
        diff_dst: object,
        mean: object,
        variance: object,
        gamma: object | None,
        out: tuple[Any, ...] | None,
        /,
    ) -> tuple[Any, Any, Any] | None: ...
    @property
    def backend(self) -> str: ...
    @property
    def implementation(self) -> str: ...
    @property
    def num_threads(self) -> int: ...

class Producer:
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: object = None,
        copy: object = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def import_array(array: object, /) -> Any: ...
def export_array(array: Any, like: object, /) -> Any: ...
def is_dense(array: object, kept: int, /) -> bool: ...
def compile_onednn_op(
    dims: Sequence[int],
    data_format: str,
    data: DataType,
    statistics: DataType,
    gamma: bool,
    num_outputs: int,
) -> None: ...
def last_cache_bytes() -> int: ...
def max_threads() -> int: ...
def native_isa() -> str: ...
def triad(out: object, a: object, b: object, /) -> None: ...
def onednn_cpu_isa() -> str: ...
def onednn_cpu_runtime() -> str: ...
def onednn_version() -> tuple[int, int, int]: ...
