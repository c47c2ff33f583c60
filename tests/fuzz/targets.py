"""The operator classes under test. To test another class, add a row to TARGETS."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onedsl
from onedsl import testing
from onedsl.operators.attributes import ACTIVATIONS


@dataclass(frozen=True)
class Target:
    """An operator class and its reference."""

    cls: type[Any]
    reference: Callable[..., Any]
    """A function of `onedsl.testing`, of the operator's inputs and, by keyword, its attributes."""
    option: tuple[str, Any, Any] | None = None
    """The option that requests outputs: its name, its value for all outputs, and for fewer."""

    @functools.cached_property
    def schema(self) -> Any:
        """The schema of the class, which no public method returns."""
        return self.cls(1.0, **self.required)._schema

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
        testing.batch_norm_backward,
        ("outputs", "all", "diff_src"),
    ),
    Target(
        onedsl.BatchNormTrainingBackprop,
        testing.batch_norm_backward,
        ("outputs", "all", "input_delta"),
    ),
    Target(
        onedsl.BatchNormalizationGrad,
        testing.batch_normalization_grad,
        ("outputs", "all", "output_gradient"),
    ),
    Target(onedsl.BatchNormForwardTraining, testing.batch_norm_forward_training),
    Target(onedsl.BatchNormActForwardTraining, testing.batch_norm_forward_training),
    Target(
        onedsl.BatchNormActTrainingBackward,
        testing.batch_norm_act_backward,
        ("diff_residual", True, False),
    ),
]
