"""BatchNormForwardTraining fused with an optional addition and a ReLU."""

from __future__ import annotations

from ..graph import Graph
from ..tensors.arrays import AnyArray, SrcArray
from ..tensors.dtypes import DType
from ..tensors.options import Backend
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from ._graph_of import OpRow, act_forward
from .base import ChannelOperator
from .batch_norm_forward_training import BatchNormForward, Out
from .schema import OpSchema

SCHEMA = OpSchema.of("act_forward_training", BatchNormForward)


class BatchNormReLUForwardTraining(ChannelOperator[BatchNormForward]):
    """Batch normalization in training, fused with the addition of a residual and a ReLU.

    Parameters
    ----------
    epsilon, momentum, data_format
        As in `BatchNormForwardTraining`.
    clip : float, optional
        Upper bound of the ReLU: 6.0 for ReLU6. By default there is no bound.

    Notes
    -----
    dst = min(max(batch_norm(src) + residual, 0), clip), where batch_norm and the other outputs are
    those of `BatchNormForwardTraining`. NaN stays NaN. Sum, ReLU and bound are computed in f32 and
    rounded once. dst is that of batch_mean in f32, from which the gradient recomputes it.

    Arrays and errors are as in `BatchNormTrainingBackward`.

    oneDNN has no such op. ``backend="onednn"`` runs a graph of the three ops [1]_ [2]_, in as many
    partitions as oneDNN chooses.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormForwardTraining.
    .. [2] oneDNN developer guide, Graph API, operations Add, ReLU and Clamp.

    Examples
    --------
    >>> op = onedsl.BatchNormReLUForwardTraining(epsilon=1e-5, data_format="NCX")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> op(src, np.float32([0]), np.float32([1])).dst.round(2)
    array([[[[0.  , 0.  ],
             [0.45, 1.34]]]], dtype=float32)
    """

    __slots__ = ()

    def _ops(self, absent: set[str]) -> list[OpRow]:
        return act_forward(self, absent)

    @property
    def _activation(self) -> tuple[str, float | None]:
        return "relu", self.clip

    def __init__(
        self,
        epsilon: float,
        momentum: float | None = None,
        data_format: DataFormatLike = DataFormat.NXC,
        *,
        clip: float | None = None,
    ) -> None:
        super().__init__(
            SCHEMA, epsilon=epsilon, momentum=momentum, data_format=data_format, clip=clip
        )

    @property
    def momentum(self) -> float | None:
        """Weight of the old running statistics in the new ones; None means the default."""
        return self._attributes["momentum"]  # type: ignore[no-any-return]

    @property
    def clip(self) -> float | None:
        """Upper bound of the ReLU, or None."""
        return self._attributes["clip"]  # type: ignore[no-any-return]

    def __call__(
        self,
        src: SrcArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        residual: AnyArray | None = None,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormForward[SrcArray]:
        """Normalize src, add the residual, apply the ReLU, and update the running statistics.

        Parameters
        ----------
        src, mean, variance, gamma, beta, out, backend
            As in `BatchNormForwardTraining`.
        residual : array, src's shape and dtype, optional
            Added before the ReLU. Default: zeros.

        Returns
        -------
        BatchNormForward
            Its members are the arrays of ``out``, if given.
        """
        return self._call((src, mean, variance, gamma, beta, residual), True, out, backend)

    def graph(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        residual: bool = False,
    ) -> Graph:
        """Return oneDNN's graph of two or three ops, as `BatchNormTrainingBackward.graph` does.

        Parameters
        ----------
        spec, stats_dtype
            As in `BatchNormTrainingBackward.graph`.
        gamma, residual : bool
            Whether the graph has the inputs gamma and beta, and residual.
        """
        given = {"gamma": gamma, "beta": gamma, "residual": residual}
        return self._graph(spec, stats_dtype, given, True)
