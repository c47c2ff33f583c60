"""What the studies share: their data, their command lines, and how their pictures look."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import sklearn.datasets  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

Array = npt.NDArray[Any]

DARK_GREY, GREY, GRID = "#555555", "#8a8a8a", "#dcdcdc"


def load_digits() -> tuple[Array, Array]:
    """Give scikit-learn's digits, (N, 8, 8), of mean 0 and deviation 1, and their classes."""
    digits = sklearn.datasets.load_digits()
    pixels = digits.images.astype(np.float32)
    return (pixels - pixels.mean()) / pixels.std(), digits.target


def draw_picks(rng: np.random.Generator, images: int, size: int, batches: int) -> Iterator[Array]:
    """Draw the images of each batch at random."""
    return (rng.choice(images, size, replace=False) for _ in range(batches))


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make a command line that says what the first paragraph of a description does."""
    return argparse.ArgumentParser(
        description=(description or "").split("\n\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def positive(text: str) -> int:
    """Take a number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def new_figure(title: str, subtitle: str) -> Figure:
    """Make a picture of a slide's size."""
    figure = Figure(figsize=(13.3, 7.3), dpi=150)
    figure.text(0.012, 0.97, title, va="top", size=16, weight="bold")
    figure.text(0.012, 0.905, subtitle, va="top", size=12.5, color=DARK_GREY)
    return figure


def decorate(axes: Axes, title: str, grid: Literal["x", "y"]) -> None:
    """Set what all panels share."""
    axes.set_title(title, loc="left", size=15, weight="bold", pad=10)
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=12.5)
    axes.spines[:].set_visible(False)


def log_losses(axes: Axes) -> None:
    """Make a logarithmic axis with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
