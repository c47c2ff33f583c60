"""Names of the standard library that older supported versions of Python lack."""

from __future__ import annotations

import sys
import types
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    from typing import NamedTuple, Self
else:  # there named tuples cannot be generic
    from typing_extensions import NamedTuple, Self

__all__ = ["NamedTuple", "Self", "default_arguments"]

Class = TypeVar("Class", bound=type[Any])


def default_arguments(cls: Class) -> Class:
    """Make a generic class subscriptable with some of its arguments, as from Python 3.13 on."""
    cls.__class_getitem__ = classmethod(types.GenericAlias)
    return cls
