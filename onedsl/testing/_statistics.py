"""Mistakes in statistics that no call can refuse."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..tensors.spec import DataFormat, DataFormatLike, parse_data_format
from ._arrays import Float64, layout, wide


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
    """Tell in words what is wrong with statistics that are said to be src's own.

    The gradient takes any mean and any variance of the right shape and type, for it cannot know
    them; wrong ones give a wrong gradient and no error. This computes src's own in float64, which
    is slow, and compares: for a test, or a look when a training run does not converge.

    It recognizes a standard deviation and its inverse in place of the variance, the unbiased
    variance, the mean of squares, mean and variance swapped, the statistics of the other format,
    negative and non-finite values. Anything else that is off by more than a thousandth of the
    standard deviation, or than the statistics' own type rounds, is said to be another batch's.

    Parameters
    ----------
    src : array_like, (N, ..., C) or (N, C, ...)
    mean, variance : array_like, (C,)
        As they would be given to an operator.
    data_format : {"NXC", "NCX"} or DataFormat

    Returns
    -------
    list of str
        A sentence for each finding; empty where all is well.

    Examples
    --------
    >>> src = np.random.default_rng(0).normal(1, 3, (64, 8)).astype(np.float32)
    >>> onedsl.testing.check_statistics(src, src.mean(0), src.var(0))
    []
    >>> onedsl.testing.check_statistics(src, src.mean(0), src.std(0))
    ['variance holds standard deviations: pass their squares']
    """
    parsed = parse_data_format(data_format)
    x, _, _ = layout(src, parsed)
    given = _Statistics(wide(mean), wide(variance))
    findings = _wrong_shapes(x, given, parsed)
    if findings or x.size == 0:
        return findings
    for name, values in zip(given._fields, given, strict=True):
        if not np.isfinite(values).all():
            findings.append(f"{name} is not finite {_where(~np.isfinite(values), values)}")
    negative = given.variance < 0
    if negative.any():
        findings.append(f"variance is negative {_where(negative, given.variance)}")
    if findings:
        return findings
    # How far values are off that their type has rounded.
    roundings = [max(1e-3, 2.0 * float(_precision(values))) for values in (mean, variance)]
    finding = _recognized(x, given, parsed, max(roundings))
    return [finding] if finding else []


def _precision(values: npt.ArrayLike) -> float:
    dtype = np.asarray(values).dtype
    return {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype.name, 0.0)


def _wrong_shapes(x: Float64, given: _Statistics, data_format: DataFormat) -> list[str]:
    channels = x.shape[data_format.channel_axis]
    others = x.shape[_other(data_format).channel_axis]
    findings = []
    for name, values in zip(given._fields, given, strict=True):
        if values.shape != (channels,):
            hint = ""
            if values.shape == (others,):
                hint = f"; it is that of the format {_other(data_format)}"
            findings.append(
                f"{name} has shape {values.shape}, and src {x.shape} in the format {data_format} "
                f"needs ({channels},){hint}"
            )
    return findings


def _recognized(
    x: Float64, given: _Statistics, data_format: DataFormat, tolerance: float
) -> str | None:
    true = _statistics(x, data_format)
    deviation = np.sqrt(true.variance)
    count = x.size // true.mean.size

    def is_mean(values: Float64, of: _Statistics = true) -> bool:
        scale = np.sqrt(of.variance) + np.abs(of.mean)
        return bool((np.abs(values - of.mean) <= tolerance * scale).all())

    def is_spread(values: Float64, expected: Float64) -> bool:
        return bool((np.abs(values - expected) <= tolerance * np.abs(expected)).all())

    mean_fits, variance_fits = is_mean(given.mean), is_spread(given.variance, true.variance)
    if mean_fits:
        if count > 1 and _is_unbiased(given.variance, true.variance, count, tolerance):
            return (
                f"variance is the unbiased one, of a sum over {count - 1}: pass the biased one, "
                f"{count - 1}/{count} of it"
            )
        if variance_fits:
            return None
        if is_spread(given.variance, deviation):
            return "variance holds standard deviations: pass their squares"
        if _is_inverse_deviation(given.variance, true.variance, tolerance):
            return (
                "variance holds inverse standard deviations, 1 / sqrt(variance + epsilon): pass "
                "the variance itself"
            )
        if is_spread(given.variance, true.variance + true.mean**2):
            return "variance holds means of squares: subtract the squares of the means"
    if is_mean(given.variance) and is_spread(given.mean, true.variance):
        return "mean and variance are swapped"
    if x.ndim > 2 and x.shape[1] == x.shape[-1]:
        other = _statistics(x, _other(data_format))
        if is_mean(given.mean, other) and is_spread(given.variance, other.variance):
            return (
                f"mean and variance are those of the format {_other(data_format)}, and "
                f"data_format says {data_format}"
            )
    return _another_batch(given, true, mean_fits)


def _is_unbiased(values: Float64, variance: Float64, count: int, tolerance: float) -> bool:
    """Tell by which of the two is nearer by far: with many elements they hardly differ."""
    unbiased = variance * (count / (count - 1))
    from_unbiased = float(np.abs(values - unbiased).sum())
    from_biased = float(np.abs(values - variance).sum())
    near = bool((np.abs(values - unbiased) <= tolerance * unbiased).all())
    return near and from_unbiased < 0.1 * from_biased


def _is_inverse_deviation(values: Float64, variance: Float64, tolerance: float) -> bool:
    if not (values > 0).all():
        return False
    widened = values**-2.0  # variance + epsilon
    least = int(variance.argmin())  # where rounding hides least of it
    epsilon = max(0.0, float(widened[least] - variance[least]))
    if epsilon > 0.1:
        return False
    return bool((np.abs(widened - variance - epsilon) <= 2 * tolerance * widened).all())


def _another_batch(given: _Statistics, true: _Statistics, mean_fits: bool) -> str:
    name = "variance" if mean_fits else "mean"
    values, expected = (getattr(statistics, name) for statistics in (given, true))
    scale = true.variance if mean_fits else np.sqrt(true.variance)
    off = np.abs(values - expected) / np.where(scale > 0, scale, 1)
    worst = int(off.argmax())
    return (
        f"{name} is not src's: {values[worst]:.6g} in channel {worst}, where src has "
        f"{expected[worst]:.6g}. Are they another batch's, or running statistics?"
    )


def _statistics(x: Float64, data_format: DataFormat) -> _Statistics:
    axes = data_format.summed_axes(x.ndim)
    mean = x.mean(axes)
    beside = mean.reshape(data_format.statistics_shape_beside(x.shape))
    return _Statistics(mean, ((x - beside) ** 2).mean(axes))


def _other(data_format: DataFormat) -> DataFormat:
    return DataFormat.NCX if data_format is DataFormat.NXC else DataFormat.NXC


def _where(wrong: npt.NDArray[np.bool_], values: Float64) -> str:
    first = int(wrong.argmax())
    return f"in {int(wrong.sum())} of {wrong.size} channels (channel {first}: {values[first]:.6g})"
