"""What the two halves of an operator hand over: one vector, for any transport."""

# No annotations from __future__ here: pdoc would not find the types of the fields.

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_Totals = TypeVar("_Totals", bound="Totals")


class Totals:
    """A count, and two numbers for each channel, in float64; they add with ``+``."""

    __slots__ = ("_vector",)

    _word: ClassVar[str]
    """What arguments of this class are called."""

    def __init__(self, vector: npt.ArrayLike) -> None:
        taken = np.asarray(vector)
        if taken.dtype != np.float64 or taken.ndim != 1 or taken.size % 2 == 0:
            raise ValueError(
                "vector must be one of 2 C + 1 float64 numbers, a count and two for each channel, "
                f"as to_vector gives; it is {taken.dtype} of shape {taken.shape}"
            )
        if not (taken[0] >= 0 and float(taken[0]).is_integer()):
            raise ValueError(
                f"vector[0] must be a count of elements, as to_vector gives, not {taken[0]}"
            )
        self._vector = taken.copy()
        self._vector.flags.writeable = False

    @classmethod
    def from_vector(cls: type[_Totals], vector: npt.ArrayLike) -> _Totals:
        """Make it of what `to_vector` gave, here or elsewhere.

        Parameters
        ----------
        vector : array, (2 C + 1,), f64
            It is copied.

        Raises
        ------
        ValueError
            If it is not as above, or does not begin with a count.
        """
        return cls(vector)

    def to_vector(self) -> Vector:
        """Give all numbers in one array of one's own.

        Returns
        -------
        numpy.ndarray, (2 C + 1,), f64
            The count, the C first numbers, and the C second ones, as the class lists them.
        """
        return self._vector.copy()

    @property
    def count(self) -> int:
        """Elements of a channel, in all the parts that are in it."""
        return int(self._vector[0])

    @property
    def channels(self) -> int:
        """How many channels it has."""
        return self._vector.size // 2

    @property
    def _first(self) -> Vector:
        return self._vector[1 : 1 + self.channels]

    @property
    def _second(self) -> Vector:
        return self._vector[1 + self.channels :]

    def _added(self: _Totals, other: _Totals, add: Callable[[Vector, Vector], Vector]) -> _Totals:
        if self._vector.size != other._vector.size:
            raise ValueError(
                f"{self._word} of {self.channels} channels and of {other.channels} cannot be added"
            )
        return type(self)(add(self._vector, other._vector))

    def __add__(self: _Totals, other: object) -> _Totals:
        """Put two parts together."""
        raise NotImplementedError

    def __radd__(self: _Totals, other: object) -> _Totals:
        """Take the 0 that `sum` begins with."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return np.array_equal(self._vector, other._vector, equal_nan=True)

    __hash__ = None  # type: ignore[assignment]  # as arrays have it

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._vector,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.channels} channels, {self.count} elements each>"


class BatchNormSums(Totals):
    """Sums of the gradient over a part of the batch, for each channel; parts add with ``+``.

    `BatchNormTrainingBackward.reduce` makes them, and ``apply`` takes those of all parts. Beside
    ``count`` there are, in the order of `to_vector`, ``diff_beta`` and ``diff_gamma``. They are one
    value a statistic, in the statistics' order, where these are no vector.

    Notes
    -----
    Addition is float64's, number by number: an all-reduce that adds vectors does the same. So the
    last bit of a sum may depend on how parts are grouped, and with it, rarely, the last bit of a
    result of float32.
    """

    __slots__ = ()
    _word = "sums"

    @property
    def diff_beta(self) -> Vector:
        """Sum of diff_dst, for each channel: (C,), f64, read-only."""
        return self._first

    @property
    def diff_gamma(self) -> Vector:
        """Sum of diff_dst * xhat, for each channel: (C,), f64, read-only."""
        return self._second

    def __add__(self, other: object) -> "BatchNormSums":
        """Put two parts together."""
        if type(other) is not BatchNormSums:
            return NotImplemented
        return self._added(other, np.add)


class BatchNormMoments(Totals):
    """Moments of a part of the batch, for each channel; parts add with ``+``, by Chan's rule.

    `BatchNormForwardTraining.reduce` makes them, and ``apply`` takes those of all parts. Beside
    ``count`` there are, in the order of `to_vector`, ``mean`` and ``m2``.

    Notes
    -----
    Vectors of moments do not add number by number: gather those of all parts, and add what
    `from_vector` makes of them.
    """

    __slots__ = ()
    _word = "moments"

    @property
    def mean(self) -> Vector:
        """Mean of src, for each channel: (C,), f64, read-only."""
        return self._first

    @property
    def m2(self) -> Vector:
        """Sum of (src - mean)^2, for each channel: (C,), f64, read-only."""
        return self._second

    def __add__(self, other: object) -> "BatchNormMoments":
        """Put two parts together."""
        if type(other) is not BatchNormMoments:
            return NotImplemented
        return self._added(other, _add_moments)


def _add_moments(a: Vector, b: Vector) -> Vector:
    if a[0] == 0 or b[0] == 0:
        return b if a[0] == 0 else a
    count = a[0] + b[0]
    (mean_a, m2_a), (mean_b, m2_b) = np.split(a[1:], 2), np.split(b[1:], 2)
    mean = (a[0] * mean_a + b[0] * mean_b) / count
    m2 = m2_a + m2_b + (mean_b - mean_a) ** 2 * (a[0] * b[0] / count)
    return np.concatenate([[count], mean, m2])
