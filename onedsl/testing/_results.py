"""Results of the reference implementations, with the members of the operators' results."""

# Without `from __future__ import annotations`: pdoc could not resolve the types of the fields.

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


class Gradients(NamedTuple):
    """Float64 arrays, named as in `onedsl.BatchNormGradients`."""

    diff_src: Float64
    diff_gamma: Float64
    diff_beta: Float64


class ReLUGradients(NamedTuple):
    """Float64 arrays, named as in `onedsl.BatchNormReLUGradients`."""

    diff_src: Float64
    diff_gamma: Float64
    diff_beta: Float64
    diff_residual: Float64


class ActGradients(NamedTuple):
    """Float64 arrays, named as in `onedsl.BatchNormActGradients`."""

    diff_src: Float64
    diff_gamma: Float64
    diff_beta: Float64
    diff_residual: Float64


class Forward(NamedTuple):
    """Float64 arrays, named as in `onedsl.BatchNormForward`."""

    dst: Float64
    running_mean: Float64
    running_variance: Float64
    batch_mean: Float64
    batch_variance: Float64


class FrozenGradients(NamedTuple):
    """Float64 arrays, named as in `onedsl.BatchNormalizationGradients`."""

    output_gradient: Float64
    output_scale_gradient: Float64
    output_bias_gradient: Float64
