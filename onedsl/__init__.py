"""Batch normalization training on CPUs for NumPy, PyTorch and JAX, based on oneDNN.

**Operators**

- `BatchNormTrainingBackward`: the gradient, the op of that name in oneDNN's Graph API. Its
  docstring describes arrays, errors and backends, which all operators share.
- `BatchNormForwardTraining`: the forward pass.
- `BatchNormActForwardTraining`, `BatchNormActTrainingBackward`: the forward pass and the gradient
  of batch norm, an optional residual addition and an activation (ReLU, ReLU6, LeakyReLU, SiLU,
  Hardswish or GELU) in one operator. The gradient recomputes the activation's argument, or reads
  the mask of a ReLU from dst.
- `BatchNormTrainingBackprop`: the gradient for statistics of the batch, with the names of oneDNN's
  Graph specification.
- `BatchNormalizationGrad`: the gradient for constant statistics, with the names of DirectML.

Which gradient do I want?

- Statistics of the batch (training): `BatchNormTrainingBackward`. With ``outputs="diff_src"`` it
  ignores gamma, as oneDNN documents. `BatchNormTrainingBackprop` always uses gamma.
- Constant statistics (evaluation, fine-tuning with frozen layers): `BatchNormalizationGrad`.
- Tensors of autograd or tracers: ``batch_norm_backward`` of `onedsl.torch` and `onedsl.jax`, for
  both kinds of statistics. It always uses gamma.

**Arguments and results**

- `TensorSpec`, `DataFormat`: descriptions of tensors.
- `BatchNormGradients`, `BatchNormForward`, `BatchNormActGradients`, `BatchNormDeltas` and
  `BatchNormalizationGradients`: the results of calls.
- `BatchNormSums`, `BatchNormMoments`, of the base `BatchNormTotals`: the results of ``reduce``.
- `OneDNNError`, `UnsupportedError`, `GammaIgnoredWarning`, `OneDNNDefectWarning`.

**Inspection**

- `capabilities`, `Capabilities`, `Support`: what this machine and oneDNN support.
- `verbose`: logs every call with its kernel and time.
- `graph`: oneDNN's graphs, as written (``op.graph(spec)``) and as ``backend="onednn"`` runs them
  (``op.graph(spec).repaired()``).
- `testing`: float64 references of all formulas, for tests.

`onedsl.torch`, `onedsl.jax`, `onedsl.flax` and `onedsl.equinox` are imported separately. The
command line has ``onedsl info``, ``explain``, ``bench``, ``export`` and ``run``.

By default (``backend="auto"``), onedsl's own kernels compute the results. Their sums are accurate
for any number of elements per channel. They run all types on every x86-64 CPU. Their results are
bitwise identical for any number of threads on the same instruction set, except for the bits of a
NaN. ``backend="onednn"`` runs oneDNN, and `capabilities` lists what it supports on this CPU.

A batch may be processed in parts, for example slices of a file that is larger than memory or the
shares of several processes:

```python
op = onedsl.BatchNormTrainingBackward(epsilon=1e-5)
sums = sum(op.reduce(src, diff_dst, mean, variance) for src, diff_dst in parts)
for src, diff_dst in parts:
    grads = op.apply(sums, src, diff_dst, mean, variance, gamma)
```

Processes add ``sums.to_vector()`` with their own transport. The examples ``larger_than_memory.py``
and ``mpi.py`` show both. For tensors larger than the cache, the two passes took up to 1.04 times as
long as one call if the channels are last, and up to 1.5 times if they are second.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from typing import TYPE_CHECKING

from .runtime.import_errors import import_error_message, subinterpreter_error

if _message := subinterpreter_error():
    raise ImportError(_message, name="onedsl")
try:
    import onedsl._core  # noqa: F401 - `from . import` would report a partially initialized module
except ImportError as _error:
    if isinstance(_error.__cause__, KeyboardInterrupt):  # pybind11 raises an ImportError from it
        raise _error.__cause__ from None
    raise ImportError(import_error_message(_error), name=_error.name, path=_error.path) from _error

from . import _core as _core  # after an interrupted import, it is loaded, and not yet bound

if (_cap := _core.unknown_native_cap()) is not None:
    warnings.warn(
        f"ONEDSL_MAX_CPU_ISA must be one of {_core.known_native_caps()}, got {_cap!r}. "
        "The value is ignored.",
        RuntimeWarning,
        stacklevel=2,
    )

from . import graph, testing
from .operators.batch_norm_act_forward_training import BatchNormActForwardTraining
from .operators.batch_norm_act_training_backward import (
    BatchNormActGradients,
    BatchNormActTrainingBackward,
)
from .operators.batch_norm_forward_training import BatchNormForward, BatchNormForwardTraining
from .operators.batch_norm_training_backprop import BatchNormDeltas, BatchNormTrainingBackprop
from .operators.batch_norm_training_backward import BatchNormGradients, BatchNormTrainingBackward
from .operators.batch_normalization_grad import BatchNormalizationGrad, BatchNormalizationGradients
from .operators.capabilities import Capabilities, Support, capabilities
from .operators.totals import BatchNormMoments, BatchNormSums, BatchNormTotals
from .runtime.errors import GammaIgnoredWarning, OneDNNDefectWarning, OneDNNError, UnsupportedError
from .runtime.run_log import verbose
from .tensors.spec import DataFormat, TensorSpec

__docformat__ = "numpy"
__version__ = importlib.metadata.version("onedsl")

# The order of the API pages.
__all__ = [  # noqa: RUF022
    "BatchNormTrainingBackward",
    "BatchNormForwardTraining",
    "BatchNormActForwardTraining",
    "BatchNormActTrainingBackward",
    "BatchNormTrainingBackprop",
    "BatchNormalizationGrad",
    "TensorSpec",
    "DataFormat",
    "BatchNormGradients",
    "BatchNormForward",
    "BatchNormActGradients",
    "BatchNormDeltas",
    "BatchNormalizationGradients",
    "BatchNormSums",
    "BatchNormMoments",
    "BatchNormTotals",
    "OneDNNError",
    "UnsupportedError",
    "GammaIgnoredWarning",
    "OneDNNDefectWarning",
    "capabilities",
    "Capabilities",
    "Support",
    "verbose",
    "graph",
    "testing",
    "__version__",
]


_INTEGRATIONS = {"equinox", "flax", "jax", "torch"}  # modules that are not imported here


def __dir__() -> list[str]:
    return [*__all__, *(_INTEGRATIONS & globals().keys())]


if not TYPE_CHECKING:  # with __getattr__, type checkers would accept every name

    def __getattr__(name: str) -> object:
        remedy = f"; import onedsl.{name} first" if name in _INTEGRATIONS else ""
        raise AttributeError(f"module 'onedsl' has no attribute {name!r}{remedy}")
