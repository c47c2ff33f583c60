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

class Operator:
    def __init__(self, epsilon: float, channel_axis: int) -> None: ...
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
        shape: Sequence[int],
        strides: Sequence[int],
        data: DataType,
        statistics: DataType,
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
    def channels(self) -> int: ...
    @property
    def implementation(self) -> str: ...
    @property
    def num_threads(self) -> int: ...

def is_dense(array: object, /) -> bool: ...
def compile_onednn_op(
    dims: Sequence[int],
    data_format: str,
    data: DataType,
    statistics: DataType,
    gamma: bool,
    num_outputs: int,
) -> None: ...
def max_threads() -> int: ...
def native_isa() -> str: ...
def triad(out: object, a: object, b: object, /) -> None: ...
def onednn_cpu_isa() -> str: ...
def onednn_cpu_runtime() -> str: ...
def onednn_version() -> tuple[int, int, int]: ...
