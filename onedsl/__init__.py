"""The gradient of batch normalization on CPUs, by oneDNN's Graph API.

`BatchNormTrainingBackward` is oneDNN's op. `capabilities` says what runs how on this machine, and
`onedsl.testing` has the formulas in float64.
"""

from __future__ import annotations

from importlib.metadata import version as _version

try:
    import onedsl._core  # noqa: F401 - so, and not `from .`, for the error to say that there is none
except ImportError as _error:
    from ._load import explain as _explain

    raise ImportError(_explain(_error), name=_error.name, path=_error.path) from None

from . import testing
from ._capabilities import Capabilities, capabilities
from ._errors import GammaIgnoredWarning, OneDNNError, UnsupportedError
from ._operators import (
    BatchNormalizationGrad,
    BatchNormalizationGradients,
    BatchNormDeltas,
    BatchNormGradients,
    BatchNormTrainingBackprop,
    BatchNormTrainingBackward,
    Compiled,
)
from ._spec import DataFormat, TensorSpec

__version__ = _version("onedsl")

__all__ = [
    "BatchNormDeltas",
    "BatchNormGradients",
    "BatchNormTrainingBackprop",
    "BatchNormTrainingBackward",
    "BatchNormalizationGrad",
    "BatchNormalizationGradients",
    "Capabilities",
    "Compiled",
    "DataFormat",
    "GammaIgnoredWarning",
    "OneDNNError",
    "TensorSpec",
    "UnsupportedError",
    "__version__",
    "capabilities",
    "testing",
]
