"""What `BatchNormTrainingBackward` gives, and what it compiles to."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, NamedTuple

from ..tensors.arrays import AnyArray
from ._compiled import Compiled

Out = tuple[AnyArray, AnyArray | None, AnyArray | None]


class BatchNormGradients(NamedTuple):
    """The outputs of the op. What was not asked for is None.

    Attributes
    ----------
    diff_src : array
        Gradient with respect to src: src's shape, dtype and order in memory.
    diff_gamma, diff_beta : array or None
        Gradients with respect to gamma and beta: shape (C,), the statistics' dtype.
    """

    diff_src: Any
    diff_gamma: Any = None
    diff_beta: Any = None


class CompiledBatchNormTrainingBackward(Compiled[BatchNormGradients]):
    """What `BatchNormTrainingBackward.compile` makes."""

    __slots__ = ()

    def __call__(
        self,
        src: AnyArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormGradients:
        """Compute the gradients.

        Parameters
        ----------
        src, diff_dst : array
            Of the spec's shape, dtype and strides.
        mean, variance : array
            Of ``stats_shape`` and ``stats_dtype``.
        gamma : array, optional
            Like mean. To be given if and only if this was compiled with ``gamma=True``.
        out : BatchNormGradients or tuple of three arrays, optional
            As in a direct call.

        Returns
        -------
        BatchNormGradients
            ``out`` if it was given.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if an argument is not what this was compiled for. Nothing
            has been written then.

        Warns
        -----
        GammaIgnoredWarning
            If gamma is given where this was compiled for ``outputs="diff_src"``.

        Notes
        -----
        src and diff_dst are never copied. Statistics that are not contiguous are.
        """
        return self._call((src, diff_dst, mean, variance, gamma), out)
