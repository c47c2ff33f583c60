"""The operator classes under test, and their formulas in float64.

To test another class, add a row to TARGETS.

A formula also returns what the tolerances are computed from. The magnitude of a result is the sum
of the absolute values of its terms; rounding errors are proportional to it. Its slack is an
absolute tolerance: if rounding decides whether a ReLU passes a gradient, both results are correct.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import onedsl
from onedsl import testing
from onedsl.operators.schema import OpSchema
from onedsl.testing.activations import evaluate


class Expected(NamedTuple):
    """An expected output in float64, with its magnitude and its slack."""

    value: np.ndarray
    magnitude: np.ndarray
    slack: np.ndarray | float = 0.0


Values = Mapping[str, Any]
"""The inputs in float64 and the attributes. Keys are the names in oneDNN's documentation.

Statistics have a shape that broadcasts to the tensors. Omitted inputs are None."""

Formula = Callable[[Values, tuple[int, ...]], list[Expected]]
"""A function that computes the outputs from the values and the summed axes."""

PIVOT = 2.0**-11
"""Largest relative difference between the mean and the pivot that kernels subtract from src."""


def total(terms: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the sums of the terms over the axes, with size 1 in these axes."""
    return np.sum(terms, axis=axes, keepdims=True)


def training_gradients(v: Values, axes: tuple[int, ...]) -> list[Expected]:
    """Compute the gradients for statistics of the batch."""
    return _gradients(v, axes, v["diff_dst"], np.zeros_like(v["diff_dst"]))


def frozen_gradients(v: Values, axes: tuple[int, ...]) -> list[Expected]:
    """Compute the gradients for constant statistics."""
    return _gradients(v, axes, v["diff_dst"], np.zeros_like(v["diff_dst"]), frozen=True)


def _gradients(
    v: Values, axes: tuple[int, ...], d: np.ndarray, d_slack: np.ndarray, frozen: bool = False
) -> list[Expected]:
    """Compute the gradients of batch norm from its output's gradient `d`, with slack `d_slack`."""
    x, mean = v["src"], v["mean"]
    gamma = np.ones_like(mean) if v["gamma"] is None else v["gamma"]
    r = 1 / np.sqrt(v["variance"] + v["epsilon"])
    xhat = (x - mean) * r
    factor = np.abs(xhat) + PIVOT * np.abs(mean) * r
    beta = Expected(total(d, axes), total(np.abs(d), axes), total(d_slack, axes))
    product = Expected(
        total(d * xhat, axes), total(np.abs(d) * factor, axes), total(d_slack * factor, axes)
    )
    value, magnitude, slack = d, np.abs(d), d_slack
    if not frozen and x.size:
        count = x.size // mean.size
        value = d - beta.value / count - xhat * product.value / count
        magnitude = magnitude + (beta.magnitude + np.abs(xhat) * product.magnitude) / count
        slack = slack + (beta.slack + np.abs(xhat) * product.slack) / count
    scale = np.abs(gamma * r)
    return [Expected(gamma * r * value, scale * magnitude, scale * slack), product, beta]


def relu_gradients(v: Values, axes: tuple[int, ...]) -> list[Expected]:
    """Compute the gradients of batch norm and ReLU."""
    d, bound = v["diff_dst"], np.inf if v["clip"] is None else v["clip"]
    dst, slack = v["dst"], np.zeros_like(d)
    if dst is None:  # the kernel computes dst, and its rounding may cross 0 or the bound
        computed = _dst(v, v["mean"], 1 / np.sqrt(v["variance"] + v["epsilon"]))
        dst = computed.value
        margin = (np.abs(dst) + computed.magnitude) * 2.0**-7 + 2.0**-24
        undecided = (np.abs(dst) <= margin) | (np.abs(dst - bound) <= margin)
        slack = np.where(undecided, np.abs(d), 0)
    d = np.where((dst <= 0) | (dst >= bound), 0, d)
    return [*_gradients(v, axes, d, slack), Expected(d, np.abs(d), slack)]


def parameter_of(v: Values) -> float | None:
    """Return the parameter of the activation."""
    return v["clip"] if v["activation"] == "relu" else v["negative_slope"]


def act_gradients(v: Values, axes: tuple[int, ...]) -> list[Expected]:
    """Compute the gradients of batch norm and an activation."""
    d, name = v["diff_dst"], v["activation"]
    argument = _dst(v, v["mean"], 1 / np.sqrt(v["variance"] + v["epsilon"]))
    y = argument.value
    # A ReLU's mask depends on the rounding of dst to its type.
    precision = 2.0**-7 if name == "relu" else 2.0**-18
    margin = (np.abs(y) + argument.magnitude) * precision + 2.0**-24
    kinks = {"relu": (0, v["clip"]), "leaky_relu": (0,), "hardswish": (-3, 3)}.get(name, ())
    undecided = np.zeros(y.shape, bool)
    for kink in kinks:
        if kink is not None:
            undecided |= np.abs(y - kink) <= margin
    # The second derivatives are below 1.2.
    slack = np.abs(d) * (1.5 * undecided + (0 if name == "relu" else 1.2) * margin)
    _, derivative = evaluate(name, y, parameter_of(v))
    d = d * derivative
    return [*_gradients(v, axes, d, slack), Expected(d, np.abs(d), slack)]


def _dst(
    v: Values, mean: np.ndarray, r: np.ndarray, condition: np.ndarray | float = 1.0
) -> Expected:
    """Compute dst before the ReLU from the mean and `r` = 1 / sqrt(variance + epsilon).

    `condition` is the magnitude of the variance's terms, divided by the variance.
    """
    gamma = np.ones_like(mean) if v["gamma"] is None else v["gamma"]
    beta = np.zeros_like(mean) if v["beta"] is None else v["beta"]
    residual = np.zeros_like(v["src"]) if v.get("residual") is None else v["residual"]
    xhat = (v["src"] - mean) * r
    magnitude = np.abs(gamma) * (np.abs(xhat) * (1 + condition) + np.abs(mean) * r)
    return Expected(gamma * xhat + beta + residual, magnitude + np.abs(beta) + np.abs(residual))


def forward(v: Values, axes: tuple[int, ...]) -> list[Expected]:
    """Compute the forward pass, with the activation that the operator has, if any."""
    x, old = v["src"], [v["mean"], v["variance"]]
    if not x.size:
        zeros = Expected(np.zeros_like(old[0]), np.zeros_like(old[0]))
        return [Expected(x, x), *(Expected(a, np.abs(a)) for a in old), zeros, zeros]
    count = x.size // old[0].size
    mean = Expected(total(x, axes) / count, total(np.abs(x), axes) / count)
    deviation = np.abs(x - mean.value)
    variance = Expected(
        total(deviation**2, axes) / count,
        total((deviation + PIVOT * mean.magnitude) ** 2, axes) / count,
    )
    sum_ = variance.value + v["epsilon"]
    dst = _dst(v, mean.value, 1 / np.sqrt(sum_), (variance.magnitude + v["epsilon"]) / sum_)
    gamma = 1 if v["gamma"] is None else np.abs(v["gamma"])
    dst = dst._replace(magnitude=dst.magnitude + gamma * mean.magnitude / np.sqrt(sum_))
    if "activation" in v:
        value, _ = evaluate(v["activation"], dst.value, parameter_of(v))
        dst = Expected(value, 1.2 * dst.magnitude)  # the largest slope is 1.13
    elif "clip" in v:
        dst = dst._replace(value=np.clip(dst.value, 0, v["clip"]))
    momentum = 0.5 if v["momentum"] is None else v["momentum"]
    running = [
        Expected(
            momentum * a + (1 - momentum) * batch.value,
            momentum * np.abs(a) + (1 - momentum) * batch.magnitude,
        )
        for a, batch in zip(old, (mean, variance), strict=True)
    ]
    return [dst, *running, mean, variance]


@dataclass(frozen=True)
class Target:
    """An operator class and its formula."""

    cls: type[Any]
    formula: Formula
    reference: Callable[..., Any]
    """The function of `onedsl.testing`, which test_matrix.py compares too."""
    option: tuple[str, Any, Any] | None = None
    """The option that requests outputs: its name, its value for all outputs, and for fewer."""

    @functools.cached_property
    def schema(self) -> OpSchema:
        """The schema of the class."""
        activation = {"activation": "silu"} if "activation" in self.attributes else {}
        schema: OpSchema = self.cls(1.0, **activation)._schema
        return schema

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
    "activation": ["relu", "leaky_relu", "silu", "hardswish", "gelu", "gelu_tanh"],
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
    Target(
        onedsl.BatchNormReLUForwardTraining,
        forward,
        functools.partial(testing.batch_norm_forward_training, activation="relu"),
    ),
    Target(
        onedsl.BatchNormReLUTrainingBackward,
        relu_gradients,
        testing.batch_norm_relu_backward,
        ("residual", True, False),
    ),
]

ACT_TARGETS = [
    Target(onedsl.BatchNormActForwardTraining, forward, testing.batch_norm_forward_training),
    Target(onedsl.BatchNormActTrainingBackward, act_gradients, testing.batch_norm_act_backward),
]
"""Operators with any activation, which test_activations.py compares with the references."""
