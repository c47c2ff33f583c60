"""Exceptions and warnings of onedsl."""

from __future__ import annotations

from .. import _core


class OneDNNError(RuntimeError):
    """An error reported by oneDNN.

    Attributes
    ----------
    status : str
        Name of oneDNN's status: ``"invalid_arguments"``, ``"out_of_memory"``,
        ``"runtime_error"``, ``"unimplemented"`` and so on.
    """

    def __init__(self, message: str, status: str = "runtime_error") -> None:
        super().__init__(message)
        self.status: str = status

    def __reduce__(self) -> tuple[type[OneDNNError], tuple[str, str]]:
        return type(self), (str(self), self.status)


class UnsupportedError(OneDNNError, NotImplementedError):
    """oneDNN has no kernel for these types on this CPU, this shape or this graph.

    The message has the reason. ``backend="auto"`` runs every valid call of an operator.
    """


class OutOfMemoryError(OneDNNError, MemoryError):
    """oneDNN has no memory. Private: both base classes are documented."""


class GammaIgnoredWarning(UserWarning):
    """gamma is ignored because only diff_src is requested.

    The operator's specification defines diff_src without gamma in this case. Request all outputs
    to use gamma.
    """


class OneDNNDefectWarning(UserWarning):
    """oneDNN's result is known to differ from its documentation. The message has the difference.

    Only graphs that run as they were written warn: `Graph.compile`. ``backend="onednn"`` works
    around the defects.
    """


for _class in (OneDNNError, UnsupportedError, GammaIgnoredWarning, OneDNNDefectWarning):
    _class.__module__ = "onedsl"

ERROR_TYPES = (OneDNNError, UnsupportedError, OutOfMemoryError)
"""The exceptions that the extensions raise."""
_core.set_error_types(*ERROR_TYPES)
