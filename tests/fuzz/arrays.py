"""Random arrays: shapes, values, memory layouts, array types, and invalid arguments.

An array type is a way to pass an array to onedsl: as an array of NumPy, of PyTorch or JAX (if they
are installed), or as an object that exports its memory through DLPack, with or without the C
functions that PyTorch has.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import dlpack_producers as dlpack
import helpers
import numpy as np

torch, jax = (
    importlib.import_module(name) if importlib.util.find_spec(name) else None
    for name in ("torch", "jax")
)

Rng = np.random.Generator

MAX_ELEMENTS, MAX_LARGE_ELEMENTS = 3000, 60_000
SIZES = [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 130, 511]


def choose(rng: Rng, options: Any) -> Any:
    """Return one of the options at random. `rng.choice` would convert the options to an array."""
    options = list(options)
    return options[rng.integers(len(options))]


def one_in(rng: Rng, n: int) -> bool:
    """Return True with a probability of 1 / n."""
    return bool(rng.integers(n) == 0)


def random_shape(rng: Rng, min_rank: int, max_rank: int) -> tuple[int, ...]:
    """Return a random shape, mostly of rank 2 to 5 and with at most `MAX_ELEMENTS` elements."""
    rank = int(rng.integers(min_rank, min(max_rank, 16 if one_in(rng, 12) else 5) + 1))
    left = MAX_LARGE_ELEMENTS if one_in(rng, 50) else MAX_ELEMENTS
    sizes = []
    for _ in range(rank):
        size = int(rng.integers(1, left + 1)) if one_in(rng, 10) else int(choose(rng, SIZES))
        size = min(size, left)
        left //= size
        sizes.append(0 if one_in(rng, 60) else size)
    return tuple(sizes[i] for i in rng.permutation(rank))


def random_values(rng: Rng, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return src and diff_dst in float64: normally distributed, constant, or badly scaled."""
    src = rng.standard_normal(shape) * 1.5 + 0.5
    diff_dst = rng.standard_normal(shape) + 0.25 + 0.5 * src
    match int(rng.integers(12)):
        case 0:
            src = src * 0.01 + 100
        case 1:
            src = np.round(src)
        case 2:
            src, diff_dst = np.full(shape, 1.25), np.ones(shape)
        case 3:
            diff_dst = np.zeros(shape)
        case 4:
            src, diff_dst = src * 1e-3, diff_dst * 1e3
        case 5:
            diff_dst = diff_dst * 10.0 ** rng.uniform(-4, 4, shape)
    return src, diff_dst


def insert_special_values(rng: Rng, array: np.ndarray) -> None:
    """Overwrite some items with NaN, infinities, and very large or small numbers."""
    for _ in range(int(rng.integers(1, 4)) if array.size else 0):
        at = np.unravel_index(int(rng.integers(array.size)), array.shape)
        with np.errstate(over="ignore"):
            array[at] = choose(rng, [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45])


# ---- Memory layouts ----


def permuted_copy(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Return a dense copy whose axes have a random order in memory."""
    order = rng.permutation(array.ndim)
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def copy_with_layout(array: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Return a copy of `array` whose axes have the same order in memory as those of `model`."""
    copy = np.empty_like(model, array.dtype, order="K")
    copy[...] = array
    return copy


def shifted_copy(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Return a copy at an address without SIMD alignment. A dense array keeps its strides."""
    copy = np.empty_like(array, order="K")
    memory = np.empty(copy.nbytes + 256, np.uint8)
    start = int(rng.integers(64)) * array.itemsize
    shifted = np.ndarray(copy.shape, copy.dtype, memory, start, copy.strides)
    shifted[...] = array
    return shifted


def strided_copy(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Return a copy that is not dense or not aligned, or a broadcast of the array.

    A copy has gaps, negative strides or an odd address, or is a field of a structured array.
    """
    if not array.ndim:
        return array.copy()
    match int(rng.integers(5)):
        case 0:
            steps = [int(rng.integers(1, 4)) for _ in range(array.ndim)]
        case 1:
            steps = [int(choose(rng, [1, -1])) for _ in range(array.ndim)]
        case 2:
            return helpers.unaligned(array)
        case 3:
            return helpers.in_record(array)
        case _:
            axis = int(rng.integers(array.ndim))
            first = np.take(array, [0], axis=axis) if array.shape[axis] else array
            return np.broadcast_to(first, array.shape)
    whole = np.zeros([n * abs(s) for n, s in zip(array.shape, steps, strict=True)], array.dtype)
    view = whole[tuple(slice(None, None, s) for s in steps)]
    view[...] = array
    return view


def with_arbitrary_unit_strides(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Return a view in which the axes of size 1 have arbitrary strides."""
    strides = [
        int(choose(rng, [0, 7, -4096, 2**61, -(2**62), 2**63 - 1, -(2**63)])) if size == 1 else step
        for size, step in zip(array.shape, array.strides, strict=True)
    ]
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def random_layout(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Return a copy with a random memory layout."""
    match int(rng.integers(10)):
        case 0:
            return strided_copy(rng, array)
        case 1:
            return with_arbitrary_unit_strides(rng, array.copy())
        case 2:
            return permuted_copy(rng, array)
        case 3:
            return helpers.read_only(array)
        case 4:
            return shifted_copy(rng, array)
    return array.copy()


# ---- Array types: each function converts to a type, or returns arrays that it cannot convert ----


def _is_exportable(array: np.ndarray) -> bool:
    """Return whether DLPack can express an array's dtype and strides."""
    has_item_strides = all(step % max(array.itemsize, 1) == 0 for step in array.strides)
    return array.dtype in helpers.NUMPY.values() and has_item_strides


def _to_dlpack(array: np.ndarray) -> Any:
    if not _is_exportable(array):
        return array
    return dlpack.Foreign(array, flags=0 if array.flags.writeable else dlpack.READ_ONLY)


def _to_exchange_api(array: np.ndarray) -> Any:
    if not _is_exportable(array) or not array.flags.writeable:
        return array
    return _ExchangeApiArray(array)


_ExchangeApiArray = dlpack.with_exchange_api(dlpack.ExchangeApi.of(borrow_object=dlpack.borrow))


def to_torch(array: np.ndarray) -> Any:
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        return array
    is_bf16 = array.dtype == helpers.NUMPY["bf16"]
    try:
        tensor = torch.from_numpy(array.view(np.int16) if is_bf16 else array)
    except (TypeError, ValueError):  # other dtypes, byte orders and strides
        return array
    return tensor.view(torch.bfloat16) if is_bf16 else tensor


def _to_jax(array: np.ndarray) -> Any:
    """Return a copy, which may not be written to."""
    return jax.numpy.array(array) if array.dtype in helpers.NUMPY.values() else array


WRITABLE_TYPES = [_to_dlpack, _to_exchange_api, *[to_torch] * (torch is not None)]
ARRAY_TYPES: list[Callable[[np.ndarray], Any]] = [*WRITABLE_TYPES, *[_to_jax] * (jax is not None)]


def to_numpy(value: Any) -> np.ndarray:
    """Return a NumPy view of an array of any array type. Raise AttributeError for other objects."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, dlpack.Foreign | dlpack.Taken):
        return value.array
    if torch is not None and isinstance(value, torch.Tensor):
        is_bf16 = value.dtype == torch.bfloat16
        return (
            value.view(torch.int16).numpy().view(helpers.NUMPY["bf16"])
            if is_bf16
            else value.numpy()
        )
    if jax is not None and isinstance(value, jax.Array):
        return np.asarray(value)
    raise AttributeError(f"not an array: {value!r}")


def of_any_type(rng: Rng, value: Any) -> Any:
    """Return an array in a random array type, and other objects as they are."""
    if type(value) is not np.ndarray or one_in(rng, 2):
        return value
    return choose(rng, ARRAY_TYPES)(value)


# ---- Invalid arguments ----


def _invalid_producer(rng: Rng, array: np.ndarray) -> Any:
    """Return a DLPack producer with an invalid field that onedsl can detect."""
    kind = choose(rng, [dlpack.Foreign, _ExchangeApiArray])
    producer = kind(np.array(array, helpers.NUMPY["f32"]), versioned=bool(rng.integers(2)))
    tensor = producer._managed.tensor
    match int(rng.integers(8)):
        case 0:
            tensor.ndim = int(choose(rng, [-1, -(2**31), 65, 2**31 - 1]))
        case 1 if tensor.ndim:
            tensor.shape = None
        case 2:
            tensor.data = None
            for axis in range(tensor.ndim):
                tensor.shape[axis] = max(1, tensor.shape[axis])
        case 3:
            tensor.device_type = int(choose(rng, [0, 2, 7, -1, 2**31 - 1]))
        case 4:
            tensor.code, tensor.bits, tensor.lanes = (int(n) for n in rng.integers(0, 200, 3))
            tensor.lanes += 2
        case _:
            for axis in range(tensor.ndim):
                if axis == 0 or one_in(rng, 2):
                    tensor.shape[axis] = choose(rng, [-1, -(2**63), 2**62, 2**63 - 1])
            if not tensor.ndim:
                tensor.ndim = -5
    return producer


def mutated(rng: Rng, array: np.ndarray) -> Any:
    """Return an object that is probably invalid if it is passed instead of this array."""
    if array.dtype not in helpers.NUMPY.values():
        return None  # mutated before

    def with_new_axis(*index: Any) -> Any:
        max_rank = 32  # of NumPy 1
        return array[index] if array.ndim < max_rank else array.reshape(-1)

    variants: list[Callable[[], Any]] = [
        lambda: None,
        lambda: choose(rng, [1, 1.5, "zeros", b"", [], {}, object(), int, print, np.float32(1)]),
        array.tolist,
        lambda: np.zeros(array.shape, choose(rng, ["V4", "m8", "S3", "U1", [("x", "f4")]])),
        lambda: array.astype(choose(rng, ["f8", "i4", "u2", "?", "c8", "O"])),
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: array.astype(choose(rng, list(helpers.NUMPY.values()))),
        lambda: array.astype("f4").view(np.matrix) if array.ndim == 2 else with_new_axis(None),
        lambda: np.ma.masked_array(array.astype(np.float32)),
        lambda: with_new_axis(..., None),
        lambda: with_new_axis(None),
        lambda: array[..., :-1] if array.ndim else array,
        lambda: np.concatenate([array, array], axis=0) if array.ndim else array,
        lambda: array.reshape(-1),
        lambda: array.T,
        lambda: np.array(3, array.dtype),
        lambda: np.zeros((0,) * array.ndim, array.dtype),
        lambda: np.zeros([1] * int(rng.integers(0, 65)), array.dtype),
        lambda: _invalid_producer(rng, array),
        lambda: _invalid_producer(rng, array),
    ]
    with np.errstate(all="ignore"):
        return choose(rng, variants)()
