"""How far off onedsl, oneDNN and PyTorch are, on inputs that are easy and on inputs that are not.

Prints a Markdown table: for each kind of input, type and data format, the relative L2 error of
diff_src and of the two sums (diff_gamma and diff_beta), and the worst error of a sum in units in
the last place of f32. "rounded" is the best that there can be: the exact result, rounded once to
the type of the output. Below the table stand the rows where onedsl's default is the worst of the
three, or an ordinary sum is more than two units off; there ought to be none, and the exit status
says so.

The judge adds exact products with `math.fsum`, and takes float64 from there on. Inputs are what a
forward pass has computed: mean and variance are src's own, rounded to f32.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

import onedsl

Array: TypeAlias = npt.NDArray[Any]
Gradients: TypeAlias = tuple[Array, Array, Array]

DTYPES = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}
FORMATS = ("NCX", "NXC")
ORDINARY = "ordinary"
IMPLEMENTATIONS = ("native", "onednn", "torch")  # the first is onedsl's default

CHANNELS, FEW_CHANNELS = 16, 2

# Within this factor two errors are one: what is left is how a result happens to round.
TIE = 1.05
ULPS_WANTED = 2.0


class Problem(NamedTuple):
    """Inputs of the gradient, src and diff_dst of shape (N, C, H, W)."""

    src: Array
    diff_dst: Array
    mean: Array
    variance: Array
    gamma: Array
    epsilon: float


class Errors(NamedTuple):
    """The three figures of a result; infinite where it is not finite and ought to be."""

    diff_src: float
    sums: float
    ulps: float


def make_problem(
    src: Array, diff_dst: Array, dtype: np.dtype[Any], epsilon: float = 1e-5
) -> Problem:
    """Round to the type, and take mean and variance as a forward pass does."""
    src, diff_dst = src.astype(dtype), diff_dst.astype(dtype)
    x = src.astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean = x.mean((0, 2, 3))
        variance = ((x - per_channel(mean)) ** 2).mean((0, 2, 3))
    gamma = np.linspace(0.5, 2, src.shape[1], dtype=np.float32)
    return Problem(
        src, diff_dst, mean.astype(np.float32), variance.astype(np.float32), gamma, epsilon
    )


def cases(dtype: str, elements: int, many: int) -> Iterator[tuple[str, Problem]]:
    """Draw the inputs, `elements` a channel, and `many` in one row."""
    kind = DTYPES[dtype]
    rng = np.random.default_rng(0)

    def noise(size: int = elements, channels: int = CHANNELS) -> Array:
        return rng.standard_normal((2, channels, size // 20, 10))

    def leaning(src: Array) -> Array:
        """Draw a diff_dst that leans on src, as it does in training."""
        return rng.standard_normal(src.shape) + 0.25 + 0.5 * src

    src = 1.5 * noise() + 0.5
    yield ORDINARY, make_problem(src, leaning(src), kind)

    # A 16-bit type cannot tell 1,000,000 from 1,000,001: as far as it goes.
    mean = {"f32": 1e6, "bf16": 1e2, "f16": 1e3}[dtype]
    src = noise()
    yield f"mean {mean:,.0f} times the deviation", make_problem(mean + src, leaning(src), kind)

    deviation = 1e-3 if dtype == "f16" else 1e-6  # f16 ends at 6e-8
    yield (
        f"variance and epsilon {deviation**2:.0e}",
        make_problem(deviation * src, leaning(src), kind, deviation**2),
    )

    src = 1.5 * noise(many, FEW_CHANNELS) + 0.5
    yield f"{many:,} elements a channel", make_problem(src, leaning(src), kind)

    # The second half of the batch takes back what the first adds, but for one element a channel.
    src, diff_dst = noise(), noise()
    src[0, :, 0, 0] = 1.5  # off the mean, or what is left of diff_gamma would be next to nothing
    src[1], diff_dst[1] = src[0], -diff_dst[0]
    diff_dst[0, :, 0, 0] += 2
    yield "sums that cancel", make_problem(src, diff_dst, kind)

    # What is left of diff_dst beside its sums is nothing but its own rounding.
    src = noise()
    yield "diff_src cancels", make_problem(src, 0.25 + 0.5 * src.astype(kind), kind)

    smallest = {"f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-14}[dtype]  # normal number
    yield "subnormal diff_dst", make_problem(src, smallest / 4 * leaning(src), kind)

    diff_dst = leaning(src)
    src[0, 0, 0, 0], src[0, 1, 0, 0] = np.inf, np.nan
    diff_dst[0, 2, 0, 0], diff_dst[0, 3, 0, 0] = np.inf, np.nan
    yield "an inf or NaN in 4 channels of 16", make_problem(src, diff_dst, kind)


def per_channel(values: Array) -> Array:
    """Shape a value per channel so that it broadcasts to (N, C, H, W)."""
    return values.reshape(1, -1, 1, 1)


def exact_sum(*parts: Array) -> float:
    """Add all items of arrays, and round once."""
    return math.fsum(item for part in parts for line in part for item in line.ravel().tolist())


def exact_gradients(problem: Problem) -> Gradients:
    """Compute the gradients with exact sums, in float64 beyond.

    Products of two values of 24 bits are exact in float64, and so are the terms of
    ``sum(diff_dst * src) - sum(diff_dst * mean)``, if not their differences.
    """
    *arrays, epsilon = problem
    x, dy, mean, variance, gamma = (array.astype(np.float64) for array in arrays)
    rstd = 1 / np.sqrt(variance + epsilon)
    diff_beta, diff_gamma = np.empty_like(mean), np.empty_like(mean)
    for channel in range(mean.size):
        a, b, m = x[:, channel], dy[:, channel], mean[channel]
        if np.isfinite(a).all() and np.isfinite(b).all():
            diff_beta[channel] = exact_sum(b)
            diff_gamma[channel] = exact_sum(a * b, -m * b) * rstd[channel]
        else:
            diff_beta[channel] = b.sum()
            diff_gamma[channel] = (b * (a - m)).sum() * rstd[channel]
    count = x.size // mean.size
    xhat = (x - per_channel(mean)) * per_channel(rstd)
    centred = dy - per_channel(diff_beta) / count - xhat * per_channel(diff_gamma) / count
    return per_channel(gamma * rstd) * centred, diff_gamma, diff_beta


def in_format(array: Array, data_format: str) -> Array:
    """Lay an (N, C, H, W) array out as the format has it."""
    return array if data_format == "NCX" else np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def by_onedsl(
    problem: Problem, data_format: str, backend: Literal["native", "onednn"]
) -> Gradients | None:
    """Run a backend of onedsl, or say by None that it cannot run here."""
    op = onedsl.BatchNormTrainingBackward(problem.epsilon, onedsl.DataFormat(data_format))
    src, diff_dst = (in_format(a, data_format) for a in (problem.src, problem.diff_dst))
    statistics = problem.mean, problem.variance, problem.gamma
    try:
        diff_src, *sums = op(src, diff_dst, *statistics, backend=backend)
    except onedsl.UnsupportedError:
        return None
    if data_format == "NXC":
        diff_src = diff_src.transpose(0, 3, 1, 2)
    return diff_src, sums[0], sums[1]


def by_torch(problem: Problem, data_format: str) -> Gradients | None:
    """Run PyTorch's own gradient, or say by None that it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    memory = torch.contiguous_format if data_format == "NCX" else torch.channels_last

    def tensor(array: Array) -> torch.Tensor:
        if array.dtype == DTYPES["bf16"]:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    src, diff_dst = (
        tensor(array).contiguous(memory_format=memory) for array in (problem.src, problem.diff_dst)
    )
    rstd = (1 / np.sqrt(problem.variance.astype(np.float64) + problem.epsilon)).astype(np.float32)
    mean, rstd, gamma = (tensor(array) for array in (problem.mean, rstd, problem.gamma))
    gradients = torch.ops.aten.native_batch_norm_backward(
        diff_dst, src, gamma, None, None, mean, rstd, True, problem.epsilon, [True] * 3
    )
    diff_src, diff_gamma, diff_beta = (gradient.double().numpy() for gradient in gradients)
    return diff_src, diff_gamma, diff_beta


RUN: dict[str, Callable[[Problem, str], Gradients | None]] = {
    "native": lambda problem, data_format: by_onedsl(problem, data_format, "native"),
    "onednn": lambda problem, data_format: by_onedsl(problem, data_format, "onednn"),
    "torch": by_torch,
}


def relative_l2(got: Array, want: Array) -> float:
    """Compare where a finite value is wanted; elsewhere anything but a finite value is right."""
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return math.inf
    difference = got[finite].astype(np.float64) - want[finite]
    return float(np.linalg.norm(difference) / np.linalg.norm(want[finite]))


def errors_of(got: Gradients, want: Gradients) -> Errors:
    """Measure what a contender has computed."""
    sums, exact = np.stack(got[1:]).astype(np.float64), np.stack(want[1:])
    finite = np.isfinite(exact)
    unit = np.spacing(np.abs(exact[finite]).astype(np.float32)).astype(np.float64)
    return Errors(
        relative_l2(got[0], want[0]),
        max(relative_l2(sums[i], exact[i]) for i in range(2)),
        float((np.abs(sums[finite] - exact[finite]) / unit).max(initial=0)),
    )


class Row(NamedTuple):
    """A line of the table."""

    name: str
    dtype: str
    data_format: str
    rounded: Errors
    found: dict[str, Errors]

    def complaints(self) -> Iterator[str]:
        """Say what onedsl claims and does not hold here."""
        where = f"{self.name}, {self.dtype}, {self.data_format}"
        default, *others = (self.found.get(name) for name in IMPLEMENTATIONS)
        assert default is not None
        for field in Errors._fields:
            mine, best = getattr(default, field), getattr(self.rounded, field)
            theirs = [getattr(other, field) for other in others if other is not None]
            if theirs and mine > TIE * max(best, *theirs):
                yield f"{where}: the default is the worst in {field}"
        if self.name == ORDINARY and default.ulps > ULPS_WANTED:
            yield f"{where}: a sum is {default.ulps:.1f} units off"


def measure(dtype: str, elements: int, many: int) -> Iterator[Row]:
    """Run every contender on every input of a type."""
    for name, problem in cases(dtype, elements, many):
        with np.errstate(invalid="ignore"):
            want = exact_gradients(problem)
        diff_src, diff_gamma, diff_beta = want
        best = errors_of(
            (
                diff_src.astype(DTYPES[dtype]),
                diff_gamma.astype(np.float32),
                diff_beta.astype(np.float32),
            ),
            want,
        )
        for data_format in FORMATS:
            results = {contender: run(problem, data_format) for contender, run in RUN.items()}
            found = {name: errors_of(got, want) for name, got in results.items() if got}
            yield Row(name, dtype, data_format, best, found)


HEADER = f"""\
| input | type | format {"| rounded | native | onednn | torch " * 2}| native | onednn | torch |
|---|---|---{"|---" * 11}|"""


def to_markdown(row: Row) -> str:
    """Write a line of the table: L2 of diff_src, L2 of the sums, units of the sums."""
    cells = [row.name, row.dtype, row.data_format]
    for field, pattern in zip(Errors._fields, ("{:.1e}", "{:.1e}", "{:.2g}"), strict=True):
        implementations = [row.found.get(name) for name in IMPLEMENTATIONS]
        if field != "ulps":
            implementations.insert(0, row.rounded)
        cells += [pattern.format(getattr(e, field)) if e else "-" for e in implementations]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table, and then what does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--elements", type=int, default=100_000, help="a channel, in most rows")
    parser.add_argument("--many", type=int, default=10_000_000, help="a channel, in one row")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    options = parser.parse_args()
    if min(options.elements, options.many) < 20:
        parser.error("--elements and --many: at least 20")
    print("Relative L2 of diff_src, then of the sums, then units in the last place of the sums:\n")
    print(HEADER)
    complaints: list[str] = []
    for dtype in options.dtypes:
        for row in measure(dtype, options.elements, options.many):
            print(to_markdown(row), flush=True)
            complaints += row.complaints()
    print()
    print("\n".join(complaints) or "onedsl's default is nowhere the worst.")
    return bool(complaints)


if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.exit(main())
