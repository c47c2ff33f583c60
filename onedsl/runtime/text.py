"""Text for a terminal."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

_PLAIN = {"\N{MICRO SIGN}": "u", "\N{HORIZONTAL ELLIPSIS}": "..."}


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c, ascii(c)[1:-1]) for c in text), error.end


codecs.register_error("onedsl.replace", _replace)


def replace_unencodable() -> None:
    """Make stdout replace characters that a terminal without UTF-8 does not have."""
    defaults = ("strict", "surrogateescape")  # the second one is that of the C locale
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in defaults:
        sys.stdout.reconfigure(errors="onedsl.replace")


def discard(stream: TextIO) -> None:
    """Discard what is still written to stdout or stderr, which is a closed pipe or full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printable(text: str) -> str:
    """Return text from a file, a user or another program with escapes for control characters.

    A terminal would obey them: they move the cursor, reverse the text or set the window's title.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
