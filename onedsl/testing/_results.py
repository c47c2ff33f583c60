"""Results of the reference implementations, with the members of the operators' results."""

# Without `from __future__ import annotations`: pdoc could not resolve the types of the fields.

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


class Terms(NamedTuple):
    """What the rounding errors of an array's elements are compared with."""

    magnitude: Float64
    """For each element, the sum of the absolute values of its terms."""
    sums: Float64 | float = 0.0
    """The same of those terms that are sums over the channel: the mean in dst, for example."""
    slack: Float64 | float = 0.0
    """An error that is allowed in any case. It is 0, unless rounding decides on which side of a
    kink the argument of an activation is."""


class Result:
    """A result of a reference implementation."""

    terms: tuple[Terms, ...] | None = None
    """The terms of each member. None for a result that no reference implementation returned."""


class _Gradients(NamedTuple):
    diff_src: Float64
    diff_gamma: Float64
    diff_beta: Float64


class Gradients(_Gradients, Result):
    """Float64 arrays, named as in `onedsl.BatchNormGradients`."""


class _ActGradients(NamedTuple):
    diff_src: Float64
    diff_gamma: Float64
    diff_beta: Float64
    diff_residual: Float64


class ActGradients(_ActGradients, Result):
    """Float64 arrays, named as in `onedsl.BatchNormActGradients`."""


class _Forward(NamedTuple):
    dst: Float64
    running_mean: Float64
    running_variance: Float64
    batch_mean: Float64
    batch_variance: Float64


class Forward(_Forward, Result):
    """Float64 arrays, named as in `onedsl.BatchNormForward`."""


class _FrozenGradients(NamedTuple):
    output_gradient: Float64
    output_scale_gradient: Float64
    output_bias_gradient: Float64


class FrozenGradients(_FrozenGradients, Result):
    """Float64 arrays, named as in `onedsl.BatchNormalizationGradients`."""
