"""Names of the standard library that older supported versions of Python lack."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from typing import NamedTuple, Self
else:  # there named tuples cannot be generic
    from typing_extensions import NamedTuple, Self

__all__ = ["NamedTuple", "Self"]
