"""The exceptions and the warning that onedsl raises beside Python's own."""

from __future__ import annotations


class OneDNNError(RuntimeError):
    """An error that came out of oneDNN.

    Attributes
    ----------
    status : str
        The name of oneDNN's status: ``"invalid_arguments"``, ``"out_of_memory"``,
        ``"runtime_error"``, ``"unimplemented"`` and so on.
    """

    def __init__(self, message: str, status: str = "runtime_error") -> None:
        super().__init__(message)
        self.status: str = status

    def __reduce__(self) -> tuple[type[OneDNNError], tuple[str, str]]:
        return type(self), (str(self), self.status)


class UnsupportedError(OneDNNError, NotImplementedError):
    """oneDNN cannot run this on this CPU; the message says what it would need."""


class GammaIgnoredWarning(UserWarning):
    """gamma was given, and the op's document says that it is ignored.

    That is so where diff_src alone is asked for. Ask for all outputs to have gamma used.
    """


for _class in (OneDNNError, UnsupportedError, GammaIgnoredWarning):
    _class.__module__ = "onedsl"
