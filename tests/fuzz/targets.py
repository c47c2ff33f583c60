"""What is fuzzed: the operator classes. A new class is a new row of TARGETS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import onedsl
from onedsl.operators._schema import OpSchema


class Expected(NamedTuple):
    """An output in float64, the magnitude of its terms, which its error is measured by, and slack.

    The last is what it may be off by for another reason: a ReLU that rounding may open or close.
    """

    value: np.ndarray
    magnitude: np.ndarray
    slack: np.ndarray | float = 0.0


Values = Mapping[str, Any]
"""The inputs by their names in oneDNN's documents, in float64: statistics in a shape that
broadcasts to the tensors, None where absent. With them the attributes by their names."""

Formula = Callable[[Values, tuple[int, ...]], list[Expected]]
"""From the values and the axes that are summed over to the outputs in the schema's order."""

PIVOT = 2.0**-11  # the kernels' sums go about a number that is so near the mean


def total(terms: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Sum what a statistic is summed over."""
    return np.sum(terms, axis=axes, keepdims=True)


def gradients(*, batch: bool) -> Formula:
    """Write the gradient's formulas down once more, beside the magnitudes of their terms."""

    def formula(v: Values, axes: tuple[int, ...]) -> list[Expected]:
        return _gradients(v, axes, v["diff_dst"], np.zeros_like(v["diff_dst"]), batch)

    return formula


def _gradients(
    v: Values, axes: tuple[int, ...], d: np.ndarray, unsure: np.ndarray, batch: bool
) -> list[Expected]:
    """Take the gradient d, and by how much of it each item may be off."""
    x, mean = v["src"], v["mean"]
    gamma = np.ones_like(mean) if v["gamma"] is None else v["gamma"]
    r = 1 / np.sqrt(v["variance"] + v["epsilon"])
    xhat = (x - mean) * r
    near = np.abs(xhat) + PIVOT * np.abs(mean) * r
    beta = Expected(total(d, axes), total(np.abs(d), axes), total(unsure, axes))
    product = Expected(
        total(d * xhat, axes), total(np.abs(d) * near, axes), total(unsure * near, axes)
    )
    value, magnitude, slack = d, np.abs(d), unsure
    if batch and x.size:
        count = x.size // mean.size
        value = d - beta.value / count - xhat * product.value / count
        magnitude = magnitude + (beta.magnitude + np.abs(xhat) * product.magnitude) / count
        slack = slack + (beta.slack + np.abs(xhat) * product.slack) / count
    scale = np.abs(gamma * r)
    return [Expected(gamma * r * value, scale * magnitude, scale * slack), product, beta]


def relu_gradients(v: Values, axes: tuple[int, ...]) -> list[Expected]:
    """Write down the gradient of normalization and ReLU."""
    d, bound = v["diff_dst"], np.inf if v["clip"] is None else v["clip"]
    dst, unsure = v["dst"], np.zeros_like(d)
    if dst is None:  # where it is rounded to 0 or to the bound nobody here can know
        dst = _dst(v, v["mean"], 1 / np.sqrt(v["variance"] + v["epsilon"]))
        near = (np.abs(dst.value) + dst.magnitude) * 2.0**-7 + 2.0**-24
        at_the_edge = (np.abs(dst.value) <= near) | (np.abs(dst.value - bound) <= near)
        unsure, dst = np.where(at_the_edge, np.abs(d), 0), dst.value
    d = np.where((dst <= 0) | (dst >= bound), 0, d)
    return [*_gradients(v, axes, d, unsure, batch=True), Expected(d, np.abs(d), unsure)]


def _dst(v: Values, mean: np.ndarray, r: np.ndarray, spread: np.ndarray | float = 1.0) -> Expected:
    """Normalize; `spread` is the magnitude of the variance's terms over the variance."""
    gamma = np.ones_like(mean) if v["gamma"] is None else v["gamma"]
    beta = np.zeros_like(mean) if v["beta"] is None else v["beta"]
    residual = np.zeros_like(v["src"]) if v.get("residual") is None else v["residual"]
    xhat = (v["src"] - mean) * r
    magnitude = np.abs(gamma) * (np.abs(xhat) * (1 + spread) + np.abs(mean) * r)
    return Expected(gamma * xhat + beta + residual, magnitude + np.abs(beta) + np.abs(residual))


def forward(*, relu: bool) -> Formula:
    """Write the forward pass down once more."""

    def formula(v: Values, axes: tuple[int, ...]) -> list[Expected]:
        x, old = v["src"], [v["mean"], v["variance"]]
        if not x.size:
            nothing = Expected(np.zeros_like(old[0]), np.zeros_like(old[0]))
            kept = [Expected(a, np.abs(a)) for a in old]
            return [Expected(x, x), *kept, nothing, nothing]
        count = x.size // old[0].size
        mean = Expected(total(x, axes) / count, total(np.abs(x), axes) / count)
        off = np.abs(x - mean.value)
        variance = Expected(
            total(off**2, axes) / count,
            total((off + PIVOT * mean.magnitude) ** 2, axes) / count,
        )
        whole = variance.value + v["epsilon"]
        dst = _dst(v, mean.value, 1 / np.sqrt(whole), (variance.magnitude + v["epsilon"]) / whole)
        edge = mean.magnitude / np.sqrt(whole)
        dst = dst._replace(
            magnitude=dst.magnitude + edge * (1 if v["gamma"] is None else np.abs(v["gamma"]))
        )
        if relu:
            dst = dst._replace(value=np.clip(dst.value, 0, v["clip"]))
        share = 0.5 if v["momentum"] is None else v["momentum"]
        running = [
            Expected(
                share * a + (1 - share) * batch.value,
                share * np.abs(a) + (1 - share) * batch.magnitude,
            )
            for a, batch in zip(old, (mean, variance), strict=True)
        ]
        return [dst, *running, mean, variance]

    return formula


MOMENTUM = {"momentum": [None, 0.0, 0.1, 0.9, 1.0]}
CLIP = {"clip": [None, None, 6.0, 0.5]}


@dataclass(frozen=True)
class Target:
    """An operator class, and the formulas that it must follow."""

    kind: type[Any]
    formula: Formula
    attributes: Mapping[str, list[Any]] = field(default_factory=dict)
    """Those beside epsilon and data_format, and good values for each."""
    asks: tuple[str, Any, Any] | None = None
    """The option by which a call asks for outputs; its values for all, and for some."""
    summed: int = 0
    """How many of the first inputs its reduce takes; none where it has no reduce."""
    broadcast: bool = False
    """Whether statistics have src's rank, and no data_format says which axis they keep."""

    @property
    def schema(self) -> OpSchema:
        """The class's ports, types and ranks."""
        schema: OpSchema = self.kind._schema
        return schema


TARGETS = [
    Target(
        onedsl.BatchNormTrainingBackward,
        gradients(batch=True),
        asks=("outputs", "all", "diff_src"),
        summed=4,
    ),
    Target(
        onedsl.BatchNormTrainingBackprop,
        gradients(batch=True),
        asks=("outputs", "all", "input_delta"),
        summed=4,
    ),
    Target(
        onedsl.BatchNormalizationGrad,
        gradients(batch=False),
        asks=("outputs", "all", "output_gradient"),
        summed=4,
        broadcast=True,
    ),
    Target(onedsl.BatchNormForwardTraining, forward(relu=False), MOMENTUM, summed=1),
    Target(onedsl.BatchNormReLUForwardTraining, forward(relu=True), {**MOMENTUM, **CLIP}),
    Target(
        onedsl.BatchNormReLUTrainingBackward,
        relu_gradients,
        CLIP,
        asks=("residual", True, False),
    ),
]
