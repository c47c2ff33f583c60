"""Options that several commands have, and their checks."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from ..bench import arguments
from ..runtime.errors import OneDNNError
from ..tensors.dtypes import DTYPES

Command = TypeVar("Command", bound=Callable[..., Any])


# Generic in newer versions of click, and not to be subscripted in older ones.
class Checked(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value that a function takes, or refuses in words."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Call the function, unless it has been called."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (argparse.ArgumentTypeError, ValueError) as error:
            self.fail(str(error), param, ctx)


def shape(text: str) -> tuple[int, ...]:
    """Take sizes with an x between, as 32x56x56x64."""
    sizes = text.split("x")
    if len(sizes) < 2 or not all(size.isdecimal() for size in sizes):
        raise ValueError(f"{text!r} must be sizes with an x between, as 32x56x56x64")
    return tuple(map(int, sizes))


SHAPE = Checked("shape", shape)
SECONDS = Checked("seconds", arguments.positive)


def with_operator_options(command: Command) -> Command:
    """Add the options that describe one operator, which `export` and `explain` have."""
    options = (
        click.option("--dtype", type=click.Choice(list(DTYPES)), default="f32", show_default=True),
        click.option(
            "--stats-dtype",
            type=click.Choice(["f32", "bf16"]),
            default="f32",
            show_default=True,
            help="Of mean, variance and gamma.",
        ),
        click.option(
            "--format",
            "data_format",
            type=click.Choice(["NXC", "NCX"]),
            default="NXC",
            show_default=True,
            help="Where the channels are in SHAPE.",
        ),
        click.option(
            "--epsilon",
            type=Checked("number", arguments.positive),
            default="1e-5",
            show_default=True,
        ),
        click.option(
            "--outputs",
            type=click.Choice(["all", "diff_src"]),
            default="all",
            show_default=True,
        ),
        click.option("--gamma/--no-gamma", default=True, show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextlib.contextmanager
def as_usage_errors() -> Iterator[None]:
    """Take what the library refuses for a mistake of the user's: status 2 and the words alone."""
    try:
        yield
    except (OneDNNError, TypeError, ValueError, OverflowError, OSError, MemoryError) as error:
        raise click.UsageError(str(error) or type(error).__name__) from error
