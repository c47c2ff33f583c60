"""Options, parameter types and an exit status that several commands share."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ..tensors.dtypes import DTYPES

UNSUPPORTED = 3
"""Exit status of a command if oneDNN does not support the call on this CPU."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class InputError(click.ClickException):
    """An error about what the user passed, shown without a traceback."""

    exit_code = 2


@contextlib.contextmanager
def user_input(source: Path | None = None) -> Iterator[None]:
    """Convert errors about values of the user, or about a file's content, to InputError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: {error}" if source else str(error)) from error


# click shows the names of the functions that parse an argument in its help.


def shape(text: str) -> tuple[int, ...]:
    """Parse sizes such as ``32x56x56x64``."""
    sizes = text.split("x")
    if len(sizes) < 2 or not all(size.isdecimal() for size in sizes):
        raise click.BadParameter(f"must be at least two sizes such as 32x56x56x64, got {text!r}")
    return tuple(map(int, sizes))


def file(text: str) -> Path:
    """Parse the path of a file that can be written."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.BadParameter(f"must be a writable file in an existing folder, got {text!r}")
    return path


EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def choice(flag: str, name: str, known: tuple[str, ...], text: str) -> Decorator:
    """Return an option for one of some names, by default the first."""
    return click.option(
        flag, name, type=click.Choice(known), default=known[0], show_default=True, help=text
    )


class _Seconds(click.FloatRange):
    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):  # which is not outside of the range
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def seconds(default: float, text: str = "Time spent on timing.") -> Decorator:
    """Return the option for the time spent on timing."""
    limits = _Seconds(0, 3600, min_open=True)
    return click.option("--seconds", type=limits, default=default, show_default=True, help=text)


def tensor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe the arrays of a call."""
    for option in (
        choice("--format", "data_format", ("NXC", "NCX"), "Position of the channels."),
        choice("--stats-dtype", "stats_dtype", ("f32", "bf16"), "Type of mean, variance, gamma."),
        choice("--dtype", "dtype", tuple(DTYPES), "Type of src."),
    ):
        command = option(command)
    return command
