"""`check_statistics` names each mistake that no call can refuse."""

import helpers
import numpy as np
import pytest

from onedsl.testing import check_statistics


def problem(dtype="f32", stats="f32", data_format="NXC", shape=(6, 9, 9, 9)):
    """Make src whose channels differ much, with its own statistics in float64, and their type."""
    rng = np.random.default_rng(0)
    axes = tuple(
        a for a in range(len(shape)) if a != (len(shape) - 1 if data_format == "NXC" else 1)
    )
    beside = [1 if a in axes else n for a, n in enumerate(shape)]
    spread = np.geomspace(0.1, 5, max(beside)).reshape(beside)
    src = (rng.normal(1, 2, shape) * spread + np.sqrt(spread)).astype(helpers.NUMPY[dtype])
    x = src.astype(np.float64)
    return src, x.mean(axes), x.var(axes), helpers.NUMPY[stats]


@helpers.types
@helpers.formats
def test_right_statistics_have_no_findings(dtype, stats, data_format):
    src, mean, variance, kind = problem(dtype, stats, data_format)
    found = check_statistics(src, mean.astype(kind), variance.astype(kind), data_format=data_format)
    assert found == []


MISTAKES = {
    "deviations": (lambda m, v: (m, np.sqrt(v)), "variance holds standard deviations"),
    "inverse deviations": (lambda m, v: (m, (v + 1e-3) ** -0.5), "inverse standard deviations"),
    "squares": (lambda m, v: (m, v + m**2), "means of squares"),
    "swapped": (lambda m, v: (v, m), "mean and variance are swapped"),
    "negative": (lambda m, v: (m, v - 2 * v.min()), "variance is negative in 1 of 9 channels"),
    "another mean": (lambda m, v: (m + np.sqrt(v) / 10, v), "mean is not src's"),
    "another variance": (lambda m, v: (m, v * 1.1), "variance is not src's"),
    "infinite": (lambda m, v: (m / np.arange(9), v), "mean is not finite in 1 of 9 channels"),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@helpers.types
@helpers.formats
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_words(mistake, dtype, stats, data_format):
    src, mean, variance, kind = problem(dtype, stats, data_format)
    spoil, words = MISTAKES[mistake]
    given = [values.astype(kind) for values in spoil(mean, variance)]
    (found,) = check_statistics(src, *given, data_format=data_format)
    assert words in found


@pytest.mark.parametrize("rows", [10, 486, 100_000])
def test_the_unbiased_variance(rows):
    src, mean, variance, _ = problem(shape=(rows, 9))
    unbiased = (variance * rows / (rows - 1)).astype(np.float32)
    (found,) = check_statistics(src, mean.astype(np.float32), unbiased)
    assert f"pass the biased one, {rows - 1}/{rows} of it" in found


def test_the_other_formats_statistics():
    src, mean, variance, _ = problem()
    (found,) = check_statistics(src, mean, variance, data_format="NCX")
    assert found == "mean and variance are those of the format NXC, and data_format says NCX"


def test_the_other_formats_number_of_channels():
    src = np.ones((4, 8, 8, 3), np.float32)
    found = check_statistics(src, np.ones(3), np.ones(3), data_format="NCX")
    assert [line.partition(" has")[0] for line in found] == ["mean", "variance"]
    assert all("it is that of the format NXC" in line for line in found)


def test_few_elements():
    assert check_statistics(np.ones((1, 3)), np.ones(3), np.zeros(3)) == []
    assert check_statistics(np.ones((0, 3)), np.ones(3), np.zeros(3)) == []
    assert check_statistics(np.ones((5, 3)), np.ones(3), np.zeros(3)) == []
