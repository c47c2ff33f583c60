"""The oneDNN Graph specification's BatchNormTrainingBackprop-1."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Generic, Literal

from .._compat import NamedTuple
from ..tensors.arrays import AnyArray, SrcArray
from ..tensors.options import Backend
from ..tensors.spec import DataFormat, DataFormatLike
from .base import ChannelOperator
from .batch_norm_training_backward import Out
from .schema import OpSchema


class BatchNormDeltas(NamedTuple, Generic[SrcArray]):
    """The outputs of `BatchNormTrainingBackprop`. Those that were not requested are None."""

    input_delta: SrcArray
    """Gradient with respect to input_forward: an array with its type, shape, dtype and layout."""
    gamma_delta: Any = None
    """Gradient with respect to gamma: shape (C,), mean's dtype; or None."""
    beta_delta: Any = None
    """Gradient with respect to beta: shape (C,), mean's dtype; or None."""


_NAMES = {"src": "input_forward", "diff_dst": "output_delta"}
_NAMES |= {"diff_src": "input_delta", "diff_gamma": "gamma_delta", "diff_beta": "beta_delta"}
SCHEMA = OpSchema.of("training_backward", BatchNormDeltas, names=_NAMES)


class BatchNormTrainingBackprop(ChannelOperator[BatchNormDeltas]):
    """`BatchNormTrainingBackward` with the names of the oneDNN Graph specification.

    In its op BatchNormTrainingBackprop-1, input_forward is src, output_delta is diff_dst, and
    input_delta, gamma_delta and beta_delta are diff_src, diff_gamma and diff_beta. One behavior
    differs: gamma is also used if input_delta is the only output. `reduce`, `apply` and `graph` are
    methods of `BatchNormTrainingBackward` only.

    Examples
    --------
    >>> op = onedsl.BatchNormTrainingBackprop(epsilon=1e-5)
    >>> x, one = np.ones((2, 1), np.float32), np.ones(1, np.float32)
    >>> op(input_forward=x, output_delta=x, mean=one, variance=one).beta_delta
    array([2.], dtype=float32)
    """

    __slots__ = ()

    def __init__(self, epsilon: float, data_format: DataFormatLike = DataFormat.NXC) -> None:
        super().__init__(SCHEMA, epsilon=epsilon, data_format=data_format)

    def __call__(
        self,
        input_forward: SrcArray,
        output_delta: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        *,
        outputs: Literal["all", "input_delta"] = "all",
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormDeltas[SrcArray]:
        """Compute the gradients.

        Parameters
        ----------
        input_forward, output_delta, mean, variance, gamma, outputs, out, backend
            As in `BatchNormTrainingBackward`, by the names above.

        Returns
        -------
        BatchNormDeltas
            Its members are the arrays of ``out``, if given.
        """
        inputs = (input_forward, output_delta, mean, variance, gamma)
        return self._call(inputs, outputs, out, backend)
