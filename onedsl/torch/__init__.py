"""Batch normalization for training with PyTorch on CPUs.

Nothing in a model is changed. There are two switches, for any model:

- `enable` replaces PyTorch's batch-norm kernels by onedsl's in eager mode, in the whole process.
- ``torch.compile(model, backend="onedsl")`` compiles with inductor, PyTorch's default compiler, and
  onedsl's batch norm. An addition and an activation that follow are computed by the same operator,
  forward and backward: ReLU, ReLU6, LeakyReLU, SiLU, Hardswish or GELU. Neither an import of onedsl
  nor `enable` is needed. The logger ``onedsl.torch`` (level INFO) lists the batch norms of each
  graph that is compiled. If PyTorch loads a graph from its cache, the logger lists the forward
  passes only, when the graph first runs. ``mode`` and ``options`` are those of inductor. PyTorch
  passes them to the backend in the first call of the model, so invalid ones are an error there.

Compiled steps need less memory if PyTorch's setting
``torch._functorch.config.activation_memory_budget`` is below 1, for example 0.5, in the first call
of the model. The backward pass then computes batch norms and activations again, instead of storing
their results: with the same bits if onedsl computes them. Inductor's own batch norms, such as those
of a model in bf16 (``model.bfloat16()``), can get other bits, with inductor alone, too.

``python -m onedsl.torch train.py`` runs a script with `enable`, and with "onedsl" as the default
backend of torch.compile. With ``--compare``, it also runs the script with PyTorch alone, and
compares the times of a step. `report` counts the calls of each layer of a model, by what computes
them.

For people who write models and layers:

- `BatchNormAct2d` and its 1-D and 3-D forms are batch norm, an optional addition and an activation
  in one layer, in eager mode as well.
- `SyncBatchNorm` is torch.nn.SyncBatchNorm for CPUs. Its statistics are those of the batches of all
  processes that train together.
- `batch_norm_backward` is the gradient alone, which can be differentiated again.

`enable` also lets PyTorch use huge pages, if it is called before the first tensor. Programs with
the compiler's backend or the layers alone set ``THP_MEM_ALLOC_ENABLE=1`` in the environment.

With ``ONEDSL_DISABLE=1`` in the environment, `enable` does nothing, and the backend is inductor.

`enable` is a setting of the process: call it once at the start of the program, and in each process
that is spawned. A forked process inherits it. It has no effect on compiled models.

Requires PyTorch 2.11 or newer, which the extra ``torch`` installs. No other module of onedsl
imports PyTorch.
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

from ._enable import disable, enable, enabled
from ._gradient import batch_norm_backward
from ._layers import (
    BatchNormAct1d,
    BatchNormAct2d,
    BatchNormAct3d,
)
from ._report import report
from ._sync import SyncBatchNorm

__docformat__ = "numpy"

__all__ = [
    "BatchNormAct1d",
    "BatchNormAct2d",
    "BatchNormAct3d",
    "SyncBatchNorm",
    "batch_norm_backward",
    "disable",
    "enable",
    "enabled",
    "report",
]
