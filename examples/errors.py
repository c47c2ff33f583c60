"""Compare the rounding errors of onedsl, oneDNN and PyTorch on easy and on hard f32 inputs.

Prints a Markdown table: the relative L2 error of diff_src, and the largest error of a sum
(diff_gamma, diff_beta) in units in the last place of f32. The exit status is 1 if onedsl is the
least accurate in a row, or if a sum of the ordinary input is off by more than two units. The
reference adds exact products with `math.fsum` and continues in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import onedsl
from onedsl import testing

Array = npt.NDArray[Any]
Gradients = tuple[Array, Array, Array]

EPSILON = 1e-5


class Errors(NamedTuple):
    """Errors of one result: relative L2, and units in the last place of the sums."""

    diff_src: float
    ulps: float


def inputs(elements: int) -> Iterator[tuple[str, testing.Problem]]:
    """Yield named problems with a number of elements per channel."""
    rng = np.random.default_rng(0)

    def noise() -> Array:
        return rng.standard_normal((2, elements // 20, 10, 16))

    def problem(src: Array, diff_dst: Array) -> testing.Problem:
        src, diff_dst = src.astype(np.float32), diff_dst.astype(np.float32)
        x = src.astype(np.float64)
        mean, variance = (s.astype(np.float32) for s in (x.mean((0, 1, 2)), x.var((0, 1, 2))))
        gamma = np.linspace(0.5, 2, mean.size, dtype=np.float32)
        return testing.Problem(src, diff_dst, mean, variance, gamma)

    def correlated(src: Array) -> Array:  # with src, as in training
        return rng.standard_normal(src.shape) + 0.25 + 0.5 * src

    src = 1.5 * noise() + 0.5
    yield "ordinary", problem(src, correlated(src))
    yield "mean 1,000,000 times the deviation", problem(1.5e6 + src, correlated(src))
    yield "subnormal diff_dst", problem(src, 2.0**-128 * correlated(src))
    # The second image cancels the first, except for one element per channel.
    src, diff_dst = noise(), noise()
    src[0, 0, 0] = 1.5  # away from the mean, so that diff_gamma is not almost zero
    src[1], diff_dst[1] = src[0], -diff_dst[0]
    diff_dst[0, 0, 0] += 2
    yield "sums that cancel", problem(src, diff_dst)


def exact_gradients(problem: testing.Problem) -> Gradients:
    """Compute the gradients with exact sums, and diff_src in float64.

    Products of two values of 24 bits are exact in float64, so all terms of
    ``sum(diff_dst * src) - sum(diff_dst * mean)`` are exact, although their differences are not.
    """
    x, dy, mean, variance, _ = (a.astype(np.float64) for a in problem)
    diff_beta, diff_gamma = np.empty_like(mean), np.empty_like(mean)
    for channel, m in enumerate(mean):
        a, b = x[..., channel].ravel(), dy[..., channel].ravel()
        diff_beta[channel] = math.fsum(b)
        diff_gamma[channel] = math.fsum(np.concatenate([a * b, -m * b]))
    diff_src = testing.batch_norm_backward(*problem, epsilon=EPSILON).diff_src
    return diff_src, diff_gamma / np.sqrt(variance + EPSILON), diff_beta


def compute(name: str, problem: testing.Problem, data_format: Literal["NXC", "NCX"]) -> Gradients:
    """Compute an implementation's gradients."""
    src, diff_dst, mean, variance, gamma = problem
    if data_format == "NCX":
        src, diff_dst = (np.moveaxis(a, -1, 1).copy() for a in (src, diff_dst))
    if name == "PyTorch":
        import torch

        rstd = (1 / np.sqrt(variance.astype(np.float64) + EPSILON)).astype(np.float32)
        x, dy, m, r, g = map(torch.from_numpy, (src, diff_dst, mean, rstd, gamma))
        if data_format == "NXC":
            x, dy = x.movedim(-1, 1), dy.movedim(-1, 1)
        gradients = torch.ops.aten.native_batch_norm_backward(
            dy, x, g, None, None, m, r, True, EPSILON, [True] * 3
        )
        diff_src, diff_gamma, diff_beta = (gradient.numpy() for gradient in gradients)
    else:
        op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
        backend: Literal["auto", "onednn"] = "auto" if name == "onedsl" else "onednn"
        grads = op(src, diff_dst, mean, variance, gamma, backend=backend)
        diff_src, diff_gamma, diff_beta = grads.diff_src, grads.diff_gamma, grads.diff_beta
    if data_format == "NCX" or name == "PyTorch":
        diff_src = np.moveaxis(diff_src, 1, -1)
    return diff_src, diff_gamma, diff_beta


def errors_of(got: Gradients, expected: Gradients) -> Errors:
    """Compute the errors of a result."""
    sums, exact = np.stack(got[1:]).astype(np.float64), np.stack(expected[1:])
    ulps = np.abs(sums - exact) / np.spacing(np.abs(exact).astype(np.float32))
    return Errors(testing.relative_l2(got[0], expected[0]), float(ulps.max()))


def violations(row: str, found: Mapping[str, Errors]) -> Iterator[str]:
    """Describe each claim about onedsl that a row contradicts."""
    rounding = Errors(3e-8, 0.5)  # of the exact result, at least
    for field, error, best in zip(Errors._fields, found["onedsl"], rounding, strict=True):
        others = [getattr(e, field) for name, e in found.items() if name != "onedsl"]
        if others and error > 1.05 * max(best, *others):
            yield f"{row}: onedsl has the largest error of {field}"
    if row.startswith("ordinary") and found["onedsl"].ulps > 2:
        yield f"{row}: a sum is off by {found['onedsl'].ulps:.1f} units in the last place"


def main() -> int:
    """Print the table and the violated claims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=100_000, help="per channel")
    elements = parser.parse_args().elements
    names = ["onedsl", "oneDNN"] + ["PyTorch"] * bool(importlib.util.find_spec("torch"))
    print(f"| input, format |{2 * (' ' + ' | '.join(names) + ' |')}")
    print(f"|---|{'---|' * 2 * len(names)}")
    wrong: list[str] = []
    for name, problem in inputs(elements):
        exact = exact_gradients(problem)
        for data_format in ("NXC", "NCX"):
            row = f"{name}, {data_format}"
            found = {n: errors_of(compute(n, problem, data_format), exact) for n in names}
            cells = [f"{e[i]:.2g}" for i in range(2) for e in found.values()]
            print(f"| {row} | {' | '.join(cells)} |", flush=True)
            wrong += violations(row, found)
    print("\n" + ("\n".join(wrong) or "onedsl is never the least accurate."))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
