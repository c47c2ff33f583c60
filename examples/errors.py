"""Compare the rounding errors of onedsl, oneDNN and PyTorch on easy and on hard inputs.

Prints a Markdown table with one row per input, type and data format: the relative L2 error of
diff_src, and the largest error of a sum (diff_gamma, diff_beta) in units in the last place of f32,
for onedsl, oneDNN and PyTorch. The exit status is 1 if onedsl is the least accurate in
a row, or if a sum of the ordinary input is off by more than two units. The reference adds exact
products with `math.fsum` and continues in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import onedsl
from onedsl import testing

Array = npt.NDArray[Any]
Gradients = tuple[Array, Array, Array]

TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
IMPLEMENTATIONS = ("onedsl", "oneDNN", "PyTorch")
ORDINARY = "ordinary"
TIE = 1.05  # errors within this factor count as equal


class Problem(NamedTuple):
    """Inputs of the gradient; src and diff_dst have shape (N, H, W, C)."""

    src: Array
    diff_dst: Array
    mean: Array
    variance: Array
    gamma: Array
    epsilon: float


class Errors(NamedTuple):
    """Errors of one result."""

    diff_src: float
    ulps: float


def inputs(dtype: str, elements: int, many: int) -> Iterator[tuple[str, Problem]]:
    """Yield named problems with `elements` per channel, and one with `many`."""
    rng = np.random.default_rng(0)

    def noise(size: int = elements, channels: int = 16) -> Array:
        return rng.standard_normal((2, size // 20, 10, channels))

    def problem(src: Array, diff_dst: Array, epsilon: float = 1e-5) -> Problem:
        src, diff_dst = src.astype(TYPES[dtype]), diff_dst.astype(TYPES[dtype])
        x = src.astype(np.float64)
        mean, variance = (s.astype(np.float32) for s in (x.mean((0, 1, 2)), x.var((0, 1, 2))))
        gamma = np.linspace(0.5, 2, mean.size, dtype=np.float32)
        return Problem(src, diff_dst, mean, variance, gamma, epsilon)

    def correlated(src: Array) -> Array:
        """Return a diff_dst that is correlated with src, as in training."""
        return rng.standard_normal(src.shape) + 0.25 + 0.5 * src

    src = 1.5 * noise() + 0.5
    yield ORDINARY, problem(src, correlated(src))
    # The largest ratio at which a 16-bit type still represents the deviations.
    mean = {"f32": 1e6, "bf16": 1e2, "f16": 1e3}[dtype]
    src = noise()
    yield f"mean {mean:,.0f} times the deviation", problem(mean + src, correlated(src))
    src = 1.5 * noise(many, channels=2) + 0.5
    yield f"{many:,} elements a channel", problem(src, correlated(src))
    # The second image cancels the first, except for one element per channel.
    src, diff_dst = noise(), noise()
    src[0, 0, 0] = 1.5  # away from the mean, so that diff_gamma is not almost zero
    src[1], diff_dst[1] = src[0], -diff_dst[0]
    diff_dst[0, 0, 0] += 2
    yield "sums that cancel", problem(src, diff_dst)
    smallest = 2.0**-14 if dtype == "f16" else 2.0**-126  # normal number
    src = noise()
    yield "subnormal diff_dst", problem(src, smallest / 4 * correlated(src))


def exact_gradients(problem: Problem) -> Gradients:
    """Compute the gradients with exact sums, and in float64 from there.

    Products of two values of 24 bits are exact in float64, so all terms of
    ``sum(diff_dst * src) - sum(diff_dst * mean)`` are exact, although their differences are not.
    """
    x, dy, mean, variance, gamma = (a.astype(np.float64) for a in problem[:5])
    rstd = 1 / np.sqrt(variance + problem.epsilon)
    diff_beta, diff_gamma = np.empty_like(mean), np.empty_like(mean)
    for channel, m in enumerate(mean):
        a, b = x[..., channel].ravel(), dy[..., channel].ravel()
        diff_beta[channel] = math.fsum(b)
        diff_gamma[channel] = math.fsum(np.concatenate([a * b, -m * b])) * rstd[channel]
    count = x.size // mean.size
    centered = dy - diff_beta / count - (x - mean) * rstd * diff_gamma / count
    return gamma * rstd * centered, diff_gamma, diff_beta


def compute(name: str, problem: Problem, data_format: Literal["NXC", "NCX"]) -> Gradients | None:
    """Compute an implementation's gradients; return None if it does not run here."""
    src, diff_dst, mean, variance, gamma, epsilon = problem
    ncx = data_format == "NCX"
    if ncx:
        src, diff_dst = (np.moveaxis(a, -1, 1).copy() for a in (src, diff_dst))
    if name == "PyTorch":
        if importlib.util.find_spec("torch") is None:
            return None
        import torch

        rstd = (1 / np.sqrt(variance.astype(np.float64) + epsilon)).astype(np.float32)
        if src.dtype == TYPES["bf16"]:
            tensors = [torch.from_numpy(a.view("i2")).view(torch.bfloat16) for a in (src, diff_dst)]
        else:
            tensors = [torch.from_numpy(a) for a in (src, diff_dst)]
        x, dy = (t if ncx else t.movedim(-1, 1) for t in tensors)
        m, r, g = map(torch.from_numpy, (mean, rstd, gamma))
        gradients = torch.ops.aten.native_batch_norm_backward(
            dy, x, g, None, None, m, r, True, epsilon, [True] * 3
        )
        diff_src, diff_gamma, diff_beta = (gradient.double().numpy() for gradient in gradients)
        return np.moveaxis(diff_src, 1, -1), diff_gamma, diff_beta
    op = onedsl.BatchNormTrainingBackward(epsilon, data_format)
    backend: Literal["native", "onednn"] = "native" if name == "onedsl" else "onednn"
    try:
        grads = op(src, diff_dst, mean, variance, gamma, backend=backend)
    except onedsl.UnsupportedError:
        return None
    diff_src = np.moveaxis(grads.diff_src, 1, -1) if ncx else grads.diff_src
    return diff_src, grads.diff_gamma, grads.diff_beta


def errors_of(got: Gradients, expected: Gradients) -> Errors:
    """Compute the errors of a result."""
    sums, exact = np.stack(got[1:]).astype(np.float64), np.stack(expected[1:])
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return Errors(
        testing.relative_l2(got[0], expected[0]), float((np.abs(sums - exact) / unit).max())
    )


def violations(row: str, rounded: Errors, found: Mapping[str, Errors]) -> Iterator[str]:
    """Describe each claim about onedsl that a row contradicts.

    `rounded` contains the smallest possible errors: of the exact result, rounded to the types.
    """
    for field, error, best in zip(Errors._fields, found["onedsl"], rounded, strict=True):
        others = [getattr(e, field) for name, e in found.items() if name != "onedsl"]
        if others and error > TIE * max(best, *others):
            yield f"{row}: onedsl has the largest error of {field}"
    if row.startswith(ORDINARY) and found["onedsl"].ulps > 2:
        yield f"{row}: a sum is off by {found['onedsl'].ulps:.1f} units in the last place"


def main() -> int:
    """Print the table and the violated claims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=100_000, help="per channel, in most rows")
    parser.add_argument("--many", type=int, default=10_000_000, help="per channel, in one row")
    options = parser.parse_args()
    print(f"| input, type, format |{2 * (' ' + ' | '.join(IMPLEMENTATIONS) + ' |')}")
    print(f"|---|{'---|' * 6}")
    wrong: list[str] = []
    for dtype, numpy_type in TYPES.items():
        for name, problem in inputs(dtype, options.elements, options.many):
            exact = exact_gradients(problem)
            rounded = exact[0].astype(numpy_type), exact[1].astype("f4"), exact[2].astype("f4")
            for data_format in ("NXC", "NCX"):
                row = f"{name}, {dtype}, {data_format}"
                results = {n: compute(n, problem, data_format) for n in IMPLEMENTATIONS}
                found = {n: errors_of(got, exact) for n, got in results.items() if got}
                cells = [
                    f"{getattr(found[n], field):.2g}" if n in found else "-"
                    for field in Errors._fields
                    for n in IMPLEMENTATIONS
                ]
                print(f"| {row} | {' | '.join(cells)} |", flush=True)
                wrong += violations(row, errors_of(rounded, exact), found)
    print("\n" + ("\n".join(wrong) or "onedsl is never the least accurate."))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
