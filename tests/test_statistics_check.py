"""onedsl.testing.check_statistics."""

import helpers
import numpy as np
import pytest

from onedsl.testing import check_statistics


def problem(dtype="f32", stats="f32", data_format="NXC", shape=(6, 9, 9, 9)):
    """Return src with very different channels, its float64 statistics, and their dtype."""
    rng = np.random.default_rng(0)
    axes = tuple(
        a for a in range(len(shape)) if a != (len(shape) - 1 if data_format == "NXC" else 1)
    )
    broadcast = [1 if a in axes else n for a, n in enumerate(shape)]
    deviation = np.geomspace(0.1, 5, max(broadcast)).reshape(broadcast)
    src = (rng.normal(1, 2, shape) * deviation + np.sqrt(deviation)).astype(helpers.NUMPY[dtype])
    x = src.astype(np.float64)
    return src, x.mean(axes), x.var(axes), helpers.NUMPY[stats]


@helpers.types
@helpers.formats
def test_correct_statistics(dtype, stats, data_format):
    src, mean, variance, kind = problem(dtype, stats, data_format)
    found = check_statistics(src, mean.astype(kind), variance.astype(kind), data_format=data_format)
    assert found == []


MISTAKES = {
    "deviations": (lambda m, v: (m, np.sqrt(v)), "variance contains standard deviations"),
    "inverse deviations": (lambda m, v: (m, (v + 1e-3) ** -0.5), "inverse standard deviations"),
    "squares": (lambda m, v: (m, v + m**2), "means of squares"),
    "swapped": (lambda m, v: (v, m), "mean and variance are swapped"),
    "negative": (lambda m, v: (m, v - 2 * v.min()), "variance must not be negative, got"),
    "another mean": (lambda m, v: (m + np.sqrt(v) / 10, v), "mean must be src's"),
    "another variance": (lambda m, v: (m, v * 1.1), "variance must be src's"),
    "infinite": (
        lambda m, v: (m / np.arange(9), v),
        "mean must be finite, got inf",
    ),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@helpers.types
@helpers.formats
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_recognized(mistake, dtype, stats, data_format):
    src, mean, variance, kind = problem(dtype, stats, data_format)
    change, message = MISTAKES[mistake]
    given = [values.astype(kind) for values in change(mean, variance)]
    (found,) = check_statistics(src, *given, data_format=data_format)
    assert message in found


@pytest.mark.parametrize("rows", [10, 486, 100_000])
def test_the_unbiased_variance(rows):
    src, mean, variance, _ = problem(shape=(rows, 9))
    unbiased = (variance * rows / (rows - 1)).astype(np.float32)
    (found,) = check_statistics(src, mean.astype(np.float32), unbiased)
    assert f"multiply it by {rows - 1}/{rows}" in found


def test_statistics_of_the_other_format():
    src, mean, variance, _ = problem()
    (found,) = check_statistics(src, mean, variance, data_format="NCX")
    assert found == "mean and variance are those of the format NXC, but data_format is NCX"


def test_number_of_channels_of_the_other_format():
    src = np.ones((4, 8, 8, 3), np.float32)
    found = check_statistics(src, np.ones(3), np.ones(3), data_format="NCX")
    assert [line.partition(" must")[0] for line in found] == ["mean", "variance"]
    assert all("the shape for the format NXC" in line for line in found)


def test_few_elements():
    assert check_statistics(np.ones((1, 3)), np.ones(3), np.zeros(3)) == []
    assert check_statistics(np.ones((0, 3)), np.ones(3), np.zeros(3)) == []
    assert check_statistics(np.ones((5, 3)), np.ones(3), np.zeros(3)) == []
