"""Detection of wrong arguments mean and variance, which every operator accepts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..tensors.spec import DataFormat, DataFormatLike, parse_data_format
from ._arrays import Float64, prepare, to_float64


class _Statistics(NamedTuple):
    mean: Float64
    variance: Float64


def check_statistics(
    src: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    *,
    data_format: DataFormatLike = DataFormat.NXC,
) -> list[str]:
    """Check whether mean and variance are the statistics of src, and return a list of problems.

    The operators accept any mean and variance of the right shape and dtype; wrong values silently
    give a wrong gradient. This function computes src's own statistics in float64 and compares them
    with the arguments. It is slow: use it in tests, or to find out why a training run does not
    converge.

    The function recognizes negative and non-finite values, standard deviations and inverse standard
    deviations instead of variances, the unbiased variance, means of squares, swapped mean and
    variance, and the statistics of the other data format. Any other deviation of more than
    0.001 standard deviations, or twice the rounding error of the statistics' dtype, is reported as
    the statistics of another batch.

    Parameters
    ----------
    src : array_like, (N, ..., C) or (N, C, ...)
    mean, variance : array_like, (C,)
        The statistics that are passed to an operator.
    data_format : {"NXC", "NCX"} or DataFormat

    Returns
    -------
    list of str
        One sentence for each problem; empty if there is none.

    Examples
    --------
    >>> src = np.random.default_rng(0).normal(1, 3, (64, 8)).astype(np.float32)
    >>> onedsl.testing.check_statistics(src, src.mean(0), src.var(0))
    []
    >>> onedsl.testing.check_statistics(src, src.mean(0), src.std(0))
    ['variance contains standard deviations. Pass their squares']
    """
    parsed = parse_data_format(data_format)
    x, _, _ = prepare(src, parsed)
    given = _Statistics(to_float64(mean), to_float64(variance))
    problems = _wrong_shapes(x, given, parsed)
    if problems or x.size == 0:
        return problems
    for name, values in zip(given._fields, given, strict=True):
        if not np.isfinite(values).all():
            problems.append(f"{name} must be finite, got {_first(~np.isfinite(values), values)}")
    negative = given.variance < 0
    if negative.any():
        problems.append(f"variance must not be negative, got {_first(negative, given.variance)}")
    if problems:
        return problems
    # The tolerance of each statistic, from the rounding error of its dtype.
    roundings = [max(1e-3, 2.0 * float(_precision(values))) for values in (mean, variance)]
    problem = _recognized(x, given, parsed, max(roundings))
    return [problem] if problem else []


def _precision(values: npt.ArrayLike) -> float:
    """Return the relative rounding error of a 16-bit array's dtype, and 0 for other dtypes."""
    dtype = np.asarray(values).dtype
    return {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype.name, 0.0)


def _wrong_shapes(x: Float64, given: _Statistics, data_format: DataFormat) -> list[str]:
    """Return a problem for each of the two arrays whose shape is not (C,)."""
    channels = x.shape[data_format.channel_axis]
    others = x.shape[_other(data_format).channel_axis]
    problems = []
    for name, values in zip(given._fields, given, strict=True):
        if values.shape != (channels,):
            hint = ""
            if values.shape == (others,):
                hint = f", the shape for the format {_other(data_format)}"
            problems.append(
                f"{name} must have shape ({channels},) for src {x.shape} in the format "
                f"{data_format}, got {values.shape}{hint}"
            )
    return problems


def _recognized(
    x: Float64, given: _Statistics, data_format: DataFormat, tolerance: float
) -> str | None:
    """Return the first problem that the values show, or None if they are the statistics of x."""
    true = _statistics(x, data_format)
    deviation = np.sqrt(true.variance)
    count = x.size // true.mean.size

    def is_mean(values: Float64, of: _Statistics = true) -> bool:
        scale = np.sqrt(of.variance) + np.abs(of.mean)
        return bool((np.abs(values - of.mean) <= tolerance * scale).all())

    def is_close(values: Float64, expected: Float64) -> bool:
        return bool((np.abs(values - expected) <= tolerance * np.abs(expected)).all())

    mean_fits, variance_fits = is_mean(given.mean), is_close(given.variance, true.variance)
    if mean_fits:
        if count > 1 and _is_unbiased(given.variance, true.variance, count, tolerance):
            return (
                f"variance is the unbiased one, with divisor {count - 1}. Pass the biased one: "
                f"multiply it by {count - 1}/{count}"
            )
        if variance_fits:
            return None
        if is_close(given.variance, deviation):
            return "variance contains standard deviations. Pass their squares"
        if _is_inverse_deviation(given.variance, true.variance, tolerance):
            return (
                "variance contains inverse standard deviations, 1 / sqrt(variance + epsilon). Pass "
                "the variance"
            )
        if is_close(given.variance, true.variance + true.mean**2):
            return "variance contains means of squares. Subtract the squares of the means"
    if is_mean(given.variance) and is_close(given.mean, true.variance):
        return "mean and variance are swapped"
    if x.ndim > 2 and x.shape[1] == x.shape[-1]:
        other = _statistics(x, _other(data_format))
        if is_mean(given.mean, other) and is_close(given.variance, other.variance):
            return (
                f"mean and variance are those of the format {_other(data_format)}, but "
                f"data_format is {data_format}"
            )
    return _other_statistics(given, true, mean_fits)


def _is_unbiased(values: Float64, variance: Float64, count: int, tolerance: float) -> bool:
    """Return whether the values are close to the unbiased variance, and far from the biased one.

    For many elements per channel both variances are close, hence the second condition.
    """
    unbiased = variance * (count / (count - 1))
    from_unbiased = float(np.abs(values - unbiased).sum())
    from_biased = float(np.abs(values - variance).sum())
    near = bool((np.abs(values - unbiased) <= tolerance * unbiased).all())
    return near and from_unbiased < 0.1 * from_biased


def _is_inverse_deviation(values: Float64, variance: Float64, tolerance: float) -> bool:
    """Return whether the values are 1 / sqrt(variance + epsilon) for some epsilon up to 0.1."""
    if not (values > 0).all():
        return False
    sums = values**-2.0  # variance + epsilon
    least = int(variance.argmin())  # where epsilon is the largest part of the sum
    epsilon = max(0.0, float(sums[least] - variance[least]))
    if epsilon > 0.1:
        return False
    return bool((np.abs(sums - variance - epsilon) <= 2 * tolerance * sums).all())


def _other_statistics(given: _Statistics, true: _Statistics, mean_fits: bool) -> str:
    """Return a problem that contains the largest deviation from the statistics of src."""
    name = "variance" if mean_fits else "mean"
    values, expected = (getattr(statistics, name) for statistics in (given, true))
    scale = true.variance if mean_fits else np.sqrt(true.variance)
    off = np.abs(values - expected) / np.where(scale > 0, scale, 1)
    worst = int(off.argmax())
    return (
        f"{name} must be src's, {expected[worst]:.6g} in channel {worst}, got {values[worst]:.6g}. "
        "Are these the statistics of another batch, or running statistics?"
    )


def _statistics(x: Float64, data_format: DataFormat) -> _Statistics:
    axes = data_format.summed_axes(x.ndim)
    mean = x.mean(axes)
    broadcast = mean.reshape(data_format.statistics_shape_beside(x.shape))
    return _Statistics(mean, ((x - broadcast) ** 2).mean(axes))


def _other(data_format: DataFormat) -> DataFormat:
    return DataFormat.NCX if data_format is DataFormat.NXC else DataFormat.NXC


def _first(wrong: npt.NDArray[np.bool_], values: Float64) -> str:
    """Describe the first wrong value, and count the channels with wrong values."""
    first = int(wrong.argmax())
    return f"{values[first]:.6g} in channel {first} ({int(wrong.sum())} of {wrong.size} channels)"
