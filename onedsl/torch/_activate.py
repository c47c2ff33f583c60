"""Activates onedsl for all models of a process, for ``python -m onedsl.torch``."""

from __future__ import annotations

import atexit
import collections
import functools
import sys
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ._enable import enable
from ._fuse import FUSED, apply_fused

_BatchNorm = nn.modules.batchnorm._BatchNorm

_seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_reached: collections.Counter[str] = collections.Counter()
_left: collections.Counter[str] = collections.Counter()


def activate(*, fuse: bool) -> None:
    """Call `enable`, let all batch-norm layers be fused if wanted, and report at exit.

    Parameters
    ----------
    fuse : bool
        Whether layers of exactly torch.nn.BatchNorm1d to 3d, of every model, compute as after
        `onedsl.torch.fuse`.
    """
    enable()
    plain = _BatchNorm.forward

    @functools.wraps(plain)
    def forward(self: Any, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        kind = type(self)
        fused = fuse and kind in FUSED
        if not torch.compiler.is_compiling():
            _count(self, input, fused)
        if fused:
            return apply_fused(self, input, functools.partial(plain, self))
        output: Tensor = plain(self, input)
        return output

    _BatchNorm.forward = forward
    atexit.register(_print_summary, fuse)


def _count(layer: nn.Module, src: Any, fused: bool) -> None:
    if not layer.training or layer in _seen or not isinstance(src, Tensor):
        return
    _seen.add(layer)
    kind = type(layer).__name__
    if not src.is_cpu:
        _left[f"{kind} on {src.device.type}"] += 1
    elif src.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        _left[f"{kind} of {src.dtype}"] += 1
    else:
        _reached[kind] += 1


def _print_summary(fuse: bool) -> None:
    if not _reached and not _left:
        return
    left = ", ".join(f"{count} {kind}" for kind, count in _left.items())
    print(
        f"onedsl.torch: {sum(_reached.values())} batch-norm layers reached"
        f"{' and fused where a ReLU follows' if fuse else ''}, "
        f"{sum(_left.values())} left{f' ({left})' if left else ''}",
        file=sys.stderr,
    )
