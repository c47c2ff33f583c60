"""Arrays of every kind: values, places in memory, kinds of object, and objects that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlpack_producers as dlpack
import helpers
import numpy as np

Rng = np.random.Generator

MOST_ELEMENTS = 3000
LARGE = 60_000


def choose(rng: Rng, options: Any) -> Any:
    """Choose one, without NumPy making an array of them."""
    options = list(options)
    return options[rng.integers(len(options))]


def chance(rng: Rng, one_in: int) -> bool:
    """Say yes once in so many times."""
    return bool(rng.integers(one_in) == 0)


# ---- Shapes ----


def shape(rng: Rng, least: int, most: int) -> tuple[int, ...]:
    """Draw a shape: mostly of rank 2 to 5 and some thousand elements, sometimes of neither."""
    rank = int(rng.integers(least, min(most, 5) + 1))
    if chance(rng, 12):
        rank = int(rng.integers(least, min(most, 10) + 1))
    left = LARGE if chance(rng, 50) else MOST_ELEMENTS
    sizes = []
    for _ in range(rank):
        size = int(choose(rng, [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 130, 511]))
        size = min(size, left)
        if chance(rng, 10):
            size = int(rng.integers(1, left + 1))
        left //= size
        sizes.append(0 if chance(rng, 60) else size)
    order = rng.permutation(rank)
    return tuple(sizes[i] for i in order)


# ---- Values ----


def values(rng: Rng, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Draw two tensors, in float64: src, and a gradient that leans on it or not."""
    src = rng.standard_normal(sizes) * 1.5 + 0.5
    diff_dst = rng.standard_normal(sizes) + 0.25 + 0.5 * src
    match int(rng.integers(12)):
        case 0:
            src = src * 0.01 + 100
        case 1:
            src = np.round(src)
        case 2:
            src, diff_dst = np.full(sizes, 1.25), np.ones(sizes)
        case 3:
            diff_dst = np.zeros(sizes)
        case 4:
            src, diff_dst = src * 1e-3, diff_dst * 1e3
        case 5:
            spread = 10.0 ** rng.uniform(-4, 4, sizes)
            diff_dst = diff_dst * spread
    return src, diff_dst


def spoil(rng: Rng, array: np.ndarray) -> None:
    """Put what is no number among the items, in place."""
    for _ in range(int(rng.integers(1, 4)) if array.size else 0):
        at = np.unravel_index(int(rng.integers(array.size)), array.shape)
        with np.errstate(over="ignore"):
            array[at] = choose(rng, [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45])


# ---- Places in memory ----


def dense_like(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Copy an array, its axes in some order in memory."""
    order = rng.permutation(array.ndim)
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def like(array: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Copy an array into the order in memory that another of its shape has."""
    copy = np.empty_like(model, array.dtype, order="K")
    copy[...] = array
    return copy


def shifted(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Copy an array to where no wide alignment is; its strides stay, if it is dense."""
    copy = np.empty_like(array, order="K")
    memory = np.empty(copy.nbytes + 256, np.uint8)
    start = int(rng.integers(64)) * array.itemsize
    moved = np.ndarray(copy.shape, copy.dtype, memory, start, copy.strides)
    moved[...] = array
    return moved


def strided(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Copy an array to memory with gaps, backwards steps, or items between the places of items."""
    if not array.ndim:
        return array.copy()
    match int(rng.integers(5)):
        case 0:
            steps = [int(rng.integers(1, 4)) for _ in range(array.ndim)]
        case 1:
            steps = [int(choose(rng, [1, -1])) for _ in range(array.ndim)]
        case 2:
            raw = np.zeros(array.nbytes + 1, np.uint8)
            unaligned = raw[1:].view(array.dtype).reshape(array.shape)
            unaligned[...] = array
            return unaligned
        case 3:
            record = np.zeros(array.shape, [("pad", "u1"), ("item", array.dtype)])
            record["item"] = array
            return record["item"]
        case _:
            at = int(rng.integers(array.ndim))
            first = np.take(array, [0], axis=at) if array.shape[at] else array
            return np.broadcast_to(first, array.shape)
    whole = np.zeros([n * abs(s) for n, s in zip(array.shape, steps, strict=True)], array.dtype)
    view = whole[tuple(slice(None, None, s) for s in steps)]
    view[...] = array
    return view


def odd_strides(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Give axes that are never walked any stride."""
    strides = [
        int(choose(rng, [0, 7, -4096, 2**61, -(2**62), 2**63 - 1])) if size == 1 else step
        for size, step in zip(array.shape, array.strides, strict=True)
    ]
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def placed(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Copy an array to some place or other."""
    match int(rng.integers(10)):
        case 0:
            return strided(rng, array)
        case 1:
            return odd_strides(rng, array.copy())
        case 2:
            return dense_like(rng, array)
        case 3:
            frozen = array.copy()
            frozen.flags.writeable = False
            return frozen
        case 4:
            return shifted(rng, array)
    return array.copy()


# ---- Kinds of object ----


def _torch(array: np.ndarray) -> Any:
    import torch

    if any(step < 0 or step % array.itemsize for step in array.strides) or array.size == 0:
        return array
    bits = {2: np.int16, 4: np.int32}[array.itemsize]
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array.view(bits)).view(dtype[array.dtype.name])


def _foreign(array: np.ndarray) -> Any:
    if any(step % array.itemsize for step in array.strides):
        return array
    return dlpack.Foreign(array, flags=0 if array.flags.writeable else dlpack.READ_ONLY)


def _borrowed(array: np.ndarray) -> Any:
    if any(step % array.itemsize for step in array.strides) or not array.flags.writeable:
        return array
    return _Borrowed(array)


_Borrowed = dlpack.with_exchange_api(dlpack.ExchangeApi.of(borrow_object=dlpack.borrow))

KINDS: list[Callable[[np.ndarray], Any]] = [_foreign, _borrowed]


def use_torch() -> None:
    """Fuzz PyTorch's tensors as well."""
    KINDS.append(_torch)


def numpy_of(value: Any) -> np.ndarray:
    """See what was made of an array as an array again."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, dlpack.Foreign | dlpack.Taken):
        return value.array
    if not hasattr(value, "element_size"):
        raise AttributeError(f"no array: {value!r}")
    import torch

    bits = {2: torch.int16, 4: torch.int32}[value.element_size()]
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
    return value.detach().view(bits).numpy().view(helpers.NUMPY[names[value.dtype]])


# ---- What is no argument ----


def _liar(rng: Rng, array: np.ndarray) -> Any:
    """Make a producer whose sizes are no sizes. What is said of memory is believed, so not that."""
    kind = choose(rng, [dlpack.Foreign, _Borrowed])
    foreign = kind(np.array(array, helpers.NUMPY["f32"]), versioned=bool(rng.integers(2)))
    tensor = foreign._managed.tensor
    lie = int(rng.integers(8))
    if lie == 0:
        tensor.ndim = int(choose(rng, [-1, -(2**31), 65, 2**31 - 1]))
    elif lie == 1 and tensor.ndim:
        tensor.shape = None
    elif lie == 2:
        tensor.data = None
        for axis in range(tensor.ndim):
            tensor.shape[axis] = max(1, tensor.shape[axis])
    elif lie == 3:
        tensor.device_type = int(choose(rng, [0, 2, 7, -1, 2**31 - 1]))
    elif lie == 4:
        tensor.code, tensor.bits, tensor.lanes = (int(n) for n in rng.integers(0, 200, 3))
        tensor.lanes += 2
    else:
        for axis in range(tensor.ndim):
            size = choose(rng, [-1, -(2**63), 2**62, 2**63 - 1])
            tensor.shape[axis] = size if axis == 0 or chance(rng, 2) else tensor.shape[axis]
        if not tensor.ndim:
            tensor.ndim = -5
    return foreign


def wrong(rng: Rng, array: np.ndarray) -> Any:
    """Make what a call must refuse, or may take: for each argument, one like it."""
    if array.dtype not in helpers.NUMPY.values():
        return None  # spoiled before

    def one_more(*axis: Any) -> Any:
        most = 32  # of every NumPy
        return array[axis] if array.ndim < most else array.reshape(-1)

    ways: list[Callable[[], Any]] = [
        lambda: None,
        lambda: choose(rng, [1, 1.5, "zeros", b"", [], {}, object(), int, print, np.float32(1)]),
        array.tolist,
        lambda: np.zeros(array.shape, choose(rng, ["V4", "m8", "S3", "U1", [("x", "f4")]])),
        lambda: array.astype(choose(rng, ["f8", "i4", "u2", "?", "c8", "O"])),
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: array.astype(choose(rng, list(helpers.NUMPY.values()))),
        lambda: array.astype(np.float32).view(np.matrix) if array.ndim == 2 else one_more(None),
        lambda: np.ma.masked_array(array.astype(np.float32)),
        lambda: one_more(..., None),
        lambda: one_more(None),
        lambda: array[..., :-1] if array.ndim else array,
        lambda: np.concatenate([array, array], axis=0) if array.ndim else array,
        lambda: array.reshape(-1),
        lambda: array.T,
        lambda: np.array(3, array.dtype),
        lambda: np.zeros((0,) * array.ndim, array.dtype),
        lambda: np.zeros([1] * int(rng.integers(0, 65)), array.dtype),
        lambda: _liar(rng, array),
        lambda: _liar(rng, array),
    ]
    with np.errstate(all="ignore"):
        return choose(rng, ways)()
