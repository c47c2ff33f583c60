"""Text for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text from a file, a user or another program with escapes for control characters.

    A terminal would obey them: they move the cursor, reverse the text or set the window's title.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
