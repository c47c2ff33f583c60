"""oneDNN's Graph API op BatchNormForwardTraining."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Generic, Literal

from .._compat import NamedTuple
from ..graph import Graph
from ..tensors.arrays import AnyArray, SrcArray
from ..tensors.dtypes import DType
from ..tensors.options import Backend
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from .base import ChannelOperator
from .schema import OpSchema
from .totals import BatchNormMoments

Out = tuple[AnyArray, AnyArray, AnyArray, AnyArray, AnyArray]


class BatchNormForward(NamedTuple, Generic[SrcArray]):
    """The outputs of the forward operators."""

    dst: SrcArray
    """Output of the layer: an array with src's type, shape, dtype and order of axes."""
    running_mean: Any
    """The updated running mean: shape (C,), mean's dtype."""
    running_variance: Any
    """The updated running variance: shape (C,), mean's dtype."""
    batch_mean: Any
    """Mean of src, the mean of `BatchNormTrainingBackward`: shape (C,), mean's dtype."""
    batch_variance: Any
    """Biased variance of src, the variance of that operator: shape (C,), mean's dtype."""


SCHEMA = OpSchema.of("forward_training", BatchNormForward)


class BatchNormForwardTraining(ChannelOperator[BatchNormForward]):
    """Batch normalization in training: the op of this name in oneDNN's Graph API.

    Parameters
    ----------
    epsilon : float
        Added to the variance under the square root. Positive and finite in float32.
    momentum : float, optional
        Weight of the old running statistics in the new ones, from 0 to 1. Default: 0.5, which is
        oneDNN's undocumented default.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Position of the channel axis in the shape of src: last or second. It does not restrict the
        memory layout.

    Notes
    -----
    With M elements per channel, for each channel [1]_:

    - batch_mean = sum(src) / M
    - batch_variance = sum((src - batch_mean)^2) / M
    - dst = gamma * (src - batch_mean) / sqrt(batch_variance + epsilon) + beta
    - running_mean = momentum * mean + (1 - momentum) * batch_mean
    - running_variance = momentum * variance + (1 - momentum) * batch_variance

    PyTorch's layers differ in two ways: their momentum m is 1 - momentum, and their running
    variance uses the unbiased variance, ``(1 - m) * variance + m * batch_variance * M / (M - 1)``.

    For an empty src the batch statistics are zeros, and the running statistics do not change.

    Squares are computed in float32 and summed in float64. Results are accurate if (src -
    batch_mean)^2 is below 1e36, that is, for deviations below 1e18. Above, the variance may be inf.
    The mean may be far above the deviation: dst is that of the mean in float64, of which batch_mean
    is rounded.

    Arrays and errors are as in `BatchNormTrainingBackward`.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormForwardTraining.

    Examples
    --------
    >>> op = onedsl.BatchNormForwardTraining(epsilon=1e-5, momentum=0.9, data_format="NCX")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> forward = op(src, np.float32([0]), np.float32([1]))
    >>> forward.batch_mean, forward.batch_variance
    (array([2.5], dtype=float32), array([1.25], dtype=float32))
    >>> forward.running_mean
    array([0.25], dtype=float32)
    """

    __slots__ = ()

    _totals = BatchNormMoments

    def __init__(
        self,
        epsilon: float,
        momentum: float | None = None,
        data_format: DataFormatLike = DataFormat.NXC,
    ) -> None:
        super().__init__(SCHEMA, epsilon=epsilon, momentum=momentum, data_format=data_format)

    @property
    def momentum(self) -> float | None:
        """Weight of the old running statistics in the new ones; None means the default."""
        return self._attributes["momentum"]  # type: ignore[no-any-return]

    def __call__(
        self,
        src: SrcArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormForward[SrcArray]:
        """Normalize src and update the running statistics.

        Parameters
        ----------
        src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the layer.
        mean, variance : array, (C,), f32, or bf16 where src is bf16
            The running statistics. They are not modified; the new ones are outputs.
        gamma, beta : array, (C,), dtype of mean, optional
            Scale and shift, both or neither. Defaults: ones and zeros.
        out : tuple of five arrays, optional
            Writable arrays in the order of the results, with their shapes and dtypes. dst may be
            src itself; any other overlap is an error.
        backend : {"auto", "onednn"}
            onedsl's own kernels, or oneDNN.

        Returns
        -------
        BatchNormForward
            Its members are the arrays of ``out``, if given.
        """
        return self._call((src, mean, variance, gamma, beta), True, out, backend)

    def reduce(self, src: AnyArray) -> BatchNormMoments:
        """Compute the moments of a part of the batch: the first of the two passes of a call.

        src is a part of any size, which may be empty.

        Returns
        -------
        BatchNormMoments
            Add those of all parts with ``+``, and pass the sum to `apply`.
        """
        return self._reduce((src,))  # type: ignore[no-any-return]

    def apply(
        self,
        moments: BatchNormMoments | Literal[0],
        src: SrcArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormForward[SrcArray]:
        """Normalize a part of the batch: the second of the two passes of a call.

        moments is the sum of the results of `reduce` for all parts. The other arguments are those
        of a call, for this part.

        Returns
        -------
        BatchNormForward
            dst of this part. The statistics are those of the whole batch.
        """
        return self._apply(moments, (src, mean, variance, gamma, beta), True, out)

    def graph(self, spec: TensorSpec, *, stats_dtype: DType = "f32", gamma: bool = True) -> Graph:
        """Return oneDNN's graph as written, as `BatchNormTrainingBackward.graph` does.

        Parameters
        ----------
        spec, stats_dtype
            As in `BatchNormTrainingBackward.graph`.
        gamma : bool
            Whether the graph has the inputs gamma and beta.
        """
        return self._graph(spec, stats_dtype, {"gamma": gamma, "beta": gamma}, True)
