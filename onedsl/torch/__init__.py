"""Batch normalization for training with PyTorch on CPUs.

- `enable` replaces PyTorch's batch-norm kernels by onedsl's in the whole process.
- `fuse` changes the batch-norm layers of a model: one kernel then computes a layer and the addition
  and the ReLU that follow it. `fuse` changes no other layer. It works under torch.compile.
- `convert` replaces the batch-norm layers of a model by `BatchNorm1d`, `BatchNorm2d` and
  `BatchNorm3d`, which are torch.nn's layers with onedsl's gradient. If ``process_group`` is given,
  it replaces them by `SyncBatchNorm`. `revert` undoes `convert` and `fuse`.
- `batch_norm` is the functional form of these layers. `batch_norm_backward` is the gradient alone,
  the custom op ``torch.ops.onedsl.batch_norm_backward``.
- `SyncBatchNorm` is torch.nn.SyncBatchNorm for CPUs. Its statistics are those of the batches of all
  processes that train together.
- `report` lists the layers that `fuse` and `convert` skipped, and why.

Which to use: ``fuse(model)`` and `enable` in eager mode, ``torch.compile(fuse(model))`` in compiled
models, where `enable` has no effect. `enable` is a setting of the process: call it once at the
start of the program, and in each process that is spawned. A forked process inherits it.

``python -m onedsl.torch [--fuse] train.py`` calls `enable` and runs a script. With ``--fuse``, the
batch-norm layers of all models of the script also behave as after `fuse`. Processes that the script
spawns do the same.

Requires PyTorch 2.11 or newer: ``pip install 'onedsl[torch]'``. No other module of onedsl imports
PyTorch.
"""

from __future__ import annotations

try:
    import torch as _torch  # absolute: PyTorch, not this package
except ImportError as _error:
    raise ImportError("onedsl.torch requires PyTorch: pip install torch", name="torch") from _error

if tuple(map(int, _torch.__version__.split(".")[:2])) < (2, 11):
    raise ImportError(
        f"onedsl.torch requires PyTorch 2.11 or newer, got {_torch.__version__}: "
        "pip install 'torch>=2.11'",
        name="torch",
    )

from ._convert import convert, revert
from ._enable import disable, enable, enabled
from ._fuse import (  # saved models refer to the classes by their names in onedsl.torch
    FusedBatchNorm1d,  # noqa: F401
    FusedBatchNorm2d,  # noqa: F401
    FusedBatchNorm3d,  # noqa: F401
    FusedConvertedBatchNorm1d,  # noqa: F401
    FusedConvertedBatchNorm2d,  # noqa: F401
    FusedConvertedBatchNorm3d,  # noqa: F401
    fuse,
)
from ._layers import BatchNorm1d, BatchNorm2d, BatchNorm3d, batch_norm
from ._op import batch_norm_backward
from ._relu_layers import (
    BatchNormAddReLU1d,
    BatchNormAddReLU2d,
    BatchNormAddReLU3d,
    BatchNormReLU1d,
    BatchNormReLU2d,
    BatchNormReLU3d,
)
from ._report import LayerReport, ModelReport, report
from ._sync import SyncBatchNorm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BatchNormAddReLU1d",
    "BatchNormAddReLU2d",
    "BatchNormAddReLU3d",
    "BatchNormReLU1d",
    "BatchNormReLU2d",
    "BatchNormReLU3d",
    "LayerReport",
    "ModelReport",
    "SyncBatchNorm",
    "batch_norm",
    "batch_norm_backward",
    "convert",
    "disable",
    "enable",
    "enabled",
    "fuse",
    "report",
    "revert",
]
