"""BatchNormForwardTraining fused with an optional addition and an activation."""

from __future__ import annotations

from ..graph import Graph
from ..tensors.arrays import AnyArray, SrcArray
from ..tensors.dtypes import DType
from ..tensors.options import Activation, Backend
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from ._graph_of import OpRow, act_forward
from .base import ActOperator
from .batch_norm_forward_training import BatchNormForward, Out
from .schema import OpSchema

SCHEMA = OpSchema.of("act_forward_training", BatchNormForward)


class BatchNormActForwardTraining(ActOperator[BatchNormForward]):
    """Batch normalization in training, fused with the addition of a residual and an activation.

    Parameters
    ----------
    epsilon, momentum, data_format
        As in `BatchNormForwardTraining`.
    activation : {"relu", "leaky_relu", "silu", "hardswish", "gelu", "gelu_tanh"}
        The activation.
    clip : float, optional
        Upper bound of "relu": 6.0 for ReLU6. By default there is no bound.
    negative_slope : float, optional
        Slope of "leaky_relu" below zero. Default: 0.01.

    Notes
    -----
    dst = activation(batch_norm(src) + residual), where batch_norm and the other outputs are those
    of `BatchNormForwardTraining`. All of it is computed in f32, with batch_mean in f32, from which
    the gradient recomputes it, and rounded once. The activations are those of PyTorch [1]_:

    - relu(y) = min(max(y, 0), clip)
    - leaky_relu(y) = y if y > 0, otherwise negative_slope * y
    - silu(y) = y / (1 + exp(-y))
    - hardswish(y) = y * min(max(y + 3, 0), 6) / 6
    - gelu(y) = y * (1 + erf(y / sqrt(2))) / 2
    - gelu_tanh(y) = y * (1 + tanh(sqrt(2 / pi) * (y + 0.044715 * y^3))) / 2

    NaN stays NaN. As in PyTorch, the results at -infinity are NaN, except for "relu" and
    "leaky_relu".

    Arrays and errors are as in `BatchNormTrainingBackward`. ``backend="onednn"`` runs a graph of
    the ops [2]_. oneDNN has none for "silu" and "gelu_tanh".

    References
    ----------
    .. [1] PyTorch documentation, torch.nn.functional.
    .. [2] oneDNN developer guide, Graph API, operations ReLU, Clamp, LeakyReLU, HardSwish and GELU.

    Examples
    --------
    >>> op = onedsl.BatchNormActForwardTraining(1e-5, data_format="NCX", activation="silu")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> op(src, np.float32([0]), np.float32([1])).dst.round(2)
    array([[[[-0.28, -0.17],
             [ 0.27,  1.06]]]], dtype=float32)
    """

    __slots__ = ()

    def _ops(self, absent: set[str]) -> list[OpRow]:
        return act_forward(self, absent)

    def __init__(
        self,
        epsilon: float,
        momentum: float | None = None,
        data_format: DataFormatLike = DataFormat.NXC,
        *,
        activation: Activation,
        clip: float | None = None,
        negative_slope: float | None = None,
    ) -> None:
        super().__init__(
            SCHEMA,
            epsilon=epsilon,
            momentum=momentum,
            data_format=data_format,
            activation=activation,
            clip=clip,
            negative_slope=negative_slope,
        )

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
        residual: AnyArray | None = None,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormForward[SrcArray]:
        """Normalize src, add the residual, apply the activation, update the running statistics.

        Parameters
        ----------
        src, mean, variance, gamma, beta, out, backend
            As in `BatchNormForwardTraining`.
        residual : array, src's shape and dtype, optional
            Added before the activation. Default: zeros.

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
