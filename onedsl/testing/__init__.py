"""Float64 reference implementations and comparison helpers, for users' own tests.

The reference implementations use NumPy only. They call neither oneDNN nor onedsl's kernels.
"""

from . import _reference
from ._compare import SUM_TOLERANCES, TOLERANCES, assert_close, relative_l2
from ._problems import Problem, random_problem
from ._reference import *  # noqa: F403 - all formulas
from ._results import ActGradients, Forward, FrozenGradients, Gradients, Terms
from ._terms import ONEDNN_SUM_ERROR, onednn_sum_error

__docformat__ = "numpy"

__all__ = [
    "ONEDNN_SUM_ERROR",
    "SUM_TOLERANCES",
    "TOLERANCES",
    "ActGradients",
    "Forward",
    "FrozenGradients",
    "Gradients",
    "Problem",
    "Terms",
    "assert_close",
    "onednn_sum_error",
    "random_problem",
    "relative_l2",
]
__all__ += _reference.__all__


def __dir__() -> list[str]:
    return __all__
