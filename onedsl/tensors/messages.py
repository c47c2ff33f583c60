"""Errors about arrays: their types, and the texts after the array's name."""

from __future__ import annotations

from typing import Any

from .arrays import Array

READ_ONLY = "must be writable, got a read-only array"

_TYPE_ERRORS = frozenset(
    {
        *("absent", "all_or_none", "alternatives", "one_of"),
        *("type", "statistics_type", "like_type"),
    }
)


def error(reason: str, message: str) -> Exception:
    """Return the exception for a call that the core rejects for this reason."""
    return (TypeError if reason in _TYPE_ERRORS else ValueError)(message)


def dtype(expected: str, owner: str, got: str) -> str:
    """Return the text for another dtype than that of `owner`."""
    return f"must be {expected} like {owner}, got {got}"


def shape(expected: tuple[Any, ...], owner: str, got: tuple[Any, ...]) -> str:
    """Return the text for another shape than that of `owner`."""
    return f"must have {owner}'s shape {expected}, got {got}"


def aligned(array: Array) -> str:
    """Return the text for an array that is not aligned to its items."""
    return f"must be aligned to its items, got {array.ctypes.data:#x}"


def separate(other: str, in_place: str | None) -> str:
    """Return the text for an output that overlaps another array, unless it is `in_place` itself."""
    remedy = f". It may be {in_place} itself" if in_place else ""
    return f"must not overlap {other}{remedy}"
