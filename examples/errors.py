"""Compare the rounding errors of onedsl, oneDNN and PyTorch on easy and on hard inputs.

Prints a Markdown table with one row per input, type and data format: the relative L2 error of
diff_src, that of the sums (diff_gamma and diff_beta, the larger of the two), and the largest error
of a sum in units in the last place of f32. "rounded" is the smallest possible error: the exact
result, rounded once to the output's type.

The exit status is 1 if onedsl is the least accurate in a row, or if a sum of the ordinary input is
off by more than two units; such rows are listed below the table. The reference adds exact products
with `math.fsum` and continues in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import onedsl

Array = npt.NDArray[Any]
Gradients = tuple[Array, Array, Array]

DTYPES = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}
ORDINARY = "ordinary"
TIE = 1.05  # errors within this factor count as equal
MAX_ULPS = 2.0


class Problem(NamedTuple):
    """Inputs of the gradient; src and diff_dst have shape (N, C, H, W)."""

    src: Array
    diff_dst: Array
    mean: Array
    variance: Array
    gamma: Array
    epsilon: float


class Errors(NamedTuple):
    """Errors of one result; infinite if a finite value and an inf or NaN are exchanged."""

    diff_src: float
    sums: float
    ulps: float


def make_problem(src: Array, diff_dst: Array, dtype: str, epsilon: float = 1e-5) -> Problem:
    """Round the tensors to the type, and compute mean and variance from the rounded src."""
    src, diff_dst = src.astype(DTYPES[dtype]), diff_dst.astype(DTYPES[dtype])
    x = src.astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean, variance = (s.astype(np.float32) for s in (x.mean((0, 2, 3)), x.var((0, 2, 3))))
    gamma = np.linspace(0.5, 2, src.shape[1], dtype=np.float32)
    return Problem(src, diff_dst, mean, variance, gamma, epsilon)


def inputs(dtype: str, elements: int, many: int) -> Iterator[tuple[str, Problem]]:
    """Yield named problems with `elements` per channel, and one with `many`."""
    rng = np.random.default_rng(0)

    def noise(size: int = elements, channels: int = 16) -> Array:
        return rng.standard_normal((2, channels, size // 20, 10))

    def correlated(src: Array) -> Array:
        """Return a diff_dst that is correlated with src, as in training."""
        return rng.standard_normal(src.shape) + 0.25 + 0.5 * src

    src = 1.5 * noise() + 0.5
    yield ORDINARY, make_problem(src, correlated(src), dtype)

    # The largest ratio at which a 16-bit type still represents the deviations.
    mean = {"f32": 1e6, "bf16": 1e2, "f16": 1e3}[dtype]
    src = noise()
    yield f"mean {mean:,.0f} times the deviation", make_problem(mean + src, correlated(src), dtype)

    deviation = 1e-3 if dtype == "f16" else 1e-6  # the smallest f16 is 6e-8
    tiny = make_problem(deviation * src, correlated(src), dtype, deviation**2)
    yield f"variance and epsilon {deviation**2:.0e}", tiny

    src = 1.5 * noise(many, channels=2) + 0.5
    yield f"{many:,} elements a channel", make_problem(src, correlated(src), dtype)

    # The second image cancels the first, except for one element per channel.
    src, diff_dst = noise(), noise()
    src[0, :, 0, 0] = 1.5  # away from the mean, so that diff_gamma is not almost zero
    src[1], diff_dst[1] = src[0], -diff_dst[0]
    diff_dst[0, :, 0, 0] += 2
    yield "sums that cancel", make_problem(src, diff_dst, dtype)

    # diff_dst is a linear function of src, so only its rounding remains in diff_src.
    src = noise()
    yield "diff_src cancels", make_problem(src, 0.25 + 0.5 * src.astype(DTYPES[dtype]), dtype)

    smallest = 2.0**-14 if dtype == "f16" else 2.0**-126  # normal number
    yield "subnormal diff_dst", make_problem(src, smallest / 4 * correlated(src), dtype)

    diff_dst = correlated(src)
    src[0, 0, 0, 0], src[0, 1, 0, 0] = np.inf, np.nan
    diff_dst[0, 2, 0, 0], diff_dst[0, 3, 0, 0] = np.inf, np.nan
    yield "an inf or NaN in 4 channels of 16", make_problem(src, diff_dst, dtype)


def per_channel(values: Array) -> Array:
    """Reshape one value per channel so that it broadcasts to (N, C, H, W)."""
    return values.reshape(1, -1, 1, 1)


def exact_sum(*parts: Array) -> float:
    """Return the sum of all items, rounded once."""
    return math.fsum(item for part in parts for line in part for item in line.ravel().tolist())


def exact_gradients(problem: Problem) -> Gradients:
    """Compute the gradients with exact sums, and in float64 from there.

    Products of two values of 24 bits are exact in float64, so all terms of
    ``sum(diff_dst * src) - sum(diff_dst * mean)`` are exact, although their differences are not.
    """
    x, dy, mean, variance, gamma = (a.astype(np.float64) for a in problem[:5])
    rstd = 1 / np.sqrt(variance + problem.epsilon)
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
    centered = dy - per_channel(diff_beta) / count - xhat * per_channel(diff_gamma) / count
    return per_channel(gamma * rstd) * centered, diff_gamma, diff_beta


def run_onedsl(
    problem: Problem, data_format: str, backend: Literal["native", "onednn"]
) -> Gradients | None:
    """Compute the gradients with onedsl; return None if the backend does not run here."""
    op = onedsl.BatchNormTrainingBackward(problem.epsilon, onedsl.DataFormat(data_format))
    src, diff_dst = problem.src, problem.diff_dst
    if data_format == "NXC":
        src, diff_dst = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (src, diff_dst))
    try:
        diff_src, *sums = op(src, diff_dst, *problem[2:5], backend=backend)
    except onedsl.UnsupportedError:
        return None
    return np.moveaxis(diff_src, -1, 1) if data_format == "NXC" else diff_src, sums[0], sums[1]


def run_torch(problem: Problem, data_format: str) -> Gradients | None:
    """Compute the gradients with PyTorch's kernel; return None if PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    memory = torch.contiguous_format if data_format == "NCX" else torch.channels_last

    def tensor(array: Array) -> torch.Tensor:
        if array.dtype == DTYPES["bf16"]:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    src, diff_dst = (tensor(a).contiguous(memory_format=memory) for a in problem[:2])
    rstd = (1 / np.sqrt(problem.variance.astype(np.float64) + problem.epsilon)).astype(np.float32)
    mean, rstd, gamma = (tensor(array) for array in (problem.mean, rstd, problem.gamma))
    gradients = torch.ops.aten.native_batch_norm_backward(
        diff_dst, src, gamma, None, None, mean, rstd, True, problem.epsilon, [True] * 3
    )
    diff_src, diff_gamma, diff_beta = (gradient.double().numpy() for gradient in gradients)
    return diff_src, diff_gamma, diff_beta


IMPLEMENTATIONS: dict[str, Callable[[Problem, str], Gradients | None]] = {
    "onedsl": lambda problem, data_format: run_onedsl(problem, data_format, "native"),
    "oneDNN": lambda problem, data_format: run_onedsl(problem, data_format, "onednn"),
    "PyTorch": run_torch,
}


def relative_l2(got: Array, expected: Array) -> float:
    """Return the relative L2 error of the items whose expected value is finite."""
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(got)):
        return math.inf
    difference = got[finite].astype(np.float64) - expected[finite]
    return float(np.linalg.norm(difference) / np.linalg.norm(expected[finite]))


def errors_of(got: Gradients, expected: Gradients) -> Errors:
    """Compute the errors of a result."""
    sums, exact = np.stack(got[1:]).astype(np.float64), np.stack(expected[1:])
    finite = np.isfinite(exact)
    unit = np.spacing(np.abs(exact[finite]).astype(np.float32)).astype(np.float64)
    return Errors(
        relative_l2(got[0], expected[0]),
        max(relative_l2(sums[i], exact[i]) for i in range(2)),
        float((np.abs(sums[finite] - exact[finite]) / unit).max(initial=0)),
    )


class Row(NamedTuple):
    """A row of the table."""

    name: str
    dtype: str
    data_format: str
    rounded: Errors
    found: dict[str, Errors]

    def violations(self) -> Iterator[str]:
        """Describe each claim about onedsl that this row contradicts."""
        row = f"{self.name}, {self.dtype}, {self.data_format}"
        onedsl, *others = self.found.values()
        for field in Errors._fields:
            error, best = getattr(onedsl, field), getattr(self.rounded, field)
            if others and error > TIE * max(best, *(getattr(other, field) for other in others)):
                yield f"{row}: onedsl has the largest error of {field}"
        if self.name == ORDINARY and onedsl.ulps > MAX_ULPS:
            yield f"{row}: a sum is off by {onedsl.ulps:.1f} units in the last place"

    def to_markdown(self) -> str:
        """Return the row as a line of a Markdown table."""
        cells = [self.name, self.dtype, self.data_format]
        for field, pattern in zip(Errors._fields, ("{:.1e}", "{:.1e}", "{:.2g}"), strict=True):
            results = [self.found.get(name) for name in IMPLEMENTATIONS]
            if field != "ulps":
                results.insert(0, self.rounded)
            cells += [pattern.format(getattr(e, field)) if e else "-" for e in results]
        return f"| {' | '.join(cells)} |"


def measure(dtype: str, elements: int, many: int) -> Iterator[Row]:
    """Yield the rows of one type."""
    for name, problem in inputs(dtype, elements, many):
        with np.errstate(invalid="ignore"):
            exact = exact_gradients(problem)
        types = DTYPES[dtype], np.float32, np.float32
        rounded = tuple(a.astype(t) for a, t in zip(exact, types, strict=True))
        best = errors_of((rounded[0], rounded[1], rounded[2]), exact)
        for data_format in ("NCX", "NXC"):
            results = {who: run(problem, data_format) for who, run in IMPLEMENTATIONS.items()}
            found = {who: errors_of(got, exact) for who, got in results.items() if got}
            yield Row(name, dtype, data_format, best, found)


def main() -> int:
    """Print the table and the violated claims."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--elements", type=int, default=100_000, help="per channel, in most rows")
    parser.add_argument("--many", type=int, default=10_000_000, help="per channel, in one row")
    options = parser.parse_args()
    if min(options.elements, options.many) < 20:
        parser.error("--elements and --many must be at least 20")
    names = " | ".join(IMPLEMENTATIONS)
    print("Relative L2 error of diff_src, then of the sums, then the sums' error in ulps:\n")
    print(f"| input | type | format | rounded | {names} | rounded | {names} | {names} |")
    print(f"|---|---|---{'|---' * 11}|")
    violations: list[str] = []
    for dtype in DTYPES:
        for row in measure(dtype, options.elements, options.many):
            print(row.to_markdown(), flush=True)
            violations += row.violations()
    print()
    print("\n".join(violations) or "onedsl is never the least accurate.")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
