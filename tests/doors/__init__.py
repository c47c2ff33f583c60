"""The ways to call onedsl, which the tests of laws/ compare. A new way is a class and a row."""

from doors.base import Door
from doors.of_jax import Jax, JaxVmap
from doors.of_numpy import DLPack, NumPy, OneDNN, Parts
from doors.of_torch import TorchCompiled, TorchEager, TorchLayer, TorchOperator

DOORS: list[Door] = [
    *(NumPy(), DLPack(), Parts(), OneDNN()),
    *(TorchOperator(), TorchEager(), TorchLayer(), TorchCompiled()),
    *(Jax(), JaxVmap()),
]
