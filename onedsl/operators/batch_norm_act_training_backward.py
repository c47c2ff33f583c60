"""The gradient of BatchNormForwardTraining fused with an addition and an activation."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Generic, overload

from .._compat import NamedTuple, default_arguments
from ..runtime.errors import UnsupportedError
from ..tensors.arrays import AnyArray, ResidualArray, SrcArray
from ..tensors.options import Activation, Backend
from ..tensors.spec import DataFormat, DataFormatLike
from ._graph_of import OpRow
from .base import ActOperator
from .schema import OpSchema

Out = tuple[AnyArray, AnyArray, AnyArray, AnyArray | None]


@default_arguments
class BatchNormActGradients(NamedTuple, Generic[SrcArray, ResidualArray]):
    """The outputs of `BatchNormActTrainingBackward`."""

    diff_src: SrcArray
    """Gradient with respect to src: an array with its type, shape, dtype and memory layout."""
    diff_gamma: Any
    """Gradient with respect to gamma: shape (C,), mean's dtype."""
    diff_beta: Any
    """Gradient with respect to beta: shape (C,), mean's dtype."""
    diff_residual: ResidualArray = None  # type: ignore[assignment]
    """Gradient with respect to the residual, like diff_src, or None without a residual."""


SCHEMA = OpSchema.of(
    "act_training_backward",
    BatchNormActGradients,
    options=("a residual", "residual=None"),
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

    Nothing that follows batch norm in the forward pass need be saved: y is recomputed from src,
    mean, variance, gamma, beta and residual, which must be those of the forward pass. It has the
    bits of `BatchNormActForwardTraining` with ``backend="auto"`` on the same instruction set,
    unless the statistics are bf16, because they are rounded after dst is computed.

    At 0, the derivatives of "relu" and "leaky_relu" are 0 and negative_slope; at -3 and 3, that of
    "hardswish" is 0 and 1, as in PyTorch.

    Arrays and errors are as in `BatchNormTrainingBackward`. ``backend="onednn"`` is not supported:
    oneDNN's gradients of activations need an argument that no op of its Graph API recomputes
    together with the gradient of batch norm.

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
        reason = f"oneDNN's gradient of {self.activation} does not recompute its argument"
        raise UnsupportedError(reason, "unimplemented")

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

    @overload
    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        residual: None = None,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormActGradients[SrcArray, None]: ...
    @overload
    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        residual: AnyArray = ...,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormActGradients[SrcArray, SrcArray]: ...
    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        residual: AnyArray | None = None,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormActGradients[SrcArray, Any]:
        """Compute the gradients.

        Parameters
        ----------
        src, mean, variance, backend
            As in `BatchNormTrainingBackward`. The statistics are batch_mean and batch_variance.
        diff_dst : array, src's shape and dtype
            Gradient of the loss with respect to the output of the activation.
        gamma, beta : array, (C,), dtype of mean, optional
            Scale and shift of the forward pass, both or neither. Defaults: ones and zeros.
        residual : array, src's shape and dtype, optional
            What the forward pass added. With it, diff_residual is computed.
        out : tuple of four arrays, optional
            Writable arrays in the order of the results, with their shapes, dtypes and strides; None
            for a diff_residual that is not computed. diff_src may be diff_dst itself; any other
            overlap is an error.

        Returns
        -------
        BatchNormActGradients
            Its members are the arrays of ``out``, if given.
        """
        inputs = (src, diff_dst, mean, variance, gamma, beta, residual)
        return self._call(inputs, residual is not None, out, backend)
