"""The activations under test, with the functions of PyTorch and JAX that compute them.

The tests of all files read this table. test_activations.py compares it with that of the core.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import Any

from onedsl.operators.attributes import ACTIVATIONS as CORE


@dataclass(frozen=True, eq=False)
class Activation:
    """An activation with a value of its parameter, or with the default."""

    name: str
    pytorch: Callable[[Any, Any], Any]
    """PyTorch's activation: a function of the module torch.nn.functional and the argument."""
    jax: Callable[[Any, Any], Any]
    """JAX's activation: a function of the module jax.nn and the argument."""
    parameter: float | None = None
    jumps: dict[float, float] = field(default_factory=dict)
    """By how much the derivative jumps, by the arguments where it does."""
    special: tuple[float, float, float, float] = (nan, nan, nan, 0.5)
    """The derivative at NaN, inf, -inf and 0."""

    def __str__(self) -> str:
        return self.name if self.parameter is None else f"{self.name}({self.parameter})"

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of operators and layers."""
        given = {} if self.parameter is None else {CORE[self.name].parameter: self.parameter}
        return {"activation": self.name, **given}

    @property
    def follows_from_dst(self) -> bool:
        """Whether the derivative follows from the result, as documented."""
        is_increasing = self.parameter is None or self.parameter > 0
        return self.name in ("relu", "leaky_relu") and is_increasing


ACTIVATIONS = [
    Activation(
        "relu",
        lambda functional, y: functional.relu(y),
        lambda nn, y: nn.relu(y),
        jumps={0: 1},
        special=(1, 1, 0, 0),
    ),
    Activation(
        "relu",
        lambda functional, y: functional.hardtanh(y, 0.0, 1.5),
        lambda nn, y: nn.relu(y).clip(max=1.5),
        parameter=1.5,
        jumps={0: 1, 1.5: 1},
        special=(1, 0, 0, 0),
    ),
    Activation(
        "leaky_relu",
        lambda functional, y: functional.leaky_relu(y),
        lambda nn, y: nn.leaky_relu(y),
        jumps={0: 0.99},
        special=(0.01, 1, 0.01, 0.01),
    ),
    Activation(
        "leaky_relu",
        lambda functional, y: functional.leaky_relu(y, 0.25),
        lambda nn, y: nn.leaky_relu(y, 0.25),
        parameter=0.25,
        jumps={0: 0.75},
        special=(0.25, 1, 0.25, 0.25),
    ),
    Activation(
        "leaky_relu",
        lambda functional, y: functional.leaky_relu(y, -0.75),
        lambda nn, y: nn.leaky_relu(y, -0.75),
        parameter=-0.75,
        jumps={0: 1.75},
        special=(-0.75, 1, -0.75, -0.75),
    ),
    Activation("silu", lambda functional, y: functional.silu(y), lambda nn, y: nn.silu(y)),
    Activation(
        "hardswish",
        lambda functional, y: functional.hardswish(y),
        lambda nn, y: nn.hard_swish(y),
        jumps={-3: 0.5, 3: 0.5},
        special=(1, 1, 0, 0.5),
    ),
    Activation(
        "gelu",
        lambda functional, y: functional.gelu(y),
        lambda nn, y: nn.gelu(y, approximate=False),
    ),
    Activation(
        "gelu_tanh",
        lambda functional, y: functional.gelu(y, approximate="tanh"),
        lambda nn, y: nn.gelu(y),
    ),
]
