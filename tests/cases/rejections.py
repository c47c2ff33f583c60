"""For each reason why the core rejects a call, a valid call of a gradient and a fault in it.

test_rejections.py makes them in each door. A reason of csrc/core/check.hpp without a fault fails
there.
"""

import re
from collections.abc import Callable
from typing import Any

import helpers
import numpy as np

import onedsl
from onedsl.runtime import onednn

Arguments = dict[str, Any]
SHAPE = (4, 5, 6)  # NXC
OUT = "out"
REASONS = re.search(r"names = \{(.*?)\}", (helpers.ROOT / "csrc/core/check.hpp").read_text(), re.S)


def reasons() -> list[str]:
    """Return the names of the reasons in the core."""
    assert REASONS is not None
    return re.findall(r'"(\w+)"', REASONS[1])


def arguments() -> Arguments:
    """Return a valid call of the gradient of a SiLU with a residual, by names of the operator."""
    rng = np.random.default_rng(0)
    src, diff_dst, residual = rng.standard_normal((3, *SHAPE)).astype(np.float32)
    mean, variance, gamma, beta = rng.uniform(0.5, 2, (4, SHAPE[-1])).astype(np.float32)
    values = {"src": src, "diff_dst": diff_dst, "mean": mean, "variance": variance}
    values |= {"gamma": gamma, "beta": beta, "residual": residual, "dst": None}
    return values | {"activation": "silu", "epsilon": 1e-5, "diff_residual": True, OUT: None}


def outputs() -> list[Any]:
    """Return arrays for the results of that call."""
    vector = np.zeros(SHAPE[-1], np.float32)
    return [np.zeros(SHAPE, np.float32), vector, vector.copy(), np.zeros(SHAPE, np.float32)]


def with_out(change: Callable[[Any], Any], index: int = 0) -> Callable[[Arguments], Arguments]:
    """Return a function that changes an array of ``out``."""

    def changed(valid: Arguments) -> Arguments:
        out = outputs()
        out[index] = change(out[index])
        return {OUT: tuple(out)}

    return changed


def of_input(name: str, change: Callable[[Any], Any]) -> Callable[[Arguments], Arguments]:
    """Return a function that changes an input."""
    return lambda valid: {name: change(valid[name])}


def one_value_per_channel(valid: Arguments) -> Arguments:
    """Keep one of the elements of each channel."""
    return {name: valid[name][:1, :1].copy() for name in ("src", "diff_dst", "residual")}


def too_large(valid: Arguments) -> Arguments:
    """Repeat an element 2^58 times, without memory for them."""
    shape = (2**40, 2**13, SHAPE[-1])
    src = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), shape, (0, 0, 0))
    return dict.fromkeys(("src", "diff_dst", "residual"), src)


FAULTS: dict[str, Callable[[Arguments], Arguments]] = {
    "epsilon": lambda valid: {"epsilon": 0.0},
    "not_an_array": of_input("diff_dst", np.ndarray.tolist),
    "absent": lambda valid: {"mean": None},
    "all_or_none": lambda valid: {"beta": None},
    "alternatives": lambda valid: {"dst": valid["src"], "activation": "relu"},
    "one_of": lambda valid: {"residual": None},
    "activation": lambda valid: {"residual": None, "dst": valid["src"]},
    "rank": lambda valid: {n: valid[n][0, 0] for n in ("src", "diff_dst", "residual")},
    "type": lambda valid: {n: valid[n].astype("f8") for n in ("src", "diff_dst", "residual")},
    "size": too_large,
    "statistics_type": of_input("mean", lambda a: a.astype(helpers.NUMPY["bf16"])),
    "statistics_shape": of_input("mean", lambda a: a[:-1].copy()),
    "like_type": of_input("diff_dst", lambda a: a.astype("f2")),
    "like_shape": of_input("variance", lambda a: a[:-1].copy()),
    "few_values": one_value_per_channel,
    "layout": with_out(lambda a: np.repeat(a, 2)[::2], 1),
    "outputs": lambda valid: {OUT: tuple(outputs()[:-1])},
    "not_aligned": with_out(helpers.unaligned),
    "read_only": with_out(helpers.read_only),
    "overlap": lambda valid: {OUT: (valid["src"], *outputs()[1:])},
}
"""By reason, a function of the valid arguments that returns those that it changes.

Where a door accepts the call, the reason is one of another door.
"""


def totals_of(change: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a call of `apply` whose sums are those of another problem."""

    def call() -> Any:
        values = arguments()
        op = onedsl.BatchNormTrainingBackward(values["epsilon"])
        names = "src", "diff_dst", "mean", "variance", "gamma"
        src, *rest = (values[name] for name in names)
        sums = op.reduce(*change((src, *rest[:-1])))
        return op.apply(sums, src, *rest)

    return call


def ignored() -> Any:
    """Pass a gamma that the call ignores, as oneDNN does."""
    values = arguments()
    names = "src", "diff_dst", "mean", "variance", "gamma"
    op = onedsl.BatchNormTrainingBackward(values["epsilon"])
    return op(*(values[name] for name in names), outputs="diff_src")


def changed_while_compiled() -> Any:
    """Resize the arrays while oneDNN compiles the graph of the call, as another thread could.

    Regression: oneDNN ran the graph of the larger arrays, beyond the memory of the new ones.
    """
    values = arguments()
    src, diff_dst, mean, variance = (
        values[name].copy() for name in ("src", "diff_dst", "mean", "variance")
    )
    compile_graph = onednn.compile_graph

    def compile_and_resize(*arguments: Any) -> Any:
        compiled = compile_graph(*arguments)
        for array in (src, diff_dst):
            array.resize((1, *SHAPE[1:]), refcheck=False)
        return compiled

    onednn.compile_graph = compile_and_resize
    try:
        op = onedsl.BatchNormTrainingBackward(0.02345)  # which no other test compiles
        return op(src, diff_dst, mean, variance, backend="onednn")
    finally:
        onednn.compile_graph = compile_graph


def cut_storage() -> Any:
    """Pass a tensor of PyTorch whose storage was made too small."""
    import torch

    values = arguments()
    inputs = [values[name] for name in ("src", "diff_dst", "mean", "variance")]
    src, *rest = (torch.from_numpy(array).clone() for array in inputs)
    src.untyped_storage().resize_(src.nbytes - 4)
    return onedsl.BatchNormTrainingBackward(values["epsilon"])(src, *rest)


OF_ONE_DOOR: dict[str, Callable[[], Any]] = {
    "ignored": ignored,
    "memory": cut_storage,
    "totals_channels": totals_of(
        lambda inputs: [array[..., :-1].copy() for array in inputs],
    ),
    "totals_count": totals_of(lambda inputs: [*(a[:1] for a in inputs[:2]), *inputs[2:]]),
    "graph": changed_while_compiled,
}
"""Calls with the faults of the other reasons, which one door can have."""
