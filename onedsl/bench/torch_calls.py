"""PyTorch's calls: its own kernels, one for each thing that onedsl does in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..tensors.dtypes import DTYPES
from .cases import NEW, Case
from .memory import EPSILON, Array, Memory

MOMENTUM = 0.1


def torch_calls(case: Case, taken: Memory) -> dict[str, Callable[[], Any]]:
    """Make PyTorch's calls on the same memory, in the memory format that it has for it.

    One call is given its results, and one allocates them; both do what they can in place, as
    models do. None where PyTorch is not installed.
    """
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {}

    def tensor(array: Array) -> Any:
        if array.dtype == DTYPES["bf16"]:
            made = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            made = torch.from_numpy(array)
        if array.ndim > 2 and case.data_format == "NXC":
            if array.ndim == 3:  # torch's channels_last has rank 4
                made = made.unsqueeze(1)
            made = made.movedim(-1, 1)
        return made

    copies = [
        [{name: tensor(array) for name, array in layer.items()} for layer in one]
        for one in taken.copies
    ]
    vectors = {name: torch.from_numpy(array) for name, array in taken.vectors.items()}
    run = _Calls(torch, vectors)
    passes = {
        "backward": (run.backward_out, run.backward),
        "chain": (run.backward_out, None),  # of no use to the next layer if it is allocated
        "forward": (run.forward_out, run.forward),
        "relu-forward": (run.relu_forward_out, run.relu_forward),
        "relu-backward": (run.relu_backward_out, run.relu_backward),
        "add-relu-forward": (run.relu_forward_out, run.relu_forward),
        "add-relu-backward": (run.relu_backward_out, run.relu_backward),
    }

    def call(one_layer: Callable[[Mapping[str, Any]], Any]) -> Any:
        for layer in copies[next(taken.turns)]:
            results = one_layer(layer)
        return results

    return {
        name: functools.partial(call, one_layer)
        for name, one_layer in zip(("torch", "torch" + NEW), passes[case.operation], strict=True)
        if one_layer is not None
    }


class _Calls:
    """The passes of a layer, on one copy of its tensors."""

    def __init__(self, torch: Any, vectors: Mapping[str, Any]) -> None:
        aten = torch.ops.aten
        self._normalize, self._gradient = aten.native_batch_norm, aten.native_batch_norm_backward
        self._masked = aten.threshold_backward
        v = self._vectors = vectors
        running = v["mean"].clone(), v["variance"].clone()
        self._training = (v["gamma"], v["beta"], *running, True, MOMENTUM, EPSILON)
        invstd = (v["variance"] + EPSILON).rsqrt()
        self._saved = (v["gamma"], None, None, v["mean"], invstd, True, EPSILON, [True] * 3)
        self._sums = tuple(torch.empty_like(v["mean"]) for _ in range(2))

    def forward(self, t: Mapping[str, Any]) -> Any:
        return self._normalize(t["src"], *self._training)

    def forward_out(self, t: Mapping[str, Any]) -> Any:
        sums = {"save_mean": self._sums[0], "save_invstd": self._sums[1]}
        return self._normalize.out(t["src"], *self._training, out=t["dst"], **sums)

    def backward(self, t: Mapping[str, Any]) -> Any:
        return self._gradient(t["diff_dst"], t["src"], *self._saved)

    def backward_out(self, t: Mapping[str, Any]) -> Any:
        return self._gradient_into(t["diff_src"], t["diff_dst"], t)

    def _gradient_into(self, diff_src: Any, diff_dst: Any, t: Mapping[str, Any]) -> Any:
        sums = {"out1": self._sums[0], "out2": self._sums[1]}
        return self._gradient.out(diff_dst, t["src"], *self._saved, out0=diff_src, **sums)

    def relu_forward(self, t: Mapping[str, Any]) -> Any:
        return self._add_and_relu(self.forward(t), t)

    def relu_forward_out(self, t: Mapping[str, Any]) -> Any:
        return self._add_and_relu(self.forward_out(t), t)

    def _add_and_relu(self, normalized: Any, t: Mapping[str, Any]) -> Any:
        dst = normalized[0]
        if "residual" in t:
            dst.add_(t["residual"])
        return (dst.relu_(), *normalized[1:])

    def relu_backward(self, t: Mapping[str, Any]) -> Any:
        masked = self._masked(t["diff_dst"], t["dst"], 0)
        return (*self._gradient(masked, t["src"], *self._saved), masked)

    def relu_backward_out(self, t: Mapping[str, Any]) -> Any:
        masked = t.get("diff_residual", t["diff_src"])
        self._masked.grad_input(t["diff_dst"], t["dst"], 0, grad_input=masked)
        return (*self._gradient_into(t["diff_src"], masked, t), masked)
