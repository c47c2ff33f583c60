"""The gradient of batch normalization on CPUs: oneDNN's op, for NumPy, PyTorch and JAX.

`BatchNormTrainingBackward` is the op of that name in oneDNN's Graph API. What computes it by
default (``backend="auto"``) is onedsl's own kernels: their sums stay accurate however many elements
a channel has, they run every type on every x86-64 CPU, they give the same bits on any number of
threads, and as a rule they are faster. ``backend="onednn"`` asks for oneDNN's Graph API itself.

`BatchNormTrainingBackprop` and `BatchNormalizationGrad` are the same gradient in the words of two
other documents. `capabilities` says what this machine's oneDNN runs by itself, and `onedsl.testing`
has the formulas in float64. `onedsl.torch` and `onedsl.jax` are imported separately.
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import onedsl._core  # so, and not `from .`, for the error to say that there is none
except ImportError as _error:
    from ._load import explain as _explain

    raise ImportError(_explain(_error), name=_error.name, path=_error.path) from _error

if (_cap := onedsl._core.unknown_native_cap()) is not None:
    import warnings as _warnings

    from ._load import unknown_cap as _unknown_cap

    _warnings.warn(
        _unknown_cap(_cap, onedsl._core.known_native_caps()), RuntimeWarning, stacklevel=2
    )

from . import graph, testing
from ._capabilities import Capabilities, capabilities
from ._errors import GammaIgnoredWarning, OneDNNError, UnsupportedError
from ._plans import PlanCounts, clear_plans, plan_counts
from ._spec import DataFormat, TensorSpec
from ._verbose import verbose
from .operators._compiled import Compiled
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

__docformat__ = "numpy"
__version__ = _version("onedsl")

__all__ = [
    "BatchNormDeltas",
    "BatchNormForward",
    "BatchNormForwardTraining",
    "BatchNormGradients",
    "BatchNormReLUForwardTraining",
    "BatchNormReLUGradients",
    "BatchNormReLUTrainingBackward",
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
