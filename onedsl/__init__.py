"""The gradient of batch normalization on CPUs: oneDNN's op, for NumPy, PyTorch and JAX.

`BatchNormTrainingBackward` is the op of that name in oneDNN's Graph API. What computes it by
default (``backend="auto"``) is onedsl's own kernels: their sums stay accurate however many elements
a channel has, they run every type on every x86-64 CPU, they give the same bits on any number of
threads (a NaN stays one, with any of its bits), and as a rule they are faster.
``backend="onednn"`` asks for oneDNN's Graph API itself.

`BatchNormTrainingBackprop` and `BatchNormalizationGrad` are the same gradient in the words of two
other documents. `capabilities` says what this machine's oneDNN runs by itself, and `onedsl.testing`
has the formulas in float64. `onedsl.torch` and `onedsl.jax` are imported separately.

A batch may come in parts: slices of a file that is larger than memory, or what each process of a
cluster holds. `BatchNormTrainingBackward.reduce` and its ``apply`` are a call's two passes, and
`BatchNormForwardTraining` has the same. The sums of all parts stand between them, and add up:

```python
sums = sum(op.reduce(x, d, mean, variance) for x, d in parts)
for x, d in parts:
    grads = op.apply(sums, x, d, mean, variance, gamma)
```

Over processes it is ``sums.to_vector()`` that is added up, by whatever connects them. The examples
``larger_than_memory.py`` and ``mpi.py`` do both. Out of the cache the two passes take 1.01 to 1.04
times as long as the call where the channels are last. Where they are second, a call keeps some
channels in the cache from the first pass to the second, which passes by themselves cannot: 1.1 to
1.5 times as long.

What runs, and why, is open to look at: `Compiled.graph` and `Compiled.draw` show the graph that
oneDNN made (`onedsl.graph`), `verbose` has every call logged with its kernel and its time, and
`onedsl.testing.check_statistics` tells the mistakes that no call can refuse.

The command line (``pip install 'onedsl[cli]'``) has them too: ``onedsl info`` shows what runs here,
``onedsl explain 32x56x56x64`` what will run for a tensor, why, and how fast, ``onedsl export`` and
``onedsl run`` write and run oneDNN's graph files, with benchdnn's rewrites, and ``onedsl bench``
compares with oneDNN and PyTorch, or with an earlier run (``--compare``). The exit status is 0 for
success, 2 for a mistake, 1 for a verification that failed or a regression:

```text
$ onedsl export 2x71x71x192 -o graph.json && onedsl run graph.json --dt=bf16 --seconds 3
graph.json: BatchNormTrainingBackward, src bf16 2x71x71x192 NXC, statistics f32, epsilon 1e-05
backend      output  relative L2  allowed        time, us
──────────────────────────────────────────────────────────
native     diff_src     1.64e-03  3.9e-03  PASS     1,162
native   diff_gamma     1.96e-09  1.0e-06  PASS
native    diff_beta     0.00e+00  1.0e-06  PASS

onednn     diff_src     1.64e-03  3.9e-03  PASS     5,918
onednn   diff_gamma     1.96e-09  1.0e-06  PASS
onednn    diff_beta     0.00e+00  1.0e-06  PASS
PASS
```
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import onedsl._core  # so, and not `from .`, for the error to say that there is none
except ImportError as _error:
    from .runtime.import_errors import import_error_message as _import_error_message

    raise ImportError(_import_error_message(_error), name=_error.name, path=_error.path) from _error

if (_cap := onedsl._core.unknown_native_cap()) is not None:
    import warnings as _warnings

    from .runtime.import_errors import unknown_isa_cap_message as _message

    _warnings.warn(_message(_cap, onedsl._core.known_native_caps()), RuntimeWarning, stacklevel=2)

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

if not _TYPE_CHECKING:  # a type checker would take every name for one that there is

    def __getattr__(name: str) -> object:
        cure = f"; import onedsl.{name} first" if name in ("jax", "torch") else ""
        raise AttributeError(f"module 'onedsl' has no attribute {name!r}{cure}")
