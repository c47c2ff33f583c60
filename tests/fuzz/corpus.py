"""Functions that reproduce bugs of the past. The fuzzer and the test suite run them first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlpack_producers as dlpack
import numpy as np

import onedsl
from fuzz import judge
from onedsl import testing

OP = onedsl.BatchNormTrainingBackward(1e-5)
CORPUS: list[Callable[[], None]] = []


def add(function: Callable[[], None]) -> Callable[[], None]:
    """Decorate a function to add it to the corpus."""
    CORPUS.append(function)
    return function


def expect_rejection(call: Callable[[], Any], argument: str) -> None:
    """Raise unless a call raises an error whose message contains the name of the argument."""
    try:
        call()
    except judge.REJECTIONS as error:
        if argument not in str(error):
            raise judge.Violation(f"the error must contain {argument}, got: {error}") from error
    else:
        raise judge.Violation("an invalid call was accepted")


@add
def bits_depend_on_threads() -> None:
    for shape, threads in ((120, 512), 2), ((128, 1024), 4), ((32, 2048), 3), ((255, 2176), 2):
        problem = testing.random_problem(shape)
        bits = set()
        for number in (1, threads):
            judge.set_threads(number)
            bits.add(b"".join(a.tobytes() for a in OP(*problem)))
        if len(bits) > 1:
            raise judge.Violation(f"different bits with {threads} threads: {shape}")


@add
def dlpack_with_invalid_rank_and_null_shape() -> None:
    for kind in (
        dlpack.Foreign,
        dlpack.with_exchange_api(dlpack.ExchangeApi.of(borrow_object=dlpack.borrow)),
    ):
        producer = kind(np.zeros((4, 3), np.float32))
        producer._managed.tensor.ndim, producer._managed.tensor.shape = 2**31 - 1, None
        expect_rejection(lambda p=producer: OP(p, p, *[np.ones(3, "f4")] * 2), "src")


@add
def dlpack_with_null_shape() -> None:
    producer = dlpack.Foreign(np.zeros((4, 3), np.float32))
    producer._managed.tensor.shape = None
    expect_rejection(lambda: OP(producer, producer, *[np.ones(3, "f4")] * 2), "src")


@add
def exchange_api_with_null_functions() -> None:
    kind = dlpack.with_exchange_api(dlpack.ExchangeApi.of())
    OP(*[kind(a) for a in testing.random_problem((4, 3))])


@add
def strides_that_overflow_in_bytes() -> None:
    problem = testing.random_problem((1, 4, 3))
    OP.compile(onedsl.TensorSpec((1, 4, 3), strides=(2**62, 3, 1)))(*problem)


@add
def empty_arrays_at_an_odd_address() -> None:
    statistic = np.zeros(5, np.uint8)[1:].view(np.float32)[:0]
    src = statistic.reshape(3, 0)
    OP(src, src, statistic, statistic, out=(src, statistic, statistic))


@add
def empty_tensor_with_2_to_the_40_channels() -> None:
    OP.compile(onedsl.TensorSpec((0, 2**40)), backend="onednn")


@add
def outputs_between_the_rows_of_src() -> None:
    memory = np.zeros((4, 8), np.float32)
    src, ones = memory[:, :4], np.ones(4, np.float32)
    OP(src, src.copy(), ones, ones, out=(np.empty((4, 4), "f4"), memory[0, 4:], memory[1, 4:]))
