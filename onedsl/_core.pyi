"""Stub of the extension (csrc/python). Private: invalid calls return a Rejection."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from .operators.schema import OpSchema

_DType = Literal["f32", "bf16", "f16"]
_Signature = tuple[
    list[tuple[Any, ...]], list[tuple[Any, ...]], tuple[str, ...], tuple[str, ...], str
]

CACHE_LINE: Final[int]
EPSILON_LIMITS: Final[tuple[float, float]]
MAX_RANK: Final[int]
MAX_TENSOR_BYTES: Final[int]

@final
class Rejection:
    @property
    def reason(self) -> str: ...
    @property
    def port(self) -> str: ...
    @property
    def other(self) -> str: ...
    @property
    def to_copy(self) -> list[str]:
        """The inputs of which dense, aligned copies repair the call, or none."""
    @property
    def to_copy_back(self) -> list[str]:
        """The outputs for which dense arrays repair the call, which are copied to them after it."""
    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of such tensors, in elements."""

@final
class Operator:
    def run(
        self,
        inputs: tuple[object, ...],
        all_outputs: bool,
        out: Any,
        results_like: object = ...,
        copied: tuple[str, ...] = ...,
        /,
    ) -> Any:
        """Return the result, or a Rejection. `copied` are the names of arrays that are copies."""
    def reduce(self, inputs: tuple[object, ...], copied: tuple[str, ...] = ..., /) -> Any: ...
    def apply(
        self,
        totals: npt.NDArray[np.float64],
        inputs: tuple[object, ...],
        all_outputs: bool,
        out: Any,
        results_like: object = ...,
        copied: tuple[str, ...] = ...,
        /,
    ) -> Any: ...
    def describe(
        self, inputs: tuple[object, ...], all_outputs: bool, out: Any, /
    ) -> tuple[Any, ...] | Rejection | None:
        """Return from what a graph for the call is compiled, or None if the tensors are empty."""
    def run_graph(
        self,
        graph: RunnableGraph,
        description: tuple[Any, ...],
        inputs: tuple[object, ...],
        all_outputs: bool,
        out: Any,
        results_like: object = ...,
        /,
    ) -> Any: ...
    def check_shapes(
        self, inputs: Sequence[tuple[str, Sequence[int]] | None], /
    ) -> Rejection | None: ...
    def kernel_info(
        self,
        data: _DType,
        shape: Sequence[int],
        strides: Sequence[int],
        statistics_type: _DType,
        num_threads: int | None = ...,
        /,
    ) -> dict[str, Any] | None: ...

class RunnableGraph:
    """A compiled graph of `onedsl._onednn`."""

    def run(
        self, arrays: tuple[object, ...], in_place: Sequence[int | None], /
    ) -> int | tuple[str, int, int]:
        """Return the number of threads, or why the call is rejected."""

@final
class Subscription:
    until_closed: bool
    def close(self) -> None: ...
    def __enter__(self) -> Subscription: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...

@final
class TorchUse:
    until_closed: bool
    def close(self) -> None: ...
    def __enter__(self) -> TorchUse: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...

@final
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

def activations() -> dict[str, tuple[str, str, float, tuple[float, float]]]: ...
def at_cache_line(
    memory: npt.NDArray[np.uint8], dtype: _DType, shape: Sequence[int], strides: Sequence[int], /
) -> npt.NDArray[Any]:
    """Return an array in memory with 64 bytes more than it needs. Strides are in bytes."""

def begin_torch_use() -> TorchUse: ...
def best_native_isa() -> str: ...
def empty_tensor(
    library: object, dtype: _DType, shape: Sequence[int], strides: Sequence[int], /
) -> Any | None:
    """Return a tensor if `library` is one of PyTorch. Strides are in elements."""

def end_all_torch_uses() -> None: ...
def export_array(array: Any, like: object, /) -> Any: ...
def geometry(
    shape: Sequence[int],
    strides: Sequence[int],
    channel_axis: int | None = ...,
    item_stride: int = ...,
    /,
) -> tuple[int, int, int] | None: ...
def graph_op_kinds() -> dict[str, tuple[str, str, str, str]]:
    """Return operation, inputs, outputs and attributes, names separated by spaces, by kind."""

def import_array(array: object, /) -> Any:
    """Return a NumPy array, or why `array` is none: a reason, or the exception of its library."""

def known_native_caps() -> str: ...
def last_cache_bytes() -> int: ...
def make_operator(
    schema: OpSchema,
    name: str,
    epsilon: float,
    frozen: bool,
    channel_axis: int | None,
    momentum: float | None,
    activation: str,
    parameter: float | None,
    /,
) -> Operator: ...
def max_threads() -> int: ...
def mark_written(out: Sequence[object], /) -> None: ...
def native_isa() -> str: ...
def override_torch_kernels(ops: Sequence[str], /) -> None: ...
def register_pytorchs_kernels(library: str, /) -> None: ...
def register_torch_ops() -> bool: ...
def set_error_types(
    onednn_error: type[Exception],
    unsupported_error: type[Exception],
    out_of_memory_error: type[Exception],
    /,
) -> None: ...
def set_run_log(record_run: Callable[..., None], record_call: Callable[..., None], /) -> None: ...
def signatures() -> dict[str, _Signature]: ...
def subscribe(subscriber: Callable[..., None], /) -> Subscription: ...
def subscribers() -> list[Callable[..., None]]: ...
def supported_types() -> list[tuple[_DType, _DType]]: ...
def torch_kernels_in_use() -> bool: ...
def torch_kernels_used() -> bool: ...
def torch_ops() -> list[str]: ...
def triad(out: object, a: object, b: object, non_temporal: bool, /) -> None: ...
def unknown_native_cap() -> str | None: ...
def why_torch_unsupported(
    operation: str,
    inputs: Sequence[tuple[bool, str, Sequence[int]] | None],
    epsilon: float,
    /,
) -> str: ...
def xla_handlers() -> dict[str, tuple[str, Any]]: ...
