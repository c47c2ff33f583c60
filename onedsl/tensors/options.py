"""The values of options that operators and their references share."""

from __future__ import annotations

from typing import Literal

Activation = Literal["relu", "leaky_relu", "silu", "hardswish", "gelu", "gelu_tanh"]
"""What may follow batch norm."""

Backend = Literal["auto", "onednn", "native"]
