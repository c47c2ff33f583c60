"""Past faults, each as the call that showed it. They run before anything that is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlpack_producers as dlpack
import numpy as np

import onedsl
from fuzz import judge
from onedsl import testing

OP = onedsl.BatchNormTrainingBackward(1e-5)
FAULTS: list[Callable[[], None]] = []


def fault(function: Callable[[], None]) -> Callable[[], None]:
    """Add one."""
    FAULTS.append(function)
    return function


def refused(call: Callable[[], Any], *words: str) -> None:
    """Check that a call is refused in such words."""
    try:
        call()
    except judge.REFUSALS as error:
        if all(word in str(error) for word in words):
            return
        raise judge.WrongError(f"refused in other words: {error}") from error
    raise judge.WrongError("not refused")


@fault
def bits_that_went_by_the_number_of_threads() -> None:
    for shape, threads in ((120, 512), 2), ((128, 1024), 4), ((32, 2048), 3), ((255, 2176), 2):
        problem = testing.random_problem(shape)
        bits = set()
        for count in (1, threads):
            for library in judge.OPENMP:
                library.set_num_threads(count)
            bits.add(b"".join(a.tobytes() for a in OP(*problem)))
        if len(bits) > 1:
            raise judge.WrongError(f"other bits on {threads} threads: {shape}")


@fault
def a_rank_that_cannot_be_and_no_sizes() -> None:
    for kind in (
        dlpack.Foreign,
        dlpack.with_exchange_api(dlpack.ExchangeApi.of(borrow_object=dlpack.borrow)),
    ):
        liar = kind(np.zeros((4, 3), np.float32))
        liar._managed.tensor.ndim, liar._managed.tensor.shape = 2**31 - 1, None
        refused(lambda liar=liar: OP(liar, liar, *[np.ones(3, "f4")] * 2), "src")


@fault
def sizes_that_numpy_believed() -> None:
    liar = dlpack.Foreign(np.zeros((4, 3), np.float32))
    liar._managed.tensor.shape = None
    refused(lambda: OP(liar, liar, *[np.ones(3, "f4")] * 2), "src")


@fault
def functions_that_are_null() -> None:
    kind = dlpack.with_exchange_api(dlpack.ExchangeApi.of())
    problem = [kind(a) for a in testing.random_problem((4, 3))]
    OP(*problem)


@fault
def strides_that_cannot_be_counted_in_bytes() -> None:
    problem = testing.random_problem((1, 4, 3))
    OP.compile(onedsl.TensorSpec((1, 4, 3), strides=(2**62, 3, 1)))(*problem)


@fault
def nothing_at_an_odd_address() -> None:
    odd = np.zeros(5, np.uint8)[1:].view(np.float32)[:0]
    none = odd.reshape(3, 0)
    OP(none, none, odd, odd, out=(none, odd, odd))


@fault
def more_channels_than_memory() -> None:
    OP.compile(onedsl.TensorSpec((0, 2**40)), backend="onednn")


@fault
def memory_between_the_rows_of_src() -> None:
    memory = np.zeros((4, 8), np.float32)
    src, ones = memory[:, :4], np.ones(4, np.float32)
    OP(src, src.copy(), ones, ones, out=(np.empty((4, 4), "f4"), memory[0, 4:], memory[1, 4:]))
