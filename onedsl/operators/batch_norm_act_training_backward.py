"""The gradient of BatchNormForwardTraining fused with an addition and an activation."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Generic

from .._compat import NamedTuple
from ..graph import Graph
from ..runtime.errors import UnsupportedError
from ..tensors.arrays import AnyArray, SrcArray
from ..tensors.dtypes import DType
from ..tensors.options import Activation, Backend
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import validation
from ._graph_of import OpRow, activation, batch_norm
from .base import ActOperator
from .schema import OpSchema

Out = tuple[AnyArray, AnyArray, AnyArray, AnyArray | None]


class BatchNormActGradients(NamedTuple, Generic[SrcArray]):
    """The outputs of `BatchNormActTrainingBackward`."""

    diff_src: SrcArray
    """Gradient with respect to src: an array with its type, shape, dtype and memory layout."""
    diff_gamma: Any
    """Gradient with respect to gamma: shape (C,), mean's dtype."""
    diff_beta: Any
    """Gradient with respect to beta: shape (C,), mean's dtype."""
    diff_residual: SrcArray | None = None
    """Gradient with respect to the residual, like diff_src, or None if it was not requested."""


SCHEMA = OpSchema.of(
    "act_training_backward",
    BatchNormActGradients,
    options=("diff_residual=True", "diff_residual=False"),
)


class BatchNormActTrainingBackward(ActOperator[BatchNormActGradients]):
    """The gradient of `BatchNormActForwardTraining`.

    Parameters
    ----------
    epsilon, data_format
        As in `BatchNormTrainingBackward`.
    activation, clip, negative_slope
        As in `BatchNormActForwardTraining`.

    Notes
    -----
    Let y be the argument of the activation, and d = diff_dst * activation'(y). diff_src, diff_gamma
    and diff_beta are those of `BatchNormTrainingBackward` for d, and diff_residual is d.

    y is recomputed from src, mean, variance, gamma, beta and residual, which must be those of the
    forward pass, so nothing that follows batch norm need be saved. It has the bits of
    `BatchNormActForwardTraining` with ``backend="auto"`` on the same instruction set, unless the
    statistics are bf16, because they are rounded after dst is computed.

    With dst, the result of the forward pass, y is not needed, and neither are beta and residual:
    the derivatives of "relu", and of "leaky_relu" with a positive slope, are those at dst. Other
    derivatives do not follow from dst, which is then an error.

    At 0, the derivatives of "relu" and "leaky_relu" are 0 and negative_slope, and at clip that of
    "relu" is 0; at -3 and 3, that of "hardswish" is 0 and 1. At NaN, they are 1, negative_slope and
    1, and the others NaN. These are the derivatives of PyTorch's formulas; its vectorized kernels
    have others at NaN.

    Arrays and errors are as in `BatchNormTrainingBackward`. ``backend="onednn"`` supports "relu"
    with dst: oneDNN's other gradients of activations need an argument that no op of its Graph API
    recomputes together with the gradient of batch norm. oneDNN documents a fused partition of
    ReLUBackward and BatchNormTrainingBackward [1]_, but its pattern connects the ReLU's gradient to
    the port src instead of diff_dst. Therefore two partitions run.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operations ReLUBackward, ClampBackward and
       BatchNormTrainingBackward.

    Examples
    --------
    >>> op = onedsl.BatchNormActTrainingBackward(1e-5, "NCX", activation="silu")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> grads = op(src, np.ones_like(src), np.float32([2.5]), np.float32([1.25]))
    >>> grads.diff_beta.round(2)
    array([2.], dtype=float32)
    """

    __slots__ = ()

    def _ops(self, absent: set[str]) -> list[OpRow]:
        if self.activation != "relu":
            reason = f"oneDNN's gradient of {self.activation} does not recompute its argument"
            raise UnsupportedError(reason, "unimplemented")
        if "dst" in absent:
            reason = "dst must be given: oneDNN's ReLUBackward needs it"
            raise UnsupportedError(reason, "unimplemented")
        masked = "masked" if "diff_residual" in absent else "diff_residual"
        kind, bounds = activation(self)
        mask: OpRow = f"{kind}Backward", bounds | {"use_dst": True}, ("dst", "diff_dst"), (masked,)
        return [mask, batch_norm(self, "training_backward", diff_dst=masked)]

    def __init__(
        self,
        epsilon: float,
        data_format: DataFormatLike = DataFormat.NXC,
        *,
        activation: Activation,
        clip: float | None = None,
        negative_slope: float | None = None,
    ) -> None:
        super().__init__(
            SCHEMA,
            epsilon=epsilon,
            data_format=data_format,
            activation=activation,
            clip=clip,
            negative_slope=negative_slope,
        )

    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        residual: AnyArray | None = None,
        dst: AnyArray | None = None,
        *,
        diff_residual: bool | None = None,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormActGradients[SrcArray]:
        """Compute the gradients.

        Parameters
        ----------
        src, mean, variance, backend
            As in `BatchNormTrainingBackward`. The statistics are batch_mean and batch_variance.
        diff_dst : array, src's shape and dtype
            Gradient of the loss with respect to the output of the activation.
        gamma, beta : array, (C,), dtype of mean, optional
            Scale and shift of the forward pass, both or neither unless dst is given. Defaults: ones
            and zeros.
        residual : array, src's shape and dtype, optional
            What the forward pass added.
        dst : array, src's shape and dtype, optional
            Output of the forward pass, instead of residual. Only for "relu", and for "leaky_relu"
            with a positive slope.
        diff_residual : bool, optional
            Whether to compute diff_residual, which needs residual or dst. Default: if residual is
            given.
        out : tuple of four arrays, optional
            Writable arrays in the order of the results, with their shapes and dtypes; None for a
            diff_residual that is not computed. diff_src may be diff_dst itself; any other overlap
            is an error.

        Returns
        -------
        BatchNormActGradients
            Its members are the arrays of ``out``, if given.
        """
        if diff_residual is None:
            diff_residual = residual is not None
        requested = validation.check_bool("diff_residual", diff_residual)
        inputs = (src, diff_dst, mean, variance, gamma, beta, residual, dst)
        return self._call(inputs, requested, out, backend)

    def graph(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        diff_residual: bool = False,
    ) -> Graph:
        """Return oneDNN's graph of two ops, as `BatchNormTrainingBackward.graph` does.

        Only for "relu": the others raise UnsupportedError.

        Parameters
        ----------
        spec, stats_dtype
            As in `BatchNormTrainingBackward.graph`.
        gamma, diff_residual : bool
            Whether the graph has the input gamma, and the output diff_residual. dst is always an
            input, beta and residual never.
        """
        given = {"gamma": gamma, "beta": False, "residual": False, "dst": True}
        requested = validation.check_bool("diff_residual", diff_residual)
        return self._graph(spec, stats_dtype, given, requested)
