"""The ways to call onedsl, which the tests of laws/ compare. A new way is a class and a row."""

from doors.base import Door
from doors.of_jax import Jax, JaxVmap
from doors.of_numpy import DLPack, Graph, NumPy, OneDNN, Parts, TorchTensor
from doors.of_torch import TorchCompiled, TorchEager, TorchLayer, TorchOperator, TorchSync

DOORS: list[Door] = [
    *(NumPy(), DLPack(), TorchTensor(), Parts(), OneDNN(), Graph()),
    *(TorchOperator(), TorchEager(), TorchLayer(), TorchSync(), TorchCompiled()),
    *(Jax(), JaxVmap()),
]
