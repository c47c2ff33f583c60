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

# Layers that were counted, and the numbers of layers that use onedsl and that do not, by kind.
_counted: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_used: collections.Counter[str] = collections.Counter()
_skipped: collections.Counter[str] = collections.Counter()


def activate(*, fuse: bool) -> None:
    """Call `enable`, optionally fuse all batch-norm layers, and print a summary at exit.

    Parameters
    ----------
    fuse : bool
        Whether to run the layers of all models as after `onedsl.torch.fuse`. This applies to layers
        of torch.nn.BatchNorm1d to 3d, but not to subclasses.
    """
    enable()
    plain = _BatchNorm.forward

    @functools.wraps(plain)
    def forward(self: Any, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        kind = type(self)
        fused = fuse and kind in FUSED
        if not torch.compiler.is_compiling():
            _count(self, input)
        if fused:
            return apply_fused(self, input, functools.partial(plain, self))
        output: Tensor = plain(self, input)
        return output

    _BatchNorm.forward = forward
    atexit.register(_print_summary, fuse)


def _count(layer: nn.Module, src: Any) -> None:
    """Count a layer in training for the summary, when it runs for the first time."""
    if not layer.training or layer in _counted or not isinstance(src, Tensor):
        return
    _counted.add(layer)
    kind = type(layer).__name__
    if not src.is_cpu:
        _skipped[f"{kind} on {src.device.type}"] += 1
    elif src.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        _skipped[f"{kind} of {src.dtype}"] += 1
    else:
        _used[kind] += 1


def _print_summary(fuse: bool) -> None:
    if not _used and not _skipped:
        return
    skipped = ", ".join(f"{count} {kind}" for kind, count in _skipped.items())
    print(
        f"onedsl.torch: {sum(_used.values())} batch-norm layers used onedsl"
        f"{', fused where a ReLU follows' if fuse else ''}; "
        f"{sum(_skipped.values())} skipped{f' ({skipped})' if skipped else ''}",
        file=sys.stderr,
    )
