"""Batch normalization training on CPUs for NumPy, PyTorch and JAX, based on oneDNN.

`BatchNormTrainingBackward` computes the gradient, the op of that name in oneDNN's Graph API.
`BatchNormForwardTraining` computes the forward pass, and `BatchNormReLUForwardTraining` and
`BatchNormReLUTrainingBackward` are fused with a ReLU and an addition. `BatchNormTrainingBackprop`
and `BatchNormalizationGrad` are the gradient with the names of oneDNN's Graph specification and of
DirectML. `onedsl.torch` and `onedsl.jax` are imported separately.

By default (``backend="auto"``) onedsl's own kernels compute: their sums are accurate for any number
of elements per channel, all types run on every x86-64 CPU, results are bitwise identical for any
number of threads (except for the bits of a NaN), and they are usually faster. ``backend="onednn"``
runs oneDNN, and `capabilities` lists what it supports on this CPU.

A batch may be processed in parts, for example slices of a file that is larger than memory or the
shares of several processes:

```python
sums = sum(op.reduce(x, d, mean, variance) for x, d in parts)
for x, d in parts:
    grads = op.apply(sums, x, d, mean, variance, gamma)
```

Processes add ``sums.to_vector()`` with their own transport. The examples ``larger_than_memory.py``
and ``mpi.py`` show both. For tensors larger than the cache, the two passes take up to 1.04 times as
long as one call if the channels are last, and up to 1.5 times if they are second.

For inspection, `verbose` logs every call with its kernel and time, `Compiled.graph` is the graph
that oneDNN compiled, `onedsl.testing` has float64 references of all formulas, and
`onedsl.testing.check_statistics` finds wrong mean and variance arguments. The command line
(``pip install 'onedsl[cli]'``) has ``onedsl info``, ``explain``, ``bench``, ``export`` and ``run``.
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import onedsl._core  # `from . import` would report a partially initialized module
except ImportError as _error:
    from .runtime.import_errors import import_error_message as _import_error_message

    raise ImportError(_import_error_message(_error), name=_error.name, path=_error.path) from _error

if (_cap := onedsl._core.unknown_native_cap()) is not None:
    import warnings as _warnings

    from .runtime.import_errors import unknown_isa_cap_message as _cap_message

    _warnings.warn(
        _cap_message(_cap, onedsl._core.known_native_caps()), RuntimeWarning, stacklevel=2
    )

from . import graph, testing
from .operators._compiled import Compiled
from .operators._sums import BatchNormMoments, BatchNormSums
from .operators.batch_norm_forward_training import (
    BatchNormForward,
    BatchNormForwardTraining,
    CompiledBatchNormForwardTraining,
)
from .operators.batch_norm_relu_forward_training import (
    BatchNormReLUForwardTraining,
    CompiledBatchNormReLUForwardTraining,
)
from .operators.batch_norm_relu_training_backward import (
    BatchNormReLUGradients,
    BatchNormReLUTrainingBackward,
    CompiledBatchNormReLUTrainingBackward,
)
from .operators.batch_norm_training_backprop import (
    BatchNormDeltas,
    BatchNormTrainingBackprop,
    CompiledBatchNormTrainingBackprop,
)
from .operators.batch_norm_training_backward import (
    BatchNormGradients,
    BatchNormTrainingBackward,
    CompiledBatchNormTrainingBackward,
)
from .operators.batch_normalization_grad import (
    BatchNormalizationGrad,
    BatchNormalizationGradients,
    CompiledBatchNormalizationGrad,
)
from .runtime.capabilities import Capabilities, capabilities
from .runtime.errors import GammaIgnoredWarning, OneDNNError, UnsupportedError
from .runtime.plan_cache import PlanCounts, clear_plans, plan_counts
from .runtime.run_log import verbose
from .tensors.spec import DataFormat, TensorSpec

__docformat__ = "numpy"
__version__ = _version("onedsl")

__all__ = [
    "BatchNormDeltas",
    "BatchNormForward",
    "BatchNormForwardTraining",
    "BatchNormGradients",
    "BatchNormMoments",
    "BatchNormReLUForwardTraining",
    "BatchNormReLUGradients",
    "BatchNormReLUTrainingBackward",
    "BatchNormSums",
    "BatchNormTrainingBackprop",
    "BatchNormTrainingBackward",
    "BatchNormalizationGrad",
    "BatchNormalizationGradients",
    "Capabilities",
    "Compiled",
    "CompiledBatchNormForwardTraining",
    "CompiledBatchNormReLUForwardTraining",
    "CompiledBatchNormReLUTrainingBackward",
    "CompiledBatchNormTrainingBackprop",
    "CompiledBatchNormTrainingBackward",
    "CompiledBatchNormalizationGrad",
    "DataFormat",
    "GammaIgnoredWarning",
    "OneDNNError",
    "PlanCounts",
    "TensorSpec",
    "UnsupportedError",
    "__version__",
    "capabilities",
    "clear_plans",
    "graph",
    "plan_counts",
    "testing",
    "verbose",
]

if not _TYPE_CHECKING:  # with __getattr__, type checkers would accept every name

    def __getattr__(name: str) -> object:
        remedy = f"; import onedsl.{name} first" if name in ("jax", "torch") else ""
        raise AttributeError(f"module 'onedsl' has no attribute {name!r}{remedy}")
