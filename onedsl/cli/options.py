"""Options and parameter types that several commands share."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from ..graph._drawing import SUFFIXES
from ..runtime.errors import OneDNNError, UnsupportedError
from ..tensors.dtypes import DTYPES

Command = TypeVar("Command", bound=Callable[..., Any])


def parsed(metavar: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parameter type of click that parses text, by a function that raises ValueError."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    convert.__name__ = metavar  # click shows the type's name in the help
    return convert


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse sizes such as ``32x56x56x64``."""
    sizes = text.split("x")
    if len(sizes) < 2 or not all(size.isdecimal() for size in sizes):
        raise ValueError(f"must be at least two sizes such as 32x56x56x64, got {text!r}")
    return tuple(map(int, sizes))


def parse_positive(text: str) -> float:
    """Parse a positive, finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"must be a positive, finite number, got {text!r}")
    return number


def parse_output_file(text: str, suffixes: tuple[str, ...] = ("",)) -> Path:
    """Parse the path of a file that can be written, with one of the suffixes."""
    path = Path(text)
    if not text.endswith(suffixes):
        raise ValueError(f"must end in {', '.join(suffixes)}, got {text!r}")
    if not path.parent.is_dir():
        raise ValueError(f"must be in an existing directory, got {text!r}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"must be a writable file, got {text!r}")
    return path


EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT_FILE = parsed("file", parse_output_file)
PICTURE_FILE = parsed("file", lambda text: parse_output_file(text, SUFFIXES))
POSITIVE = parsed("number", parse_positive)
SHAPE = parsed("shape", parse_shape)


def names_option(
    flag: str, known: Collection[str], default: str = ""
) -> Callable[[Command], Command]:
    """Return an option for comma-separated names, or first words of names; by default all."""

    def parse(text: str) -> list[str]:
        chosen: set[str] = set()
        for word in text.split(","):
            found = {name for name in known if name == word or name.startswith(f"{word}-")}
            if not found:
                raise ValueError(f"must be among {', '.join(known)}, got {word!r}")
            chosen |= found
        return [name for name in known if name in chosen]

    some = f" Known: {', '.join(known)}." if default else ""
    return click.option(
        flag,
        type=parsed("names", parse),
        default=default or ",".join(known),
        show_default=True,
        help=f"Comma-separated names, or first words of hyphenated names.{some}",
    )


def with_operator_options(command: Command) -> Command:
    """Add the options of `export` and `explain` that describe a call of the operator."""

    def choice(flag: str, known: Collection[str], default: str, text: str) -> Callable[..., Any]:
        name = "data_format" if flag == "--format" else flag[2:].replace("-", "_")
        known_names = click.Choice(list(known))
        return click.option(
            flag, name, type=known_names, default=default, show_default=True, help=text
        )

    options = (
        choice("--dtype", DTYPES, "f32", "Type of src."),
        choice("--stats-dtype", ("f32", "bf16"), "f32", "Type of mean, variance and gamma."),
        choice("--format", ("NXC", "NCX"), "NXC", "Position of the channels: last or second."),
        click.option("--epsilon", type=POSITIVE, default="1e-5", show_default=True),
        choice("--outputs", ("all", "diff_src"), "all", "Gradients to compute."),
        click.option(
            "--gamma/--no-gamma", default=True, show_default=True, help="Whether gamma is given."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


UNSUPPORTED = 3
"""Exit status of a command if oneDNN does not support the call on this CPU."""


class _Unsupported(click.ClickException):
    exit_code = UNSUPPORTED


@contextlib.contextmanager
def as_usage_errors() -> Iterator[None]:
    """Convert errors of the library to usage errors of click.

    For a usage error, the command prints the message without a traceback and exits with status 2.
    If oneDNN does not support the call on this CPU, it exits with status 3, without usage text.
    """
    try:
        yield
    except UnsupportedError as error:
        raise _Unsupported(str(error)) from error
    except (OneDNNError, TypeError, ValueError, OverflowError, OSError, MemoryError) as error:
        raise click.UsageError(str(error) or type(error).__name__) from error
