"""The operator classes under test, and bounds of their rounding errors.

To test another class, add a row to TARGETS.

The exact outputs are those of `onedsl.testing`. The functions here compute from the inputs and the
exact outputs what tolerances depend on. The magnitude of an output is the sum of the absolute
values of its terms; rounding errors are proportional to it. Its slack is an absolute tolerance: if
rounding decides whether a ReLU passes a gradient, both results are correct.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import onedsl
from onedsl import testing
from onedsl.operators.attributes import ACTIVATIONS
from onedsl.operators.schema import OpSchema


class Bound(NamedTuple):
    """The magnitude and the slack of an output."""

    magnitude: np.ndarray
    slack: np.ndarray | float = 0.0


Values = Mapping[str, Any]
"""The inputs in float64 and the attributes. Keys are the names in oneDNN's documentation.

Statistics have a shape that broadcasts to the tensors. Omitted inputs are None."""

Bounds = Callable[[Values, tuple[int, ...], Sequence[np.ndarray]], list[Bound]]
"""A function that computes the bounds from the values, the summed axes and the exact outputs."""

PIVOT = 2.0**-11
"""Largest relative difference between the mean and the pivot that kernels subtract from src."""


def total(terms: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the sums of the terms over the axes, with size 1 in these axes."""
    return np.sum(terms, axis=axes, keepdims=True)


def training_gradients(v: Values, axes: tuple[int, ...], _: Sequence[np.ndarray]) -> list[Bound]:
    """Return the bounds of the gradients for statistics of the batch."""
    return _gradients(v, axes, v["diff_dst"])


def frozen_gradients(v: Values, axes: tuple[int, ...], _: Sequence[np.ndarray]) -> list[Bound]:
    """Return the bounds of the gradients for constant statistics."""
    return _gradients(v, axes, v["diff_dst"], frozen=True)


def _gradients(
    v: Values,
    axes: tuple[int, ...],
    d: np.ndarray,
    d_slack: np.ndarray | float = 0.0,
    frozen: bool = False,
) -> list[Bound]:
    """Return the bounds of batch norm's gradients for the gradient `d` of its output."""
    x, mean = v["src"], v["mean"]
    r = 1 / np.sqrt(v["variance"] + v["epsilon"])
    xhat = np.abs((x - mean) * r)
    factor = xhat + PIVOT * np.abs(mean) * r
    scale = np.abs(r if v["gamma"] is None else v["gamma"] * r)

    def sums_of(terms: np.ndarray) -> list[np.ndarray]:
        gamma, beta = total(terms * factor, axes), total(terms, axes)
        if not frozen and x.size:
            terms = terms + (beta + xhat * gamma) * mean.size / x.size
        return [scale * terms, gamma, beta]

    slacks = sums_of(np.broadcast_to(d_slack, d.shape))
    return list(map(Bound, sums_of(np.abs(d)), slacks))


def act_gradients(v: Values, axes: tuple[int, ...], exact: Sequence[np.ndarray]) -> list[Bound]:
    """Return the bounds of the gradients of batch norm and an activation."""
    d, name = exact[-1], v["activation"]
    if v["dst"] is not None:
        return [*_gradients(v, axes, d), Bound(np.abs(d))]
    # A ReLU's mask depends on the rounding of dst to its type.
    y, margin = _argument(v, 2.0**-7 if name == "relu" else 2.0**-18)
    kinks = {"relu": (0, v["clip"]), "leaky_relu": (0,), "hardswish": (-3, 3)}.get(name, ())
    # The second derivatives are below 1.2.
    uncertain = 1.5 * _is_near(y, kinks, margin) + (0 if name == "relu" else 1.2) * margin
    slack = np.abs(v["diff_dst"]) * uncertain
    return [*_gradients(v, axes, d, slack), Bound(np.abs(d), slack)]


def _argument(v: Values, precision: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the argument of the activation, and the error of an argument in this precision."""
    y = argument_of(
        *(v[name] for name in ("src", "mean", "variance", "gamma", "beta")),
        v.get("residual"),
        epsilon=v["epsilon"],
        data_format=v["data_format"],
    )
    magnitude = _magnitude_of_dst(v, v["mean"], v["variance"] + v["epsilon"])
    return y, (np.abs(y) + magnitude) * precision + 2.0**-24


def _is_near(y: np.ndarray, kinks: Iterable[float | None], margin: np.ndarray) -> np.ndarray:
    """Return where an argument may be on either side of a kink."""
    near = [np.abs(y - kink) <= margin for kink in kinks if kink is not None]
    return np.any(near, axis=0) if near else np.zeros(y.shape, bool)


def _magnitude_of_dst(
    v: Values, mean: np.ndarray, sum_: np.ndarray, condition: np.ndarray | float = 1.0
) -> np.ndarray:
    """Return the magnitude of dst before the activation, where `sum_` is variance + epsilon.

    `condition` is the magnitude of the variance's terms, divided by the variance.
    """
    deviation = np.abs(v["src"] - mean) * (1 + condition) + np.abs(mean)
    gamma = 1 if v["gamma"] is None else v["gamma"]
    added = [v[name] for name in ("beta", "residual") if v.get(name) is not None]
    return sum(map(np.abs, added), np.abs(gamma) * deviation / np.sqrt(sum_))


def forward(v: Values, axes: tuple[int, ...], exact: Sequence[np.ndarray]) -> list[Bound]:
    """Return the bounds of the forward pass, with the activation that the operator has, if any."""
    x, old = v["src"], [v["mean"], v["variance"]]
    if not x.size:
        return [Bound(np.abs(output)) for output in exact]
    *_, mean, variance = exact
    count = x.size // mean.size
    of_mean = total(np.abs(x), axes) / count
    of_variance = total((np.abs(x - mean) + PIVOT * of_mean) ** 2, axes) / count
    sum_ = variance + v["epsilon"]
    dst = _magnitude_of_dst(v, mean, sum_, (of_variance + v["epsilon"]) / sum_)
    dst = dst + np.abs(1 if v["gamma"] is None else v["gamma"]) * of_mean / np.sqrt(sum_)
    if "activation" in v:
        dst = 1.2 * dst  # the largest slope is 1.13
    momentum = 0.5 if v["momentum"] is None else v["momentum"]
    running = [
        momentum * np.abs(a) + (1 - momentum) * batch
        for a, batch in zip(old, (of_mean, of_variance), strict=True)
    ]
    return list(map(Bound, [dst, *running, of_mean, of_variance]))


def argument_of(
    src: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    gamma: np.ndarray | None,
    beta: np.ndarray | None,
    residual: np.ndarray | None = None,
    *,
    epsilon: float,
    data_format: Any,
) -> np.ndarray:
    """Return the argument of the activation in float64."""
    statistics = (None if a is None else np.reshape(a, -1) for a in (mean, variance, gamma, beta))
    mean, variance, gamma, beta = statistics
    options = {"epsilon": epsilon, "data_format": data_format, "mean": mean, "variance": variance}
    y = testing.batch_norm(src, gamma, beta, **options)
    return y if residual is None else y + residual


@dataclass(frozen=True)
class Target:
    """An operator class, and the bounds and the exact values of its outputs."""

    cls: type[Any]
    bounds: Bounds
    reference: Callable[..., Any]
    """The float64 outputs: a function of the operator's inputs and, by keyword, its attributes."""
    option: tuple[str, Any, Any] | None = None
    """The option that requests outputs: its name, its value for all outputs, and for fewer."""

    @functools.cached_property
    def schema(self) -> OpSchema:
        """The schema of the class."""
        schema: OpSchema = self.cls(1.0, **self.required)._schema
        return schema

    @property
    def required(self) -> Mapping[str, Any]:
        """Values of the attributes without a default, except epsilon."""
        return {"activation": "relu"} if "activation" in self.attributes else {}

    @property
    def attributes(self) -> Mapping[str, list[Any]]:
        """Valid values of each attribute, except epsilon and data_format."""
        return {name: values for name, values in ATTRIBUTES.items() if hasattr(self.cls, name)}

    @property
    def reduce_inputs(self) -> int:
        """The number of inputs of the method `reduce`, or 0 if the class has no such method."""
        method = getattr(self.cls, "reduce", None)
        return len(inspect.signature(method).parameters) - 1 if method else 0

    @property
    def broadcast(self) -> bool:
        """Whether statistics have src's rank and broadcast to it."""
        return not hasattr(self.cls, "data_format")


ATTRIBUTES = {
    "momentum": [None, 0.0, 0.1, 0.9, 1.0],
    "activation": list(ACTIVATIONS),
    "clip": [None, None, 6.0, 0.5],
    "negative_slope": [None, 0.2, 0.0, -0.5],
}

TARGETS = [
    Target(
        onedsl.BatchNormTrainingBackward,
        training_gradients,
        testing.batch_norm_backward,
        ("outputs", "all", "diff_src"),
    ),
    Target(
        onedsl.BatchNormTrainingBackprop,
        training_gradients,
        testing.batch_norm_backward,
        ("outputs", "all", "input_delta"),
    ),
    Target(
        onedsl.BatchNormalizationGrad,
        frozen_gradients,
        testing.batch_normalization_grad,
        ("outputs", "all", "output_gradient"),
    ),
    Target(onedsl.BatchNormForwardTraining, forward, testing.batch_norm_forward_training),
    Target(onedsl.BatchNormActForwardTraining, forward, testing.batch_norm_forward_training),
    Target(
        onedsl.BatchNormActTrainingBackward,
        act_gradients,
        testing.batch_norm_act_backward,
        ("diff_residual", True, False),
    ),
]
