"""Options of command lines, checked before anything is measured."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

PICTURES = (".png", ".pdf", ".svg")


def names(kind: str, known: Collection[str], default: str = "") -> dict[str, Any]:
    """Describe an option that takes some of the known names, by their words before a hyphen too."""

    def parse(text: str) -> list[str]:
        chosen: set[str] = set()
        for word in text.split(","):
            found = {name for name in known if name == word or name.startswith(f"{word}-")}
            if not found:
                raise argparse.ArgumentTypeError(
                    f"no {kind} {word!r}; there are {', '.join(known)}"
                )
            chosen |= found
        return [name for name in known if name in chosen]

    return {
        "type": parse,
        "default": default or ",".join(known),
        "metavar": "NAMES",
        "help": "names or their beginnings, with commas between",
    }


def positive(text: str) -> float:
    """Take a positive and finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive and finite number, not {text!r}")
    return number


def count(text: str) -> int:
    """Take a positive whole number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, not {text!r}")
    return int(text)


def output(text: str) -> Path:
    """Take a path of a file that can be written later."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, not a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path


def picture(text: str) -> Path:
    """Take a path of a picture that can be drawn later."""
    if Path(text).suffix not in PICTURES:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(PICTURES)}, not {text!r}")
    return output(text)


def save(default: str) -> dict[str, Any]:
    """Describe the option that says where a picture goes."""
    return {
        "type": lambda text: picture(text) if text else None,
        "default": default,
        "metavar": "PATH",
        "help": "where the picture goes, .png, .pdf or .svg; '' for nowhere",
    }
