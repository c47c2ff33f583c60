"""onedsl in PyTorch's training.

`enable` gives every model of the process onedsl's kernels, where PyTorch's own batch norm would
run. `fuse` makes one layer of each batch norm of a model and the ReLU behind it.

`BatchNorm1d`, `BatchNorm2d` and `BatchNorm3d` are torch.nn's with another backward pass, `convert`
puts them into a model that is there already, and `batch_norm` is their function.
`batch_norm_backward` is the gradient alone, a ``torch.library`` custom op:
``torch.ops.onedsl.batch_norm_backward``.

`SyncBatchNorm` is torch.nn's for CPUs: batch norm by the statistics of all processes that train
together. ``convert(model, process_group=None)`` puts it into a model.

PyTorch is imported here and nowhere else in onedsl: ``import onedsl.torch`` needs
``pip install 'onedsl[torch]'``.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 - absolute: PyTorch, not this package
except ImportError as _error:
    raise ImportError("onedsl.torch needs PyTorch: pip install torch", name="torch") from _error

from ._convert import convert, revert
from ._enable import disable, enable, enabled
from ._fuse import (  # the classes: for models that were saved
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
